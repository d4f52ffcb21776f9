# TrainerMonitorV2, msprobe's Monitor V2: its files against plain torch.
import copy
import csv
import json
import logging
import math

import pytest
import torch
from torch import nn

from trainmon.compat.msprobe.core.monitor_v2 import TrainerMonitorV2 as Exported
from trainmon.compat.msprobe.core.monitor_v2.trainer import TrainerMonitorV2
from trainmon.compat.msprobe.monitor_v2_config import micro_steps

OPS = ["min", "max", "mean", "norm", "nans"]
BASE = ["vpp_stage", "step", "module_name", "scope"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)

    def forward(self, x, scale):
        return self.frozen(self.head(torch.tanh(self.fc(x)))) * scale, scale


def net():
    torch.manual_seed(0)
    return Net()


def loss_of(model, index):
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(index))
    return model(x, scale=torch.tensor([2.0]))[0].square().mean()


def monitor_of(folder, monitors, fr=None, **keys):
    folder.mkdir(exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps({"output_dir": str(folder), "monitors": monitors, **keys}))
    return TrainerMonitorV2(str(path), fr)


def train(folder, monitors, count=2, micro=1, model=None, given=None, context=None, **keys):
    model = net() if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    monitor = monitor_of(folder, monitors, **keys)
    monitor.start(model=model if given is None else given, optimizer=optimizer, **(context or {}))
    for step in range(count):
        for m in range(micro):
            loss_of(model, step * micro + m).backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.stop()
    return monitor


def names(folder, rank=0):
    return sorted(path.name for path in (folder / f"rank_{rank}").glob("*.csv"))


def rows(folder, name, rank=0):
    with open(folder / f"rank_{rank}" / name, newline="") as file:
        return list(csv.DictReader(file))


def assert_values(row, tensor, ops=OPS):
    wide = tensor.detach().double()
    known = {
        "min": wide.min(), "max": wide.max(), "mean": wide.mean(), "norm": wide.norm(),
        "nans": wide.isnan().sum(),
    }  # fmt: skip
    for op in ops:
        value = known[op].item()
        assert float(row[op]) == pytest.approx(value, rel=1e-12, abs=1e-300), (op, row)
        assert row[op] == repr(float(row[op]))


def true_steps(count, micro=1):
    """Of each step: gradients after each backward, weights before and after, moments after."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    found = []
    for step in range(count):
        sums = []
        for m in range(micro):
            loss_of(model, step * micro + m).backward()
            sums.append({n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad})
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
        after = {n: p.detach().clone() for n, p in model.named_parameters()}
        state = {
            key: {n: optimizer.state[p][key].clone() for n, p in model.named_parameters()
                  if p.requires_grad}
            for key in ("exp_avg", "exp_avg_sq")
        }  # fmt: skip
        found.append({"sums": sums, "param_origin": before, "param_updated": after, **state})
    return found


def test_weight_grad(tmp_path):
    train(tmp_path, {"weight_grad": {"enabled": True}})
    assert names(tmp_path) == ["weight_grad_step0-0.csv", "weight_grad_step1-1.csv"]
    for step, known in enumerate(true_steps(2)):
        found = rows(tmp_path, f"weight_grad_step{step}-{step}.csv")
        assert list(found[0]) == [*BASE, "micro_step", *OPS]
        trained = list(known["sums"][0])
        assert [r["module_name"] for r in found if r["scope"] == "reduced"] == trained
        assert sorted(r["module_name"] for r in found[: len(trained)]) == sorted(trained)
        assert [r["scope"] for r in found] == ["unreduced"] * 4 + ["reduced"] * 4
        for row in found:
            assert (row["vpp_stage"], row["step"], row["micro_step"]) == ("0", str(step), "1")
            assert_values(row, known["sums"][0][row["module_name"]])
    content = (tmp_path / "rank_0" / "weight_grad_step0-0.csv").read_bytes()
    assert content.count(b"\r\n") == content.count(b"\n") == 9


@pytest.mark.parametrize("place", ["micro_batch_number", "grad_acc_steps", "start"])
@pytest.mark.parametrize("every", [False, True])
def test_micro_steps(every, place, tmp_path):
    own = {"enabled": True, "monitor_mbs_grad": every, "ops": ["norm"]}
    context = {"grad_acc_steps": 3} if place == "start" else {}
    if place != "start":
        own[place] = 3
    train(tmp_path, {"weight_grad": own}, 1, micro=3, context=context)
    (known,) = true_steps(1, micro=3)
    found = rows(tmp_path, "weight_grad_step0-0.csv")
    unreduced = [row for row in found if row["scope"] == "unreduced"]
    wanted = [1, 2, 3] if every else [3]
    assert sorted((r["module_name"], int(r["micro_step"])) for r in unreduced) == sorted(
        (name, m) for name in known["sums"][0] for m in wanted
    )
    for row in found:
        assert row["scope"] == "unreduced" or row["micro_step"] == "3"
        assert_values(row, known["sums"][int(row["micro_step"]) - 1][row["module_name"]], ["norm"])


def test_param_and_optimizer(tmp_path):
    on = {"enabled": True}
    train(tmp_path, {"param": on, "optimizer": {**on, "ops": ["nans", "max"]}})
    for step, known in enumerate(true_steps(2)):
        found = rows(tmp_path, f"param_step{step}-{step}.csv")
        assert list(found[0]) == [*BASE, *OPS]
        assert [(r["scope"], r["module_name"]) for r in found] == [
            (kind, name) for kind in ("param_origin", "param_updated") for name in known[kind]
        ]  # frozen ones, too
        for row in found:
            assert_values(row, known[row["scope"]][row["module_name"]])
        found = rows(tmp_path, f"optimizer_step{step}-{step}.csv")
        assert list(found[0]) == [*BASE, "nans", "max"]
        assert [r["module_name"] for r in found] == [
            f"{name}.{kind}" for kind in ("exp_avg", "exp_avg_sq") for name in known[kind]
        ]
        for row in found:
            name = row["module_name"].removesuffix("." + row["scope"])
            assert_values(row, known[row["scope"]][name], ["nans", "max"])


def test_module(tmp_path):
    train(tmp_path, {"module": {}}, 1)
    model, seen = net(), {}

    def forward(name):
        def hook(module, args, kwargs, output):
            given = (*args, *kwargs.values())
            seen.update({f"{name}.input.{i}": v for i, v in enumerate(given)})
            given = output if isinstance(output, tuple) else (output,)
            seen.update({f"{name}.output.{i}": v for i, v in enumerate(given)})

        return hook

    def backward(name):
        def hook(module, inputs, outputs):
            for side, values in (("input", inputs), ("output", outputs)):
                given = [v for v in values if v is not None]
                seen.update({f"{name}.grad_{side}.{i}": v for i, v in enumerate(given)})

        return hook

    for name, module in model.named_modules():
        module.register_forward_hook(forward(name), with_kwargs=True)
        module.register_full_backward_hook(backward(name))
    loss_of(model, 0).backward()
    found = rows(tmp_path, "module_step0-0.csv")
    assert list(found[0]) == [*BASE, *OPS]
    assert sorted(row["module_name"] for row in found) == sorted(seen)
    for row in found:
        assert row["scope"] == ("backward" if ".grad_" in row["module_name"] else "forward")
        assert_values(row, seen[row["module_name"]])


def test_targets_are_parts_of_names(tmp_path, caplog):
    train(tmp_path, {"module": {"targets": ["hea", "nothing"]}}, 1)
    found = {row["module_name"].partition(".")[0] for row in rows(tmp_path, "module_step0-0.csv")}
    assert found == {"head"} and "'nothing'" in caplog.text


def test_a_list_of_models_is_in_the_names(tmp_path):
    model = net()
    on = {"enabled": True, "ops": ["norm"]}
    monitors = {"module": {"targets": ["0:fc"]}, "weight_grad": on, "optimizer": on}
    train(tmp_path, monitors, 1, model=model, given=[model])
    for name, wanted in (
        ("module", "0:fc.input.0"),
        ("weight_grad", "0:fc.weight"),
        ("optimizer", "0:fc.weight.exp_avg"),
    ):
        found = rows(tmp_path, f"{name}_step0-0.csv")
        assert wanted in {row["module_name"] for row in found}
        assert {row["vpp_stage"] for row in found} == {"0"}


@pytest.mark.parametrize(
    ("keys", "files", "steps"),
    [
        ({"start_step": 2}, ["2-2", "3-3", "4-4", "5-5", "6-6"], [2, 3, 4, 5, 6]),
        ({"start_step": 1, "stop_step": 5, "step_interval": 2}, ["1-1", "3-3"], [1, 3]),
        ({"start_step": 1, "step_count_per_record": 4}, ["1-4", "5-8"], [1, 2, 3, 4, 5, 6]),
        ({"collect_times": 2, "step_interval": 3}, ["0-0", "3-3"], [0, 3]),
        ({"collect_times": 0, "step_interval": "x", "stop_step": -1, "start_step": 5}, ["5-5", "6-6"], [5, 6]),
    ],
)  # fmt: skip
def test_which_steps_are_written(keys, files, steps, tmp_path):
    monitor = train(tmp_path, {"param": {"enabled": True, "ops": "norm"}}, 7, **keys)
    assert names(tmp_path) == [f"param_step{f}.csv" for f in files]
    found = [int(row["step"]) for name in names(tmp_path) for row in rows(tmp_path, name)]
    assert list(dict.fromkeys(found)) == steps
    assert monitor.current_step == 7


def test_steps_that_the_loop_declares(tmp_path):
    """Without an optimizer step() ends a step, whatever was stepped."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = monitor_of(tmp_path, {"module": {"targets": ["fc"], "ops": ["norm"]}})
    monitor.start(model=model)
    for step in range(3):
        for index in range(step):
            loss_of(model, index).backward()
        if step == 1:
            optimizer.step()
        monitor.step()
    assert monitor.current_step == 3
    monitor.stop()
    assert names(tmp_path) == ["module_step1-1.csv", "module_step2-2.csv"]
    assert len(rows(tmp_path, "module_step2-2.csv")) == 2 * len(
        rows(tmp_path, "module_step1-1.csv")
    )


def test_step_beside_the_optimizer_counts_nothing_twice(tmp_path, caplog):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = monitor_of(tmp_path, {"param": {"enabled": True}})
    monitor.start(model=model, optimizer=optimizer)
    monitor.start(model=model, optimizer=optimizer)  # as the peer: nothing
    for _ in range(3):
        loss_of(model, 0).backward()
        optimizer.step()
        monitor.step()
    assert monitor.current_step == 3
    assert sum("step() is not needed" in r.getMessage() for r in caplog.records) == 1
    monitor.stop()
    monitor.stop()
    optimizer.step()
    monitor.step()
    assert names(tmp_path) == [f"param_step{s}-{s}.csv" for s in range(3)]
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    assert copy.deepcopy({"monitor": monitor})["monitor"] is None


@pytest.mark.parametrize("name", ["module", "weight_grad", "optimizer", "param"])
def test_what_start_lacks_is_named(name, tmp_path):
    monitor = monitor_of(tmp_path, {name: {"enabled": True}})
    given = {"optimizer": torch.optim.SGD(net().parameters(), lr=0.1)} if name == "module" else {}
    given = given or {"model": net()}
    with pytest.raises(ValueError, match=f"start.. needs .*{name}"):
        monitor.start(**given)


def test_weight_grad_without_a_model_numbers_the_parameters(tmp_path):
    model = net()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    monitor = monitor_of(tmp_path, {"weight_grad": {"enabled": True}})
    monitor.start(optimizer=optimizer)
    loss_of(model, 0).backward()
    optimizer.step()
    monitor.stop()
    found = rows(tmp_path, "weight_grad_step0-0.csv")
    assert {row["module_name"] for row in found} == {f"param_{i}" for i in range(4)}


def test_which_monitors_and_ranks(tmp_path, caplog):
    """module is on unless it is switched off, the others the other way round."""
    monitors = {
        "module": {"enabled": False}, "param": {}, "weight_grad": {"enabled": True}, "modul": {"enabled": True},
    }  # fmt: skip
    train(tmp_path / "some", monitors, 1)
    assert names(tmp_path / "some") == ["weight_grad_step0-0.csv"]
    assert "'modul'" in caplog.text
    train(tmp_path / "other", {"weight_grad": {"enabled": True}}, 1, rank=[1])
    assert names(tmp_path / "other") == []
    train(tmp_path / "mine", {"weight_grad": {"enabled": True}}, 1, rank=0)
    assert names(tmp_path / "mine") == ["weight_grad_step0-0.csv"]


def test_bad_configurations(tmp_path, caplog):
    with pytest.raises(ValueError, match="framework"):
        monitor_of(tmp_path, {}, framework="jax")
    with pytest.raises(ValueError, match="csv"):
        monitor_of(tmp_path, {}, format="tensorboard")
    with pytest.raises(RuntimeError, match="absent"):
        TrainerMonitorV2(str(tmp_path / "absent.json"))
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(TypeError, match="object"):
        TrainerMonitorV2(str(tmp_path / "list.json"))
    with caplog.at_level(logging.WARNING):
        found = monitor_of(
            tmp_path,
            {"module": {"ops": ["norm", "zeros"]}},
            "PT",
            step_count_per_record=0,
            rank="x",
        )
    assert (found.framework, found.step_count_per_record, found.start_step) == ("pytorch", 1, 0)
    for word in ("step_count_per_record", "rank", "zeros"):
        assert word in caplog.text
    assert Exported is TrainerMonitorV2


@pytest.mark.parametrize("targets", [10, [None], {"a": 1}, ["0", 3]])
def test_bad_targets_and_numbers_of_micro_steps(targets, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        found = monitor_of(tmp_path, {"module": {"targets": targets}})
    assert found._checked["monitors"]["module"]["targets"] == []
    assert f"targets should be a list of str, not {targets!r}" in caplog.text
    assert micro_steps({"micro_batch_number": math.inf}, {"grad_acc_steps": 3}) == 3
    assert micro_steps({"micro_batch_number": math.nan}, {}) == 1


def test_nothing_of_training_changes(tmp_path):
    def trained(folder):
        model = net()
        if folder is None:
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            for step in range(3):
                loss_of(model, step).backward()
                optimizer.step()
                optimizer.zero_grad()
        else:
            on = {"enabled": True}
            every = {"module": on, "weight_grad": on, "optimizer": on, "param": on, "cc": on}
            train(folder, every, 3, model=model)
        return [p.detach().clone() for p in model.parameters()]

    for bare, watched in zip(trained(None), trained(tmp_path), strict=True):
        assert torch.equal(bare, watched)
    assert not math.isnan(bare.sum())
