# What scripts call on a TrainerMon: arguments in every order, questions, changes, the end.
import copy
import json
import logging
import pickle

import numpy as np
import pandas
import pytest
import torch
from torch import nn

import compat_case as case
import versions
from compat_oracle import truth
from trainmon.compat.msprobe.pytorch import TrainerMon

WG = {"targets": {}, "wg_distribution": True, "ops": ["norm", "max"]}


def setup(folder, config, **keys):
    model = case.net()
    return case.trainer_mon(folder, config, **keys), model, case.adam(model)


# --- arguments -------------------------------------------------------------------------------------

CALLS = {
    "manual, by position": lambda m, model, o: m.set_monitor(model, 2, o, None, None, 7),
    "code, by position": lambda m, model, o: m.set_monitor(model, o, 2, None, None, 7),
    "by name": lambda m, model, o: m.set_monitor(
        model=model, grad_acc_steps=2, optimizer=o, dp_group=None, tp_group=None, start_iteration=7
    ),
    "mixed": lambda m, model, o: m.set_monitor(model, 2, optimizer=o, start_iteration=7),
    "mixed, code": lambda m, model, o: m.set_monitor(model, o, start_iteration=7, grad_acc_steps=2),
    "old, by position": lambda m, model, o: m.monitor_gnorm_with_ad(model, 2, o, None, None, 7),
    "old, code": lambda m, model, o: m.monitor_gnorm_with_ad(model, o, 2, None, None, 7),
    "old, wrapped": lambda m, model, o: (
        m.set_wrapped_optimizer(o),
        m.monitor_gnorm_with_ad(model, grad_acc_steps=2, start_iteration=7),
    ),
    "old, wrapped by position": lambda m, model, o: (
        m.set_wrapped_optimizer(o),
        m.monitor_gnorm_with_ad(model, 2, start_iteration=7),
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_order_of_arguments(call, tmp_path):
    with case.output(tmp_path):
        monitor, model, optimizer = setup(tmp_path, {**WG, "monitor_mbs_grad": True})
        CALLS[call](monitor, model, optimizer)
        case.steps(model, optimizer, 1, micro=2)
        monitor.stop()
    table = case.rows(case.folders(tmp_path)[0], "grad_unreduced", 7)
    assert set(table["step"]) == {7} and sorted(set(table["micro_step"])) == [0, 1]


def test_the_old_call_without_an_optimizer_is_told(tmp_path, caplog):
    with case.output(tmp_path), caplog.at_level(logging.ERROR):
        monitor, model, optimizer = setup(tmp_path, WG)
        monitor.monitor_gnorm_with_ad(model, grad_acc_steps=1)
        case.steps(model, optimizer, 1)
        monitor.stop()
    assert "set_wrapped_optimizer" in caplog.text
    assert not case.folders(tmp_path)


@pytest.mark.parametrize("positional", [False, True])
def test_arguments_of_the_constructor(positional, tmp_path, caplog):
    path = case.config_file(tmp_path, WG)
    kind = "Megatron_DistributedOptimizer"
    with case.output(tmp_path), caplog.at_level(logging.WARNING):
        if positional:
            monitor = TrainerMon(path, None, False, kind)
        else:
            monitor = TrainerMon(
                config_file_path=path, process_group=None, params_have_main_grad=False, opt_ty=kind
            )
    assert monitor.params_have_main_grad is False and not caplog.records


def test_set_monitor_twice_watches_the_second(tmp_path):
    with case.output(tmp_path):
        monitor, model, optimizer = setup(tmp_path, WG)
        monitor.set_monitor(model, 1, optimizer)
        monitor.set_monitor(model, 1, optimizer)
        case.steps(model, optimizer, 2)
        monitor.stop()
    assert len(case.folders(tmp_path)) == 1
    table = case.rows(case.folders(tmp_path)[0], "grad_reduced")
    assert len(table) == 2 * 10 and sorted(set(table["step"])) == [0, 1]


def test_only_the_given_optimizer_counts(tmp_path):
    model, other = case.net(), nn.Linear(2, 2)
    optimizer, second = case.adam(model), case.adam(other)
    with case.output(tmp_path):
        monitor = case.trainer_mon(tmp_path, WG)
        monitor.set_monitor(model, 1, optimizer)
        for step in range(3):
            second.zero_grad()
            other(torch.ones(1, 2)).sum().backward()
            second.step()
            case.steps(model, optimizer, 1, first=step)
            second.step()
        monitor.stop()
    folder = case.folders(tmp_path)[0]
    assert sorted(set(case.rows(folder, "grad_reduced")["step"])) == [0, 1, 2]


def test_wrapped_optimizers_are_unwrapped(tmp_path):
    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    model = case.net()
    optimizer = case.adam(model)
    with case.output(tmp_path):
        monitor = case.trainer_mon(tmp_path, WG)
        monitor.set_monitor(model, 1, Wrapper(optimizer))
        case.steps(model, optimizer, 1)
        monitor.stop()
    assert "grad_reduced_0-0.csv" in case.csvs(case.folders(tmp_path)[0])


def test_a_step_that_a_gradient_scaler_skips_leaves_no_rows(tmp_path):
    model = case.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
    with case.output(tmp_path):
        config = {**WG, "param_distribution": True, "xy_distribution": True, "collect_times": 3}
        monitor = case.trainer_mon(tmp_path, config)
        monitor.set_monitor(model, 1, optimizer)
        for attempt in range(4):
            optimizer.zero_grad()
            loss = case.loss_of(model, attempt) * (float("inf") if attempt == 1 else 1)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        monitor.stop()
    folder = case.folders(tmp_path)[0]
    for prefix in ("grad_reduced", "grad_unreduced", "param_origin", "actv", "actv_grad"):
        table = case.rows(folder, prefix)
        assert sorted(set(table["step"])) == [0, 1, 2], prefix
        assert not table["norm"].isna().any()
        assert not table.duplicated(["name", "step"]).any()
    inputs = case.rows(folder, "actv").set_index(["name", "step"])["norm"]
    for step, index in enumerate((0, 2, 3)):
        assert inputs["layers.0.input", step] == pytest.approx(
            case.batch(index).norm().item(), abs=1e-5
        )


@versions.cpu_fused
def test_gradients_under_a_fused_optimizer_have_no_loss_scale_in_them(tmp_path):
    model = case.net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=3000.0)
    norms = []
    with case.output(tmp_path):
        monitor = case.trainer_mon(tmp_path, WG)
        monitor.set_monitor(model, 1, optimizer)
        for step in range(2):
            optimizer.zero_grad()
            scaler.scale(case.loss_of(model, step)).backward()
            norms.append({n: p.grad.norm().item() / 3000 for n, p in model.named_parameters()})
            scaler.step(optimizer)
            scaler.update()
        monitor.stop()
    table = case.rows(case.folders(tmp_path)[0], "grad_reduced")
    assert len(table) == sum(map(len, norms))
    for row in table.to_dict("records"):
        (name,) = (n for n in norms[0] if n.endswith(row["name"]))
        assert row["norm"] == pytest.approx(norms[row["step"]][name], abs=1e-6)


def test_unused_parameters_have_no_stale_rows(tmp_path):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.sometimes = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x, both):
            return self.used(x) + (self.sometimes(x) if both else 0)

    model = Two()
    config = {**WG, "xy_distribution": True, "all_xy": True}
    folder = case.run(
        tmp_path, config, 3, model=model, optimizer=torch.optim.SGD(model.parameters()),
        loss=lambda model, index: model(case.batch(index), index != 1).sum(),
    )  # fmt: skip
    for prefix in ("grad_reduced", "grad_unreduced", "actv", "actv_grad"):
        found = [set(case.names(case.rows(folder, prefix, step))) for step in range(3)]
        assert found[0] == found[2] and found[1] == {n for n in found[0] if "sometimes" not in n}


# --- questions -------------------------------------------------------------------------------------


def assert_metrics(found, tensors, ops):
    assert set(found) == set(tensors)
    for tag, metrics in found.items():
        assert list(metrics) == [*ops, "shape", "dtype"]
        assert metrics["shape"] == tensors[tag].shape and metrics["dtype"] is tensors[tag].dtype
        for op in ops:
            assert isinstance(metrics[op], torch.Tensor) and metrics[op].dim() == 0
            assert metrics[op].dtype is (torch.int64 if op == "nans" else torch.float64)
            assert metrics[op].item() == pytest.approx(case.oracle(tensors[tag], op), rel=1e-5)


@pytest.mark.parametrize("form", ["api", "csv"])
def test_generated_metrics(form, tmp_path):
    ops = ["norm", "min", "nans"]
    config = {**WG, "xy_distribution": True, "ops": ops, "format": form}
    twin = case.net()
    known = truth(twin, case.adam(twin), 2, case.loss_of, micro=2)
    asked = []
    with case.output(tmp_path):
        monitor, model, optimizer = setup(tmp_path, config)
        monitor.set_monitor(model, 2, optimizer)

        def ask(step):
            gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
            asked.append((monitor.generate_wgrad_metrics(), monitor.generate_xy_metrics()))
            assert all(torch.equal(p.grad, gradients[n]) for n, p in model.named_parameters())

        case.steps(model, optimizer, 2, micro=2, each=ask)
        monitor.stop()
    for values, ((reduced, unreduced), (actv, actv_grad)) in zip(known, asked):
        tags = {f"0:{name}/rank0/": tensor for name, tensor in values["grad"].items()}
        assert_metrics(reduced, {f"{t}post_grad": v for t, v in tags.items()}, ops)
        assert_metrics(unreduced, {f"{t}acc_grad": v for t, v in tags.items()}, ops)
        for kind, found in (("actv", actv), ("actv_grad", actv_grad)):
            wanted = {f"0:{n}:{micro}/rank0/{kind}": v for (n, micro), v in values[kind].items()}
            assert_metrics(found, wanted, ops)
    files = [name for folder in case.folders(tmp_path) for name in case.csvs(folder)]
    assert bool(files) == (form == "csv")


def test_metrics_before_and_after_there_are_any(tmp_path):
    with case.output(tmp_path):
        monitor, model, optimizer = setup(tmp_path, {**WG, "format": "api"})
        assert monitor.generate_wgrad_metrics() == ({}, {})
        monitor.set_monitor(model, 1, optimizer)
        assert monitor.generate_xy_metrics() == ({}, {})
        case.steps(model, optimizer, 1)
        after, _ = monitor.generate_wgrad_metrics()  # of the step that was taken
        assert "0:head.bias/rank0/post_grad" in after
        monitor.stop()
        assert monitor.generate_wgrad_metrics() == ({}, {})


def test_the_peers_argument_of_generate_wgrad_metrics_is_taken(tmp_path):
    with case.output(tmp_path):
        monitor, model, optimizer = setup(tmp_path, {**WG, "format": "api"})
        monitor.set_monitor(model, 1, optimizer)
        case.steps(model, optimizer, 1, each=lambda _: monitor.generate_wgrad_metrics({}))
        monitor.stop()


# --- changes ---------------------------------------------------------------------------------------


def test_ops_can_be_changed_while_training(tmp_path, caplog):
    config = {**WG, "ops": ["norm"], "step_count_per_record": 10}
    with case.output(tmp_path):
        monitor, model, optimizer = setup(tmp_path, config)
        monitor.set_monitor(model, 1, optimizer)
        case.steps(model, optimizer, 2)
        monitor.ops = ["min", "max"]
        case.steps(model, optimizer, 2, first=2)
        with pytest.raises(TypeError):
            monitor.ops = "norm"
        with caplog.at_level(logging.WARNING):
            monitor.ops = ["odd"]
        assert monitor.ops == ["norm", "shape", "dtype"] and "odd" in caplog.text
        monitor.stop()
    twin = case.net()
    known = truth(twin, case.adam(twin), 4, case.loss_of)
    folder, seen = case.folders(tmp_path)[0], {}
    for path in folder.glob("grad_reduced_*.csv"):
        table = pandas.read_csv(path)
        ops = list(table.columns)[3:-2]
        for _, row in table.iterrows():
            case.assert_row(row, known[row["step"]]["grad"][row["name"]], ops)
            seen.setdefault(row["step"], ops)
    assert seen == {0: ["norm"], 1: ["norm"], 2: ["min", "max"], 3: ["min", "max"]}


def test_reload_xy(tmp_path, caplog):
    with case.output(tmp_path), caplog.at_level(logging.WARNING):
        monitor, model, optimizer = setup(tmp_path, WG)
        monitor.set_monitor(model, 1, optimizer)
        case.steps(model, optimizer, 1)
        monitor.reload_xy(xy_distribution=True)
        case.steps(model, optimizer, 2, first=1)
        monitor.reload_xy()
        case.steps(model, optimizer, 1, first=3)
        monitor.stop()
    assert "reload_xy" in caplog.text
    tables = {}
    for folder in case.folders(tmp_path):
        for prefix in ("actv", "actv_grad", "grad_reduced"):
            if any(name.startswith(prefix + "_") for name in case.csvs(folder)):
                tables.setdefault(prefix, []).extend(case.rows(folder, prefix)["step"])
    assert sorted(set(tables["actv"])) == sorted(set(tables["actv_grad"])) == [1, 2]
    assert sorted(set(tables["grad_reduced"])) == [0, 1, 2, 3]
    assert len(case.folders(tmp_path)) == 1


@pytest.mark.parametrize("form", ["csv", "tensorboard"])
def test_the_summary_writer_can_be_closed(form, tmp_path):
    """Scripts close it at the end of a training; what was recorded so far is in the files then."""

    def steps_there():
        (folder,) = case.folders(tmp_path)
        if form == "csv":
            return [] if not case.csvs(folder) else list(case.rows(folder, "grad_reduced")["step"])
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(folder))
        events.Reload()
        tag = next(tag for tag in events.Tags()["scalars"] if tag.endswith("post_grad_norm"))
        return [event.step for event in events.Scalars(tag)]

    with case.output(tmp_path):
        monitor, model, optimizer = setup(tmp_path, {**WG, "format": form})
        monitor.summary_writer.close()  # before there is anything
        monitor.set_monitor(model, 1, optimizer)
        for count in (2, 1):
            case.steps(model, optimizer, count)
            monitor.summary_writer.flush()
            monitor.summary_writer.close()
            assert sorted(set(steps_there())) == list(range(2 if count == 2 else 3))
        monitor.stop()
        monitor.summary_writer.close()


@pytest.mark.parametrize("config", [{"collect_times": 1}, {"collect_times": 0}])
def test_reload_xy_does_not_bring_back_what_has_ended(config, tmp_path):
    with case.output(tmp_path):
        monitor, model, optimizer = setup(tmp_path, {**WG, **config})
        monitor.set_monitor(model, 1, optimizer)
        case.steps(model, optimizer, 1)
        monitor.reload_xy(True)
        case.steps(model, optimizer, 1, first=1)
        monitor.stop()
        monitor.reload_xy(True)
    found = [name for folder in case.folders(tmp_path) for name in case.csvs(folder)]
    assert found == ["grad_reduced_0-0.csv", "grad_unreduced_0-0.csv"] * config["collect_times"]


def test_numbers_of_numpy_and_two_optimizers(tmp_path):
    with case.output(tmp_path):
        monitor, model, optimizer = setup(tmp_path, WG)
        monitor.set_monitor(model, np.int64(2), optimizer, start_iteration=np.int64(3))
        assert (monitor._grad_acc_steps, monitor.step) == (2, 3)
        monitor.stop()
        with pytest.raises(TypeError, match="one optimizer"):
            monitor.set_monitor(model, 1, [optimizer, case.adam(model)])
    assert optimizer._optimizer_step_pre_hooks == {}


def test_what_keeps_a_monitor_can_be_copied(tmp_path):
    with case.output(tmp_path):
        monitor, model, optimizer = setup(tmp_path, WG)
        monitor.set_monitor(model, 1, optimizer)
        keeper = {"monitor": monitor, "model": model, "optimizer": optimizer}
        for copied in (copy.deepcopy(keeper), pickle.loads(pickle.dumps(keeper))):
            assert copied["monitor"] is None
            case.steps(copied["model"], case.adam(copied["model"]), 1)
        monitor.stop()
    assert not [n for folder in case.folders(tmp_path) for n in case.csvs(folder)]


def test_stop_ends_it_and_can_be_called_again(tmp_path):
    with case.output(tmp_path):
        monitor, model, optimizer = setup(tmp_path, WG)
        monitor.set_monitor(model, 1, optimizer)
        case.steps(model, optimizer, 1)
        monitor.stop()
        case.steps(model, optimizer, 1, first=1)
        monitor.stop()
    folder = case.folders(tmp_path)[0]
    assert case.csvs(folder) == ["grad_reduced_0-0.csv", "grad_unreduced_0-0.csv"]
    health = json.loads((folder / "health.json").read_text())
    assert health["parts_off"] == {} and health["rows_produced"] == 20
