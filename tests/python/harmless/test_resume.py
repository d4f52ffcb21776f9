# Promise 5 when a run goes on from a checkpoint: rows have their true step, whenever it is killed.
import json
import signal
import subprocess

import pytest
import torch

import launch
import trainmon
from resume_run import STEPS


@pytest.mark.parametrize("loaded", ["before", "after"])
def test_a_kill_in_the_first_step_after_a_resume_hides_no_other_step(loaded, tmp_path):
    run, checkpoint = tmp_path / "run", tmp_path / "checkpoint"
    first = launch.finish(launch.start("resume_run.py", "first", run, checkpoint), 60)
    assert first.code == 0, first.err
    resumed = launch.finish(launch.start("resume_run.py", loaded, run, checkpoint), 60)
    assert resumed.code == -signal.SIGKILL, resumed.err
    facts = json.loads((run / "rank_00000" / "restart_0001" / "run.json").read_text())
    assert facts["start_steps"] == [STEPS]
    table = trainmon.read_table(str(run))
    starts = {(int(s), int(r)) for s, r in zip(table["step"], table["restart"], strict=True)}
    assert starts == {*((step, 0) for step in range(STEPS)), (STEPS, 1)}
    # The NaN of the first start's first step is not hidden by rows taken for that step.
    found = trainmon.first_bad(str(run))
    assert (found.step, found.restart) == (0, 0)


def test_a_loss_that_was_logged_before_any_row_of_its_step_hides_no_row(tmp_path):
    """A start that ends between log() and backward(): out of memory, say."""
    for start, (first, last) in enumerate([(0, 6), (3, 3)]):
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with trainmon.watch(model, optimizer, out=tmp_path / "run", start_iteration=first) as mon:
            for step in range(first, last + 1):
                loss = model(torch.randn(3, 4)).square().mean()
                mon.log(loss=start + step / 10)
                if start == 1:
                    break
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    table = trainmon.read_table(str(tmp_path / "run"))
    assert {(int(s), int(r)) for s, r in zip(table["step"], table["restart"])} == {
        (step, 0) for step in range(7)
    }
    scalars = zip(*(table.scalars[column] for column in ("name", "step", "value")), strict=True)
    logged = {int(step): float(value) for name, step, value in scalars if name == "loss"}
    assert logged == {0: 0.0, 1: 0.1, 2: 0.2, 3: 1.3, 4: 0.4, 5: 0.5, 6: 0.6}


def test_a_restart_that_begins_at_step_0_again_is_said(tmp_path, caplog):
    said = []
    for start in (None, None, 2):
        caplog.clear()
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with trainmon.watch(model, optimizer, out=tmp_path / "run", start_iteration=start):
            for _ in range(2):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        said.append(caplog.text.count("restart 1 of this run begins at step 0"))
    assert said == [0, 1, 0]


def test_a_copy_by_hard_links_stays_as_it_is(tmp_path):
    """As `cp -al` and `rsync --link-dest` make it: what is written in place to one is in both."""
    run, copy = tmp_path / "run", tmp_path / "copy"

    def train():
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.AdamW(model.parameters())
        sinks = ["log", "csv", "sqlite"]
        with trainmon.watch(model, optimizer, every=1, out=run, sinks=sinks, recorder_mb=1):
            for _ in range(3):
                model(torch.ones(2, 3)).sum().backward()
                optimizer.step()

    train()
    subprocess.run(["cp", "-al", run, copy], check=True)
    of_log = [file for file in copy.rglob("*") if file.is_file() and "rank_" in str(file)]
    before = {file: file.read_bytes() for file in of_log}
    assert any(file.name == "lock" for file in before)
    train()
    assert {file: file.read_bytes() for file in before} == before
    assert len(list(run.glob("rank_00000/restart_*"))) == 2
