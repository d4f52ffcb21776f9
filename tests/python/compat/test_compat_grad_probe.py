# PrecisionDebugger of the compatible face: every field of the manual, the files it documents, its faults.
import json

import pytest
import torch
from torch import nn
from torch.optim import optimizer as hooks

import launch
from grad_probe_case import (
    Gradients,
    Still,
    assert_numbers,
    assert_signs,
    config_file,
    crc32,
    md5,
    net,
    shares,
    steps,
    summary,
)
from grad_probe_case import train as train_with
from trainmon.compat.msprobe.pytorch import PrecisionDebugger
from trainmon.compat.msprobe.pytorch.debugger import precision_debugger

PEER = torch.tensor([[-2.0, 2.0], [0.2, 0.3]])  # of the peer's own tests
MARK = "\ufeff"


@pytest.fixture(autouse=True)
def stopped():
    yield
    if PrecisionDebugger._instance is not None:
        PrecisionDebugger._instance._paired = False
        PrecisionDebugger.stop()
    PrecisionDebugger._instance = None
    assert not hooks._global_optimizer_pre_hooks


def train(model, count=1, optimizer=None):
    return train_with(model, optimizer or torch.optim.SGD(model.parameters(), lr=0.1), count)


def probed(folder, gradients, block=None, **fields):
    """The text of the summary of one step of these gradients."""
    model = Gradients(**gradients)
    debugger = PrecisionDebugger(config_file(folder, block, **fields))
    debugger.monitor(model)
    Still(model.parameters()).step()
    debugger.stop()
    return (folder / "dump" / "rank0" / "grad_summary_0.csv").read_bytes().decode()


# --- the files -----------------------------------------------------------------------------------


def test_the_manuals_script_and_directories(tmp_path):
    config = {
        "task": "grad_probe",
        "dump_path": str(tmp_path / "dump_path"),
        "rank": [],
        "step": [],
        "grad_probe": {"grad_level": "L1", "param_list": [], "bounds": [-1, 0, 1]},
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    model = net()
    debugger = PrecisionDebugger(str(path))
    debugger.monitor(model)
    seen = train(model, 3)
    debugger.stop()
    folder = tmp_path / "dump_path" / "rank0"
    assert steps(folder) == [0, 1, 2]
    names = [name for name, _ in model.named_parameters()]
    for step, gradients in enumerate(seen):
        assert sorted(p.name for p in (folder / f"step{step}").iterdir()) == sorted(
            f"{name}.npy" for name in names
        )
        lines = summary(folder, step)
        assert list(lines) == names
        for name, gradient in gradients.items():
            assert_numbers(lines[name], gradient)
            assert_signs(folder, step, name, gradient)


def test_level_0(tmp_path):
    assert probed(tmp_path, {"w": PEER}, {"grad_level": "L0"}) == (
        MARK + "param_name,MD5,max,min,norm,shape\r\n"
        f'w,{md5(PEER)},2.0,-2.0,2.851315498352051,"[2, 2]"\r\n'
    )
    assert not (tmp_path / "dump" / "rank0" / "step0").exists()


def test_level_0_with_the_digest_of_newer_peers(tmp_path):
    text = probed(tmp_path, {"w": PEER}, {"grad_level": "L0", "digest": "crc32"})
    assert crc32(PEER) == "e2863940"
    assert text == (
        MARK + "param_name,MD5,max,min,norm,shape\r\n"
        'w,e2863940,2.0,-2.0,2.851315498352051,"[2, 2]"\r\n'
    )


def test_level_1_is_the_default(tmp_path):
    text = 'w,2.0,-2.0,2.851315498352051,"[2, 2]"\r\n'
    assert probed(tmp_path, {"w": PEER}) == MARK + "param_name,max,min,norm,shape\r\n" + text
    assert_signs(tmp_path / "dump" / "rank0", 0, "w", PEER)


def test_level_2_and_bounds(tmp_path):
    head = 'param_name,"(-inf, -1]","(-1, 0]","(0, 1]","(1, inf)",=0,max,min,norm,shape\r\n'
    line = 'w,0.25,0.0,0.5,0.25,0.0,2.0,-2.0,2.851315498352051,"[2, 2]"\r\n'
    assert probed(tmp_path, {"w": PEER}, {"grad_level": "L2"}) == MARK + head + line
    manual = torch.tensor([9.3, 5.4, -1.0, -12.3])
    bounds = [-10, 0, 10]
    (tmp_path / "manual").mkdir()
    probed(tmp_path / "manual", {"w": manual}, {"grad_level": "L2", "bounds": bounds})
    line = summary(tmp_path / "manual" / "dump" / "rank0", 0)["w"]
    assert [line[k] for k in ("(-inf, -10]", "(-10, 0]", "(0, 10]", "(10, inf)")] == [
        repr(count / 4) for count in (1, 1, 2, 0)
    ]


@pytest.mark.parametrize("bounds", [[], [0.5], [-0.01, 1e-05, 2, 2**62]])
def test_headings_and_values_stay_together(tmp_path, bounds):
    gradient = torch.tensor([0.0, -0.0, 1e-5, 0.5, float("nan"), float("inf"), -3.0])
    probed(tmp_path, {"w": gradient}, {"grad_level": "L2", "bounds": bounds})
    line = summary(tmp_path / "dump" / "rank0", 0)["w"]  # as many values as headings
    edges = ["-inf", *(json.dumps(bound) for bound in bounds), "inf"]
    headings = [f"({low}, {high}]" for low, high in zip(edges, edges[1:])]
    headings[-1] = headings[-1][:-1] + ")"
    assert list(line)[1:-4] == [*headings, "=0"]
    values = [float(line[heading]) for heading in (*headings, "=0")]
    assert values == shares(gradient, bounds)
    assert [line[k] for k in ("max", "min", "norm")] == ["nan", "nan", "nan"]


def test_empty_gradients_and_norms_beyond_the_dtype(tmp_path):
    probed(
        tmp_path,
        {"empty": torch.zeros(0, 3), "narrow": torch.full((9,), 6e4).half()},
        {"grad_level": "L2"},
    )
    lines = summary(tmp_path / "dump" / "rank0", 0)
    assert lines["empty"]["max"] == lines["empty"]["min"] == "nan"
    assert lines["empty"]["shape"] == "[0, 3]" and lines["empty"]["norm"] == "0.0"
    assert float(lines["narrow"]["norm"]) == pytest.approx(3 * 6e4, rel=1e-6)  # the peer: inf


def test_dump_path_that_exists(tmp_path, caplog):
    folder = tmp_path / "dump" / "rank0"
    folder.mkdir(parents=True)
    (folder / "grad_summary_0.csv").write_text("old")
    (folder / "grad_summary_7.csv").write_text("old")
    text = probed(tmp_path, {"w": PEER})
    assert "exists" in caplog.text and "old" not in text
    assert (folder / "grad_summary_7.csv").read_text() == "old"


# --- which gradients -----------------------------------------------------------------------------


def test_step_rank_and_param_list(tmp_path, caplog):
    model = net()
    block = {"param_list": ["0.weight", "no.such"]}
    path = config_file(tmp_path, block, step=[0, "2-3", 5], rank=[3, "5-7"])
    debugger = PrecisionDebugger(path)
    debugger.monitor(model)
    train(model, 7)
    debugger.stop()
    folder = tmp_path / "dump" / "rank0"  # the rank filter is for several processes
    assert steps(folder) == [0, 2, 3, 5]
    assert list(summary(folder, 5)) == ["0.weight"]
    assert "'no.such'" in caplog.text


def test_the_argument_step_replaces_that_of_the_file(tmp_path):
    model = net()
    debugger = PrecisionDebugger(config_file(tmp_path, step=[0]), step=["1-2"])
    debugger.monitor(model)
    train(model, 4)
    debugger.stop()
    assert steps(tmp_path / "dump" / "rank0") == [1, 2]


def test_a_parameter_without_a_gradient_stops_nothing(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    debugger = PrecisionDebugger(config_file(tmp_path))
    debugger.monitor(model)
    model[0].weight.requires_grad_(False)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
        model[0].weight.requires_grad_(True)
    debugger.stop()
    assert "0.weight" not in summary(tmp_path / "dump" / "rank0", 0)
    assert "0.weight" in summary(tmp_path / "dump" / "rank0", 1)


def test_main_grad_comes_first(tmp_path):
    model = net()
    model[2].bias.main_grad = torch.full((4,), -3.0)
    debugger = PrecisionDebugger(config_file(tmp_path))
    debugger.monitor(model)
    train(model)
    debugger.stop()
    assert summary(tmp_path / "dump" / "rank0", 0)["2.bias"]["max"] == "-3.0"


def test_two_optimizers_count_for_themselves(tmp_path):
    model, other = net(), net()
    optimizers = [
        torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2], other)
    ]
    debugger = PrecisionDebugger(config_file(tmp_path))
    debugger.monitor(model)
    seen = []
    for _ in range(3):
        for net_ in (model, other):
            net_.zero_grad()
            net_(torch.randn(2, 6)).square().sum().backward()
        seen.append({n: p.grad.clone() for n, p in model.named_parameters()})
        for optimizer in optimizers:
            optimizer.step()
    debugger.stop()
    folder = tmp_path / "dump" / "rank0"
    assert steps(folder) == [0, 1, 2]  # the peer counts nine, and writes every gradient nine times
    for step, gradients in enumerate(seen):
        lines = summary(folder, step)
        assert sorted(lines) == sorted(gradients)
        for name, gradient in gradients.items():
            assert_numbers(lines[name], gradient)


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp2"])
def test_two_ranks(tmp_path, wrapper):
    path = config_file(tmp_path, {"grad_level": "L2"})
    launch.run("compat_grad_probe_run.py", path, tmp_path, wrapper, ranks=2, timeout=180)
    for rank in (0, 1):
        seen = torch.load(tmp_path / f"seen{rank}.pt")
        folder = tmp_path / "dump" / f"rank{rank}"
        assert steps(folder) == [0, 1, 2]
        for step, gradients in enumerate(seen):
            lines = summary(folder, step)
            assert list(lines) == list(gradients)
            assert all(name.startswith("module.") == (wrapper == "ddp") for name in lines)
            for name, gradient in gradients.items():
                assert_numbers(lines[name], gradient)
                assert_signs(folder, step, name, gradient)


def test_ranks_are_chosen(tmp_path):
    path = config_file(tmp_path, rank=["1-3"])
    launch.run("compat_grad_probe_run.py", path, tmp_path, "ddp", ranks=2, timeout=180)
    assert [p.name for p in (tmp_path / "dump").iterdir()] == ["rank1"]


# --- the object ----------------------------------------------------------------------------------


def test_there_is_one_until_it_is_stopped(tmp_path, caplog):
    assert precision_debugger.PrecisionDebugger is PrecisionDebugger
    with pytest.raises(RuntimeError, match="PrecisionDebugger instance is not created."):
        PrecisionDebugger.monitor(net())
    first = PrecisionDebugger(config_file(tmp_path))
    (tmp_path / "b").mkdir()
    assert PrecisionDebugger(config_file(tmp_path / "b")) is first
    assert "holds until stop()" in caplog.text
    model = net()
    PrecisionDebugger.monitor(model)  # of the class, as in the peer
    train(model, 1)
    PrecisionDebugger.stop()
    train(model, 1)
    PrecisionDebugger.stop()
    assert steps(tmp_path / "dump" / "rank0") == [0]
    second = PrecisionDebugger(config_file(tmp_path / "b"))
    assert second is not first
    second.monitor(model)
    train(model, 2)
    second.stop()
    assert steps(tmp_path / "b" / "dump" / "rank0") == [0, 1]


def test_start_stop_and_step_around_every_step_end_nothing(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    debugger = PrecisionDebugger(config_file(tmp_path))
    debugger.monitor(model)
    for _ in range(3):
        debugger.start()
        train(model, 1, optimizer)
        debugger.stop()
        debugger.step()
    debugger._probe.flush()
    assert steps(tmp_path / "dump" / "rank0") == [0, 1, 2]


def test_monitor_again_takes_the_new_model(tmp_path, caplog):
    model, other = net(), nn.Linear(6, 2)
    debugger = PrecisionDebugger(config_file(tmp_path))
    debugger.monitor(model)
    debugger.monitor(other)
    assert "the new model" in caplog.text and len(hooks._global_optimizer_pre_hooks) == 1
    train(other)
    debugger.stop()
    assert list(summary(tmp_path / "dump" / "rank0", 0)) == ["weight", "bias"]


def test_a_monitor_call_that_fails_leaves_the_first(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    debugger = PrecisionDebugger(config_file(tmp_path))
    debugger.monitor(model)
    with pytest.raises(TypeError, match="must be a torch.nn.Module, not SGD"):
        debugger.monitor(optimizer)
    train(model, 2, optimizer)
    debugger.stop()
    assert steps(tmp_path / "dump" / "rank0") == [0, 1]


def test_a_rank_that_does_not_exist_is_said(tmp_path, caplog):
    debugger = PrecisionDebugger(config_file(tmp_path, rank=[5]))
    debugger.monitor(net())
    assert "ranks 5: there is one process, of rank 0" in caplog.text


def test_other_tasks_do_nothing_but_warn(tmp_path, caplog):
    debugger = PrecisionDebugger(config_file(tmp_path, task="statistics", level="L1"))
    debugger.monitor(net())
    assert "task is 'statistics'" in caplog.text
    assert not (tmp_path / "dump").exists() and not hooks._global_optimizer_pre_hooks


def test_the_file_wins_over_arguments(tmp_path, caplog):
    path = config_file(tmp_path)
    debugger = PrecisionDebugger(path, task="statistics", dump_path=str(tmp_path / "else"))
    debugger.monitor(net())
    assert debugger.task == "grad_probe"
    assert (tmp_path / "dump").exists() and not (tmp_path / "else").exists()
    assert "of the configuration holds" in caplog.text


def test_traced_models_are_refused_by_name(tmp_path):
    debugger = PrecisionDebugger(config_file(tmp_path))
    traced = torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(TypeError, match="torch.jit.trace.*TopLevelTracedModule"):
        debugger.monitor(traced)
    with pytest.raises(TypeError, match="must be a torch.nn.Module, not int"):
        debugger.monitor(3)
    assert not hooks._global_optimizer_pre_hooks
