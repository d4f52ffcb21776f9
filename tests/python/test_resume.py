# Promise 5 when a run goes on from a checkpoint: rows have their true step, whenever it is killed.
import json
import signal

import pytest

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
