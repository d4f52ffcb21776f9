# Nothing of the adapter raises into training; what it says at start, on errors and at the end.
import json
import math
import os
import pathlib
import subprocess
import sys
import time
import types

import pytest
import torch
from torch import nn

import trainmon
from adapter_rows import healthy, keys, rows, run_json
from trainmon import monitor as monitor_module
from trainmon import volume
from trainmon.torch.hooks import backward
from trainmon.torch.measuring import late_values, ops
from trainmon.torch.modules import activations, elements
from trainmon.torch.parameters import sweeps
from trainmon.torch.steps import windows

KINDS = ["grads", "grad_unreduced", "weights", "moments", "activations"]


class Listed(nn.Module):
    def forward(self, x):
        return [x]


class First(nn.Module):
    def forward(self, given):
        return given[0]


def training(seed=0, middle=()):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), *middle, nn.Linear(4, 2))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def train(model, optimizer, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).pow(2).sum().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


# what fails -> (where it is, the part that goes off, a kind that goes on)
BREAKABLE = {
    "backward begins": (windows.Steps, "backward_begins", "gradients", "actv"),
    "enter": (backward.Backward, "enter", None, "grad_reduced"),
    "sweep": (sweeps.Sweeps, "read", "sweeps", "actv_grad"),
    "state": (sweeps.Sweeps, "read_state", "sweeps", "actv_grad"),
    "check": (sweeps.Sweeps, "check", "sweeps", "actv_grad"),
    "before step": (windows.Steps, "before_step", "steps", None),
    "after step": (windows.Steps, "after_step", "steps", None),
    "forward begins": (windows.Steps, "forward_begins", None, "grad_reduced"),
    "entered": (activations.Activations, "entered", "activations", "grad_reduced"),
    "left": (activations.Activations, "left", "activations", "grad_reduced"),
    "outputs": (elements, "of_output", None, "grad_reduced"),
    "series": (activations.Activations, "new_series", "activations", "grad_reduced"),
    "backward ended": (activations.Activations, "backward_ended", "backward", "grad_reduced"),
    "late values": (late_values.Late, "seal", "late values", "grad_reduced"),
}


@pytest.mark.parametrize("broken", BREAKABLE)
def test_an_error_of_ours_switches_one_part_off_and_nothing_else(
    broken, tmp_path, monkeypatch, capfd
):
    listed = Listed(), First()  # what is no plain tensor is taken apart in Python
    expected = train(*training(middle=listed))
    owner, name, part, goes_on = BREAKABLE[broken]
    calls = []

    def fail(*args, **kwargs):
        calls.append(1)
        raise ZeroDivisionError("planted")

    model, optimizer = training(middle=listed)
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path)
    monkeypatch.setattr(owner, name, fail)
    result = train(model, optimizer)
    monkeypatch.undo()
    for one, two in zip(expected, result):
        assert torch.equal(one, two)
    health = monitor.stop()
    assert calls and health["parts_off"]
    assert part is None or list(health["parts_off"]) == [part]
    assert all("ZeroDivisionError: planted" in why for why in health["parts_off"].values())
    said = [
        line for line in capfd.readouterr().err.splitlines() if "training is not affected" in line
    ]
    assert len(said) == len(health["parts_off"])
    if goes_on is not None:
        assert {step for (step,) in keys(tmp_path, "step", kind=goes_on)} == {0, 1, 2}
    else:  # rows that do not know their step are no use
        assert {step for (step,) in keys(tmp_path, "step")} == {0}


def test_a_part_fails_once(tmp_path, monkeypatch, capfd):
    model, optimizer = training()
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path)
    monkeypatch.setattr(activations.Activations, "left", lambda *a: 1 / 0)
    train(model, optimizer, 5)
    assert monitor.stop()["errors"] == 1
    assert capfd.readouterr().err.count("activations failed") == 1


def test_the_users_interrupt_is_not_swallowed(tmp_path, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    model, optimizer = training()
    with trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path):
        monkeypatch.setattr(activations.Activations, "left", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(model, optimizer)


def test_methods_after_stop_do_nothing(tmp_path):
    model, optimizer = training()
    monitor = trainmon.watch(model, optimizer, out=tmp_path)
    train(model, optimizer)
    health = monitor.stop()
    assert monitor.stop() == health == monitor.health()
    monitor.log(loss=1.0)
    monitor.pause()
    monitor.resume()
    assert isinstance(monitor.latest(), list) and isinstance(monitor.summary(), dict)
    train(model, optimizer)
    assert monitor.health()["rows_produced"] == health["rows_produced"]


# --- pause ---------------------------------------------------------------------------------------


def test_pause_and_resume_between_steps(tmp_path):
    model, optimizer = training()
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path)
    hooks = len(model[0]._forward_hooks)
    for step in range(6):
        monitor.pause() if step % 2 else monitor.resume()
        train(model, optimizer, 1)
        assert len(model[0]._forward_hooks) == hooks
    healthy(monitor)
    for kind in ("grad_unreduced", "grad_reduced", "param_updated", "exp_avg", "actv", "actv_grad"):
        assert {s for (s,) in keys(tmp_path, "step", kind=kind)} == {0, 2, 4}
    assert {(m, c) for m, c in keys(tmp_path, "micro_step", "call")} == {(0, 0)}


# --- what is said --------------------------------------------------------------------------------


def test_one_rank_of_several_does_not_speak_for_the_others(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    model, optimizer = training()
    monitor = trainmon.watch(model, optimizer, out=tmp_path / "run")
    train(model, optimizer)
    monitor.stop()
    end = capfd.readouterr().err.splitlines()[-1]
    assert end.endswith(f"; nothing found on rank 0 of 2; next: trainmon diagnose {tmp_path}/run")


def test_one_line_at_start_and_one_at_the_end(tmp_path, capfd):
    model, optimizer = training()
    monitor = trainmon.watch(model, optimizer, out=tmp_path / "run")
    (start,) = capfd.readouterr().err.splitlines()
    assert start.startswith(f"trainmon: watching grad_reduced into {tmp_path}/run, about ")
    assert "a day at one step a second" in start
    train(model, optimizer)
    monitor.stop()
    (end,) = capfd.readouterr().err.splitlines()
    assert end == (
        f"trainmon: 12 rows written, 0 dropped; nothing found; next: trainmon top {tmp_path}/run"
    )


def test_what_selects_nothing_is_said_at_the_start(tmp_path, capfd):
    model, optimizer = training()
    names = {"include": ["0", "layer.1"], "exclude": ["**.bais", "0.bias"], "ranks": [0, 7]}
    monitor = trainmon.watch(model, optimizer, out=tmp_path, **names)
    (start,) = capfd.readouterr().err.splitlines()
    assert "ranks 7 do not exist: there are 1" in start
    why = "no parameter or module has such a name"
    assert f"not covered: exclude '**.bais' ({why}), include 'layer.1' ({why})" in start
    monitor.stop()
    assert set(run_json(monitor)["not_covered"]) == {"exclude '**.bais'", "include 'layer.1'"}


def test_a_pattern_of_the_end_of_a_name_is_suggested_from_the_root(tmp_path, capfd):
    model = torch.nn.ModuleDict({"h": torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(2))})
    outer = torch.nn.ModuleDict({"transformer": model})
    optimizer = torch.optim.SGD(outer.parameters(), lr=0.1)
    monitor = trainmon.watch(outer, optimizer, out=tmp_path, include=["h.1", "transformer.h.0"])
    monitor.stop()
    why = run_json(monitor)["not_covered"]["include 'h.1'"]
    assert "did you mean '**.h.1'?" in why and "begin at the root" in why


def test_something_found_leads_to_first_bad(tmp_path, capfd):
    model, optimizer = training()
    monitor = trainmon.watch(model, optimizer, out=tmp_path)
    model(torch.full((1, 3), math.nan)).sum().backward()
    optimizer.step()
    monitor.stop()
    lines = capfd.readouterr().err.splitlines()
    (first,) = [line for line in lines if "first non-finite value" in line]
    assert "step 0" in first
    assert f"next: trainmon diagnose {tmp_path}" in lines[-1]


@pytest.mark.parametrize(
    "settings, why",
    [
        ({"include": ["nothing.like.this"]}, "include and exclude leave no parameter"),
        ({"instead": nn.ReLU()}, "the model given has no parameters"),
        ({"instead": training()[0]}, "none of the optimizer's parameters is in the model given"),
        ({"backward": False}, "no watched parameter had a gradient when the optimizer stepped"),
        ({"step": False}, "no optimizer has stepped"),
        ({"start_step": 100}, "start_step=100 was not reached"),
    ],
)
def test_when_nothing_is_recorded_it_says_why(settings, why, tmp_path, capfd):
    settings = dict(settings)
    model, optimizer = training()
    watched = settings.pop("instead", model)
    run_backward, run_step = settings.pop("backward", True), settings.pop("step", True)
    monitor = trainmon.watch(watched, optimizer, out=tmp_path, **settings)
    for _ in range(3):
        loss = model(torch.randn(2, 3)).sum()
        if run_backward:
            loss.backward()
        if run_step:
            optimizer.step()
    monitor.stop()
    told = [line for line in capfd.readouterr().err.splitlines() if "NOTHING WAS RECORDED" in line]
    assert len(told) == 1 and why in told[0]


def test_too_much_a_day_is_refused_by_name_and_size(tmp_path):
    model, optimizer = training()
    before = dict(model[0]._forward_hooks)
    settings = {"kinds": KINDS, "grad_acc_steps": 3000, "out": tmp_path / "run"}
    with pytest.raises(ValueError, match=r"about [0-9.]+ (GB|TB) a day.*allow_volume=True"):
        trainmon.watch(model, optimizer, **settings)
    assert not (tmp_path / "run").exists() and dict(model[0]._forward_hooks) == before
    trainmon.watch(model, optimizer, allow_volume=True, **settings).stop()
    trainmon.watch(model, optimizer, sinks=[], **settings).stop()
    with pytest.raises(ValueError, match=r"about [0-9.]+ (GB|TB) a day.*allow_volume=True"):
        trainmon.watch(model, optimizer, sinks=["csv"], **settings)


@pytest.mark.parametrize("ranks", ["", "two", "-3"])
def test_a_launcher_whose_variable_is_no_number_is_none(ranks, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", ranks)
    model, optimizer = training()
    trainmon.watch(model, optimizer, out=tmp_path / "run").stop()
    assert (tmp_path / "run" / "rank_00000").exists()


def test_a_fast_run_that_writes_too_much_is_told(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(volume, "MOST_PER_DAY", 50e6)
    model, optimizer = training()
    with trainmon.watch(model, optimizer, out=tmp_path):
        train(model, optimizer, monitor_module.STEPS_TO_TIME)
        told = [line for line in capfd.readouterr().err.splitlines() if "steps a second" in line]
    assert len(told) == 1 and "`every`" in told[0]


def test_values_without_a_name_are_said_and_counted(tmp_path, caplog):
    model, optimizer = training()
    with trainmon.watch(model, optimizer, out=tmp_path) as monitor:
        for name in ("\ud800x", 1, b"loss"):
            monitor.log({name: 1.0, "loss": 2.0})
    for name in (r"'\ud800x'", "1", "b'loss'"):
        assert f"log() does not record {name}: a name is a text that UTF-8 can hold" in caplog.text
    health = json.loads((tmp_path / "rank_00000/restart_0000/health.json").read_text())
    assert health["scalars_dropped"] == {"no_number": 3}
    assert trainmon.read_table(tmp_path).scalars["value"].tolist() == [2.0] * 3


def test_log_latest_and_summary(tmp_path, caplog):
    model, optimizer = training()
    with trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path) as monitor:
        for step in range(2):
            optimizer.zero_grad()
            for _ in range(2):
                model(torch.randn(5, 3)).pow(2).sum().backward()
            gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
            loss = {"loss": torch.tensor(2.5)}  # by name, or in a dict as W&B takes it
            monitor.log(loss, bad="text") if step else monitor.log(**loss, bad="text")
            monitor.log([2.5])  # neither is no error of the training
            optimizer.step()
            monitor.log(step_twice=2 * step)
        deadline = time.monotonic() + 10  # rows pass through the writer thread
        while not any(r["kind"] == "exp_avg" and r["step"] == 1 for r in monitor.latest()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        latest, summary = monitor.latest(), monitor.summary()
    assert "log(bad=...) takes a number" in caplog.text
    path = f"{monitor.directory}/rank_00000/restart_0000/health.json"
    health = json.loads(pathlib.Path(path).read_text())
    assert health["scalars_dropped"] == {"no_number": 2}
    assert "log() takes numbers by name, or a dict of them, not list" in caplog.text
    reduced = {r["name"]: r for r in latest if r["kind"] == "grad_reduced"}
    assert {r["step"] for r in latest} == {1} and reduced.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert reduced[name]["norm"] == pytest.approx(float(gradient.double().norm()), rel=1e-9)
    every = torch.cat([g.flatten() for g in gradients.values()]).double()
    for kind in ("grad_reduced", "grad_unreduced"):
        assert summary[f"{kind}/norm"] == pytest.approx(float(every.norm()), rel=1e-9)
    largest = max(float(g.double().norm()) for g in gradients.values())
    assert summary["grad_reduced/largest"] == pytest.approx(largest, rel=1e-9)
    assert len(summary) <= 20 and summary["non_finite"] == 0
    assert all(type(value) is float for value in summary.values())
    scalars = trainmon.read_table(str(tmp_path)).scalars
    assert (list(scalars["name"]), list(scalars["step"]), list(scalars["value"])) == (
        ["loss", "step_twice"] * 2,
        [0, 0, 1, 1],
        [2.5, 0, 2.5, 2],
    )


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"model": 3}, "model must be a torch.nn.Module, a list or a dict of them, not int"),
        ({"model": []}, "model must be .* not an empty list"),
        ({"model": [nn.Linear(1, 1), None]}, "model must be .* not Linear, NoneType"),
        ({"optimizer": [None]}, "optimizer must be a torch.optim.Optimizer.* not NoneType"),
        ({"optimizer": {}}, "optimizer must be .* not empty"),
        ({"optimizer": [types.SimpleNamespace()]}, "optimizer must be .* not SimpleNamespace"),
        ({"scaler": 1024.0}, "scaler must be a torch.amp.GradScaler, not float"),
        ({"config": 3}, "config must be a dict or the path of a JSON file, not int"),
        ({"kinds": object()}, "kinds must be"),
    ],
)
def test_a_wrong_type_is_named(arguments, message, tmp_path):
    model, optimizer = training()
    with pytest.raises(TypeError, match=message):
        trainmon.watch(**{"model": model, "optimizer": optimizer, "out": tmp_path, **arguments})


def test_every_fault_of_a_config_is_named_at_once(tmp_path):
    model, optimizer = training()
    with pytest.raises(trainmon.ConfigError) as error:
        trainmon.watch(model, optimizer, out=tmp_path, every=0, kindz=["grads"], eps=-1)
    text = str(error.value)
    assert all(word in text for word in ("every", "kindz", "kinds", "eps"))
    with pytest.raises(ValueError, match="clock"):
        trainmon.watch(model, optimizer, out=tmp_path, clock=1)


def test_settings_by_dict_file_and_keyword_are_one(tmp_path):
    model, optimizer = training()
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"every": 2, "kinds": ["weights"]}))
    for config in (str(file), file, {"every": 2, "kinds": ["weights"]}):
        out = tmp_path / f"run{len(os.listdir(tmp_path))}"
        with trainmon.watch(model, optimizer, config=config, kinds=["grads"], out=out):
            train(model, optimizer, 4)
        assert {s for (s,) in keys(out, "step", kind="grad_reduced")} <= {0, 2, 4, 6, 8, 10, 12}
        assert len(rows(out, name="0.bias")) == 2
        assert {k for (k,) in keys(out, "kind")} == {"grad_reduced"}


# --- the end of the process ----------------------------------------------------------------------

SCRIPT = """
import sys, torch, trainmon
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
monitor = trainmon.watch(model, optimizer, kinds=["grads", "actv"], out=sys.argv[1])
for step in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("end", ["", "raise ValueError", "raise SystemExit(3)"])
def test_the_end_of_the_process_stops_the_monitor(end, tmp_path):
    command = [sys.executable, "-c", SCRIPT + end, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == {"": 0, "raise ValueError": 1}.get(end, 3)
    assert "12 rows written, 0 dropped" in done.stderr
    assert {s for (s,) in keys(tmp_path, "step")} == {0, 1, 2}


def test_watching_loads_nothing_heavy(tmp_path):
    script = SCRIPT + (
        "heavy = {'torch._dynamo', 'torch.distributed.fsdp', 'torch.distributed.tensor'}\n"
        "import torch as t\n"
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    script = script.replace("monitor =", "before = set(sys.modules)\nmonitor =", 1)
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


def test_operations_are_not_used_on_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(ops, "measure", lambda *a: 1 / 0)
    model, optimizer = training()
    with trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path) as monitor:
        train(model, optimizer)
    healthy(monitor)
