# ColossalAIMonitor in one process: its manual's script, every value against NumPy, its end.
import copy
import json
import math
import os
import pathlib
import pickle
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import compat_colossalai_case as case
import marks
import trainmon
from compat_colossalai_case import assert_files, loss_of, made, net, read, train
from trainmon.compat.colossalai import ColossalAIMonitor

# Absolute, for programs started in other folders.
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(trainmon.__file__)))

MANUAL = """
import torch
from trainmon.compat.colossalai.monitor import ColossalAIMonitor

torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

monitor = ColossalAIMonitor("{config}")
monitor.monitor(model)  # hooks

for step in range(2):
    optimizer.zero_grad()
    loss = model(torch.randn(3, 4)).square().mean()
    loss.backward()
    optimizer.step()
    monitor.step_end(model)

monitor.stop()
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(*command, folder="."):
    environment = {**os.environ, "PYTHONPATH": PACKAGE}
    ended = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


# --- the manual's script -------------------------------------------------------------------------


def test_the_manuals_script_writes_beside_itself(tmp_path):
    folder, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    folder.mkdir(), elsewhere.mkdir()
    config = folder / "monitor_config.json"
    stats = ["front", "max", "min", "mean"]  # as the manual lists them
    config.write_text(json.dumps({"stats": stats, "parallel_mode": "dp", "output_dir": "."}))
    (folder / "train.py").write_text(MANUAL.format(config=config))
    said = run(folder / "train.py", folder=elsewhere)
    assert "'front'" in said
    local, reduced = read(folder)
    assert [r[:3] for r in reduced] == [(s, 0, n) for s in (0, 1) for n in ("weight", "bias")]
    assert {r[:3] for r in local} == {r[:3] for r in reduced}
    assert os.listdir(elsewhere) == []
    assert str(folder / "grad_stats_local.csv") in said


def test_without_a_script_files_are_in_the_working_folder(tmp_path):
    run("-c", MANUAL.replace('"{config}"', ""))
    assert len(read(tmp_path)[0]) == 4


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("clear", ["begin", "end", "never"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_every_statistic_of_every_step(micro, clear, set_to_none, tmp_path):
    monitor, model = ColossalAIMonitor(), net()
    seen = train(monitor, model, 3, micro, clear, set_to_none)
    monitor.stop()
    assert_files(tmp_path, seen)
    local, reduced = read(tmp_path)
    assert {r[0] for r in local} == {r[0] for r in reduced} == {0, 1, 2}
    assert len(local) == 3 * micro * 4
    used = {"first.weight", "first.bias", "second.weight", "second.bias"}
    assert {r[2] for r in local} == {r[2] for r in reduced} == used


class Held(nn.Module):
    """Its gradient is whatever it is told to be."""

    def __init__(self, gradient):
        super().__init__()
        self.gradient = gradient
        self.value = nn.Parameter(torch.zeros_like(gradient))

    def forward(self):
        class Given(torch.autograd.Function):
            @staticmethod
            def forward(ctx, value):
                return value.new_zeros(())

            @staticmethod
            def backward(ctx, _):
                return self.gradient

        return Given.apply(self.value)


numbers = st.floats(width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e-45, 3e38])


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(numbers, max_size=40),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    st.sampled_from(["contiguous", "strided", "expanded", "reversed"]),
)
def test_any_gradient(values, dtype, layout):
    gradient = torch.tensor(values, dtype=torch.float64).to(dtype)
    if layout == "strided":
        gradient = gradient.repeat_interleave(3)[::3]
    elif layout == "expanded":
        gradient = gradient[:, None].expand(-1, 3)
    elif layout == "reversed" and gradient.numel() % 2 == 0:
        gradient = gradient.view(2, -1).T
    for name in ("grad_stats_local.csv", "grad_stats_global.csv"):
        if os.path.exists(name):
            os.remove(name)
    monitor, model = ColossalAIMonitor(), Held(gradient)
    monitor.monitor(model)
    model().backward()
    monitor.step_end(model)
    monitor.stop()
    (local,), (reduced,) = read(pathlib.Path())
    for row in (local, reduced):
        assert row[:3] == (0, 0, "value")
        case.assert_is(row[3], model.value.grad)


def test_half_precision_does_not_overflow(tmp_path):
    monitor, model = ColossalAIMonitor(), Held(torch.full((100,), 60000.0, dtype=torch.float16))
    monitor.monitor(model)
    model().backward()
    assert model.value.grad.norm() == math.inf  # what the peer writes
    monitor.step_end(model)
    monitor.stop()
    ((*_, values),), _ = read(tmp_path)
    assert values["norm"] == pytest.approx(10 * 59999.0, rel=1e-3)


# --- lifecycle -----------------------------------------------------------------------------------


def test_a_peers_file_is_continued(tmp_path):
    (tmp_path / "grad_stats_local.csv").write_bytes(
        b"step,rank,param_name,norm,mean,max,min\r\n7,1,old,1.0,0.5,nan,-1e-05\r\n7,1,ol"
    )
    monitor, model = ColossalAIMonitor(), net()
    seen = train(monitor, model)
    monitor.stop()
    local, _ = read(tmp_path)
    assert local[0][:3] == (7, 1, "old")
    case.assert_rows(local[1:], seen.local)


def test_stop_and_step_end_at_any_time(tmp_path, caplog):
    monitor, model = ColossalAIMonitor(), net()
    monitor.stop()
    monitor.step_end(model), monitor.step_end(model)
    assert caplog.text.count("step_end() without monitor(model)") == 1
    seen = train(monitor, model)
    monitor.stop()
    monitor.stop()
    monitor.step_end(model)
    assert monitor.global_step == 3
    assert_files(tmp_path, seen)
    model = net()
    more = train(monitor, model, steps=2)  # another model, later
    assert monitor.global_step == 5
    train(monitor, net(), steps=1)  # and one in its place
    monitor.stop()
    local, reduced = read(tmp_path)
    assert [r[0] for r in reduced[::4]] == [0, 1, 2, 3, 4, 5]
    for row, (_, name, gradient) in zip(local[12:20], more.local, strict=True):
        assert row[2] == name and case.assert_is(row[3], gradient)


def test_a_module_that_comes_or_goes_has_rows_while_it_is_there(tmp_path):
    """Its own, also where a new tensor has the address of one that is gone."""
    monitor, model, seen = made(), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), []
    monitor.monitor(model)
    for step in range(9):
        if step == 3:
            model[0] = nn.Identity()
        elif step == 6:
            model[0] = nn.Sequential(*(nn.Linear(4, 4) for _ in range(50)))
        model.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        seen += [(step, name, p.grad.clone()) for name, p in model.named_parameters()]
        monitor.step_end(model)
    monitor.stop()
    for rows in read(tmp_path):
        found = {(row[0], row[2]): row[3] for row in rows}
        assert len(found) == len(rows)
        assert set(found) == {(step, name) for step, name, _ in seen}
        for step, name, gradient in seen:
            assert case.assert_is(found[step, name], gradient)


def test_two_monitors_at_once(tmp_path):
    model = net()
    one = made(output_file_local="one.csv", output_file_global="one_global.csv")
    two = made(output_file_local="two.csv", output_file_global="two_global.csv")
    one.monitor(model)
    seen = train(two, model)
    one.step_end(model)
    one.stop(), two.stop()
    case.assert_rows(case.rows(tmp_path / "two.csv"), seen.local)
    assert {r[0] for r in case.rows(tmp_path / "one.csv")} == {0}  # its step ended once
    assert len(case.rows(tmp_path / "one.csv")) == len(seen.local)


def test_two_monitors_in_one_folder_are_said_and_each_has_its_health(tmp_path, caplog):
    one, two, model, other = ColossalAIMonitor(), ColossalAIMonitor(), net(), net()
    one.monitor(model)
    assert "at work" not in caplog.text
    seen = train(two, other, steps=2)
    assert caplog.text.count("another ColossalAIMonitor of rank 0 is at work") == 1
    two.stop()
    one.stop()
    runs = tmp_path / "grad_stats_runs"
    written = {
        name: json.loads((runs / name / "health.json").read_text())["sinks"][0]["rows_written"]
        for name in ("rank0", "rank0.2")
    }
    assert written == {"rank0": 0, "rank0.2": len(seen.local) + len(seen.reduced)}
    one.monitor(net())
    one.stop()
    assert caplog.text.count("is at work") == 1


def test_a_folder_that_vanishes_for_good_costs_rows_not_training(tmp_path, capfd):
    monitor, model = made(output_dir="out"), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor.monitor(model)
    for step in range(6):
        if step == 2:
            monitor._watch._core.settle(10.0)
            shutil.rmtree(tmp_path / "out")
            (tmp_path / "out").write_text("a file now")
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step_end(model)
    watch = monitor._watch
    monitor.stop()
    (sink,) = watch.health()["sinks"]
    assert sink["rows_written"] + sum(sink["rows_dropped"].values()) == 6 * 8
    assert sum(sink["rows_dropped"].values()) >= 4 * 8
    said = capfd.readouterr().err
    assert "cannot write" in said and "rows of rank 0 are missing" in said


def test_gradients_that_are_not_measured_are_counted(tmp_path, capfd):
    """Sparse ones; the peer raises in the middle of the backward."""
    monitor, model = ColossalAIMonitor(), nn.Embedding(5, 3, sparse=True)
    monitor.monitor(model)
    model(torch.tensor([1, 4])).sum().backward()
    monitor.step_end(model)
    monitor.stop()
    assert read(tmp_path) == [[], []]
    assert "2 rows of rank 0 are missing" in capfd.readouterr().err


def test_copies_and_pickles_leave_it_behind():
    monitor, model = ColossalAIMonitor(), net()
    monitor.monitor(model)
    model.monitor = monitor
    assert copy.deepcopy(model).monitor is None
    assert pickle.loads(pickle.dumps(monitor)) is None
    del model.monitor
    monitor.stop()


def trail(watched, tmp_path):
    """Every number of a training run, and what is left on its objects."""
    random.seed(7), np.random.seed(7), torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    monitor = ColossalAIMonitor() if watched else None
    if watched:
        monitor.monitor(model)
    found = []
    for _ in range(4):
        for _ in range(2):
            loss = model(torch.randn(6, 4)).square().mean()
            loss.backward()
            found.append(loss.detach().clone())
        found += [p.grad.clone() for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        if watched:
            monitor.step_end(model)
        found += [p.detach().clone() for p in model.parameters()]
        found += [v.clone() for p in model.parameters() for v in optimizer.state[p].values()]
        found += [torch.get_rng_state(), torch.tensor(random.getstate()[1])]
        found.append(torch.tensor(np.random.get_state()[1].astype(np.int64)))
    if watched:
        monitor.stop()
        assert len(read(tmp_path)[1]) == 16
    return found, marks.of_objects(model, [optimizer])


def test_training_is_bit_identical_and_nothing_stays(tmp_path):
    bare, bare_left = trail(False, tmp_path)
    code = marks.of_code()
    watched, left = trail(True, tmp_path)
    assert len(bare) == len(watched)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(bare, watched))
    assert left == bare_left
    assert marks.changed(code, marks.of_code())[0] == []
