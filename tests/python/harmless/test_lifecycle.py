# Promise 2 around the life of a process: forks, every way to end, several monitors, odd handling.
import copy
import io
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
import torch

import launch
import lifecycle_run
import models
import trainmon

KINDS = ["grads", "grad_unreduced", "weights", "moments", "activations"]
STEPS = lifecycle_run.STEPS


def rows(out, **keys):
    return trainmon.read_table(str(out), **keys)


def assert_whole_run(table, steps=STEPS):
    """Every step has the same rows, and sequence numbers have no hole."""
    assert set(table["step"].tolist()) == set(range(steps))
    counts = np.bincount(np.asarray(table["step"]))
    assert set(counts[1:].tolist()) == {int(counts[1])} and counts[0] == counts[1]
    assert_no_hole(table)


def assert_no_hole(table):
    sequence = np.sort(np.asarray(table["seq"], dtype=np.int64))
    assert len(sequence) and (np.diff(sequence) == 1).all() and sequence[0] <= 1


def run_until_end(ending, out, timeout=200):
    process = launch.start("lifecycle_run.py", ending, out)
    return launch.finish(process, timeout)


@pytest.mark.parametrize(
    "ending, code",
    [
        ("stop", 0),
        ("no_stop", 0),
        ("no_reference", 0),
        ("daemon_thread", 0),
        ("exception", 1),
        ("sys_exit", 3),
        ("in_context", 1),
        ("fork_after_stop", 0),
    ],
)
def test_an_ordinary_end_loses_nothing(ending, code, tmp_path):
    ended = run_until_end(ending, tmp_path)
    assert ended.code == code, ended.err
    assert ("Boom" in ended.err) == (code == 1)
    assert_whole_run(rows(tmp_path))


def test_os_exit_loses_at_most_the_last_flush(tmp_path):
    ended = run_until_end("os_exit", tmp_path)
    assert ended.code == 0, ended.err
    try:
        table = rows(tmp_path)
    except Exception:  # the run was shorter than one flush interval: nothing need be there
        return
    if len(table["seq"]):
        assert_no_hole(table)


def test_what_was_sealed_survives_kill_after_one_flush_interval(tmp_path):
    ended = run_until_end("hold", tmp_path)
    assert ended.code == -signal.SIGKILL and "held" in ended.out, ended.err
    assert_whole_run(rows(tmp_path))


def test_an_exception_in_backward_keeps_the_fatal_step(tmp_path):
    ended = run_until_end("exception_in_backward", tmp_path)
    assert ended.code == 1 and "in backward" in ended.err, ended.err
    table = rows(tmp_path)
    assert_no_hole(table)
    last = table["step"] == STEPS - 2
    kinds = set(table["kind"][last].tolist())
    # Forward is whole, backward got as far as the embedding: its own gradient is not there.
    assert {"actv", "actv_grad", "grad_unreduced"} <= kinds
    assert not kinds & {"grad_reduced", "param_origin", "param_updated"}
    names = table["name"][last & (table["kind"] == "grad_unreduced")].tolist()
    assert "head.weight" in names and "tokens.weight" not in names


@pytest.mark.parametrize("sent, code", [(signal.SIGINT, 1), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_ends_it_as_without_a_monitor(sent, code, tmp_path):
    process = launch.start("lifecycle_run.py", "forever", tmp_path)
    for line in process.stdout:
        if line.startswith("step 20"):
            break
    began = time.monotonic()
    process.send_signal(sent)
    ended = launch.finish(process, 30)
    assert time.monotonic() - began < 15, "ended late"
    # Python turns an uncaught KeyboardInterrupt into death by SIGINT.
    assert ended.code == (-signal.SIGINT if code == 1 else code), ended.err
    if sent == signal.SIGINT:
        assert "KeyboardInterrupt" in ended.err
        table = rows(tmp_path)
        assert_no_hole(table)
        assert set(range(21)) <= set(table["step"].tolist())


def caught_signals():
    """Those with a handler; without 32 and 33, which glibc takes when the first thread starts."""
    mask = pathlib.Path("/proc/self/status").read_text().split("SigCgt:")[1].split()[0]
    return {n for n in range(1, 65) if int(mask, 16) >> (n - 1) & 1} - {32, 33}


def test_signal_handlers_stay(tmp_path):
    numbers = sorted(signal.valid_signals())
    before = [signal.getsignal(n) for n in numbers]
    caught = caught_signals()
    model, optimizer = training()
    monitor = watch(model, optimizer, tmp_path)
    assert [signal.getsignal(n) for n in numbers] == before
    assert caught_signals() == caught
    monitor.stop()


@pytest.mark.parametrize("ending", ["workers", "workers_use_model"])
def test_data_loader_workers(ending, tmp_path):
    ended = run_until_end(ending, tmp_path)
    assert ended.code == 0, ended.err
    assert_whole_run(rows(tmp_path))


def test_forked_children_write_nothing(tmp_path):
    ended = run_until_end("fork", tmp_path)
    assert ended.code == 0, ended.err
    assert_whole_run(rows(tmp_path))  # a child's rows would repeat sequence numbers


def test_a_forked_child_waits_for_no_lock_of_another_thread(tmp_path):
    ended = launch.finish(launch.start("fork_with_locks.py", tmp_path / "run"), timeout=120)
    assert (ended.code, ended.out.strip()) == (0, "0"), ended.err
    table = rows(tmp_path / "run")
    assert table.damage == [] and set(table["step"].tolist()) == set(range(4))


def test_every_lock_is_free_in_a_forked_child():
    made = pathlib.Path(trainmon.__file__).parent.rglob("*.py")
    found = {one.name for one in made if re.search(r"threading\.R?Lock\(", one.read_text())}
    assert found == {"locks.py"}


def test_a_closed_standard_error_gives_its_descriptor_to_no_file_of_the_run(tmp_path):
    assert run_until_end("closed_stderr", tmp_path).code == 0
    table = rows(tmp_path)
    assert table.damage == []
    assert_whole_run(table)


def test_two_monitors_of_one_process_in_a_directory_are_said(tmp_path, capfd):
    """As where a cell of a notebook runs again. Both record, and neither takes the other's hooks for the user's."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = tmp_path / "run"
    monitors = [trainmon.watch(model, optimizer, out=run) for _ in range(2)]
    for _ in range(3):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    for monitor in monitors:
        monitor.stop()
    said = capfd.readouterr().err
    assert said.count(f"another monitor of this process still writes to {run}") == 1
    assert "step_pre_hook" not in said
    assert len(trainmon.read(run, all_restarts=True)) == 2 * 3 * 2
    trainmon.watch(model, optimizer, out=run).stop()
    assert "another monitor" not in capfd.readouterr().err


def test_a_second_live_run_in_a_directory_is_refused(tmp_path):
    first = launch.start("lifecycle_run.py", "forever", tmp_path)
    for line in first.stdout:
        if line.startswith("step 2"):
            break
    second = run_until_end("stop", tmp_path)
    assert second.code == 1
    assert f"process {first.pid} on " in second.err and "still writing" in second.err
    first.kill()
    launch.finish(first, 30)
    assert run_until_end("stop", tmp_path).code == 0
    assert set(rows(tmp_path, all_restarts=True)["restart"].tolist()) == {0, 1}


def training(name="gpt", seed=3):
    models.seed(seed)
    model = models.build(name)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def watch(model, optimizer, out, **keys):
    return trainmon.watch(model, optimizer, **{"kinds": KINDS, "every": 1, "out": str(out), **keys})


def step_of(model, optimizer, name="gpt"):
    data, target = models.draw(name)
    models.loss_of(model(data), target).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("first_to_stop", [0, 1])
def test_two_monitors_on_one_model(first_to_stop, tmp_path):
    model, optimizer = training()
    outs = [tmp_path / "a", tmp_path / "b"]
    monitors = [watch(model, optimizer, out) for out in outs]
    for _ in range(3):
        step_of(model, optimizer)
    monitors[first_to_stop].stop()
    for _ in range(3):
        step_of(model, optimizer)
    monitors[1 - first_to_stop].stop()
    short, long = rows(outs[first_to_stop]), rows(outs[1 - first_to_stop])
    assert_whole_run(short, 3)
    assert_whole_run(long, 6)
    early = long["step"] < 3
    for column in ("kind", "name", "element", "norm"):
        assert short[column].tolist() == long[column][early].tolist()


def test_two_models_two_monitors(tmp_path):
    pairs = [training("gpt"), training("cnn")]
    monitors = [watch(*pair, tmp_path / str(i)) for i, pair in enumerate(pairs)]
    for _ in range(3):
        for pair, name in zip(pairs, ("gpt", "cnn")):
            step_of(*pair, name)
    for index, (monitor, pair) in enumerate(zip(monitors, pairs)):
        monitor.stop()
        table = rows(tmp_path / str(index))
        assert_whole_run(table, 3)
        known = {n for n, _ in pair[0].named_parameters()} | {n for n, _ in pair[0].named_modules()}
        assert set(table["name"].tolist()) <= known


def test_a_gan_with_two_optimizers(tmp_path):
    models.seed(1)
    model = torch.nn.ModuleDict({"g": torch.nn.Linear(4, 4), "d": torch.nn.Linear(4, 1)})
    generator = torch.optim.Adam(model["g"].parameters())
    critic = torch.optim.SGD(model["d"].parameters(), lr=0.1, momentum=0.9)
    monitor = watch(model, [generator, critic], tmp_path)
    for _ in range(6):
        for _ in range(2):  # the critic steps twice as often
            model["d"](model["g"](torch.randn(8, 4)).detach()).mean().backward()
            critic.step()
            critic.zero_grad()
        model["d"](model["g"](torch.randn(8, 4))).mean().backward()
        generator.step()
        generator.zero_grad()
        critic.zero_grad()
    monitor.stop()
    table = rows(tmp_path, kinds=["grad_reduced", "exp_avg", "momentum_buffer"])
    owner = dict(zip(table["name"].tolist(), table["optimizer"].tolist()))
    assert owner == {"g.weight": 0, "g.bias": 0, "d.weight": 1, "d.bias": 1}
    steps = {o: set(table["step"][table["optimizer"] == o].tolist()) for o in (0, 1)}
    assert steps == {0: set(range(6)), 1: set(range(12))}
    states = set(zip(table["name"].tolist(), table["kind"].tolist()))
    assert ("g.weight", "exp_avg") in states and ("d.weight", "momentum_buffer") in states
    assert ("d.weight", "exp_avg") not in states


def test_copies_and_pickles_of_a_watched_model(tmp_path):
    model, optimizer = training()
    with watch(model, optimizer, tmp_path):
        step_of(model, optimizer)
        twin = copy.deepcopy(model)
        target = io.BytesIO()
        torch.save(model, target)
        torch.save(optimizer.state_dict(), io.BytesIO())
        target.seek(0)
        loaded = torch.load(target, weights_only=False)
        for other in (twin, loaded):
            data, labels = models.draw("gpt")
            models.loss_of(other(data), labels).backward()
        step_of(model, optimizer)
    table = rows(tmp_path)
    assert_whole_run(table, 2)  # nothing of the copies was recorded


def test_warnings_are_none(tmp_path):
    """Schedulers warn when optimizer.step was replaced; torch warns of odd hooks."""
    model, optimizer = training()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor = watch(model, optimizer, tmp_path)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for _ in range(3):
            step_of(model, optimizer)
            scheduler.step()
        monitor.stop()


def test_a_stopped_monitor_is_harmless(tmp_path):
    model, optimizer = training()
    monitor = watch(model, optimizer, tmp_path)
    step_of(model, optimizer)
    monitor.stop()
    monitor.stop()
    monitor.log(loss=1.0)
    assert isinstance(monitor.summary(), dict)
    monitor.latest()
    step_of(model, optimizer)
    assert set(rows(tmp_path)["step"].tolist()) == {0}


def test_watching_again_in_the_same_directory_is_a_restart(tmp_path):
    model, optimizer = training()
    for _ in range(3):
        with watch(model, optimizer, tmp_path):
            for _ in range(2):
                step_of(model, optimizer)
    table = rows(tmp_path, all_restarts=True)
    assert set(table["restart"].tolist()) == {0, 1, 2}
    # The optimizer's own step count carries the timeline on.
    assert set(table["step"].tolist()) == set(range(6))


def test_importing_loads_no_framework():
    code = "import sys, trainmon; print(sorted({'torch', 'numpy', 'mindspore'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_no_descriptor_reaches_a_child_program(tmp_path):
    model, optimizer = training()
    with watch(model, optimizer, tmp_path):
        step_of(model, optimizer)
        listing = subprocess.run(
            ["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True, text=True
        )
    assert listing.stdout and str(tmp_path) not in listing.stdout
    assert os.listdir(tmp_path)
