"""A short part of `make faults`: planted faults are found where the witness saw them, clean twins are
not accused, and the score would tell if that were otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import launch

FAULTS = Path(__file__).resolve().parents[3] / "faults"
sys.path.insert(0, os.fspath(FAULTS))
import score  # noqa: E402


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("faults")
    program = [os.fspath(FAULTS / "campaign.py"), os.fspath(out), "ddp2_adamw_clip", "20261125"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        + [*program, "--forks=1", "--faults=14"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return out


def scored(runs: Path) -> list[score.Scored]:
    found = []
    for place in sorted(runs.glob("[0-9]*")):
        truth = json.loads((place / "truth.json").read_text())
        answer = score.diagnosed(launch.command_line(), place)
        found.append(score.Scored(truth, answer, score.first_step(place)))
    return found


def test_faults_are_found_where_the_witness_saw_them(runs):
    faults = scored(runs)
    assert len(faults) == 14 and all(one.happened for one in faults)
    for one in faults:
        if one.exact:
            said = (one.fault, one.meant, one.verdict)
            assert one.right_step and one.right_stage, said
            assert one.among_tensors and one.in_ranks, said


def test_a_clean_twin_is_not_accused(runs):
    answer = score.diagnosed(launch.command_line(), runs / "clean_0")
    assert answer["verdict"] is None and answer["findings"] == []
    assert answer["checked"]["reduce"] > 500 and answer["checked"]["gap"] > 500


def test_the_score_tells_a_wrong_answer_from_a_right_one(runs):
    truths = {
        place: json.loads((place / "truth.json").read_text())
        for place in sorted(runs.glob("[0-9]*"))
    }
    place, truth = next(
        (place, one) for place, one in truths.items() if one["exact"] and one["seen"]["tensors"]
    )
    answer = score.diagnosed(launch.command_line(), place)
    begin = score.first_step(place)
    assert score.Scored(truth, answer, begin).right_step
    assert not score.Scored(truth, answer, begin + 1).right_step
    answer["verdict"]["tensors"] = ["norm.bias"]
    assert not score.Scored(truth, answer, begin).among_tensors
    truth["seen"]["step"] += 1
    assert not score.Scored(truth, answer, begin).happened


def test_clean_records_are_asked_about_and_counted(tmp_path):
    program = [os.fspath(FAULTS / "clean.py"), os.fspath(tmp_path), "one_adamw_clip", "5", "60"]
    command = [sys.executable, *program, "--trainmon", launch.command_line()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    (record,) = map(json.loads, (tmp_path / "clean.jsonl").read_text().splitlines())
    assert (record["setting"], record["steps"], record["verdict"]) == ("one_adamw_clip", 60, None)
    assert record["checked"]["input"] == 60 and record["checked"]["norm"] == 60
    assert not (tmp_path / record["run"]).exists()  # nothing to look at
    (line,) = score.clean_text([record])
    assert "one_adamw_clip 60" in line
