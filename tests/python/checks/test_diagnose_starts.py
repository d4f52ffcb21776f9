"""`trainmon diagnose --all-restarts` of runs of several starts: each start has the answer that it has where no other
start is there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import numpy as np
import pytest
import torch

import launch
import trainmon
from written_run import WrittenRank

STARTS = 4


def train(out, first, last, fault=None, seed=0, **keys):
    """Steps `first` to `last` of a run; at `fault` a weight changes between two steps."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    keys = {"checks": True, "out": out, "start_iteration": first} | keys
    with trainmon.watch(model, optimizer, **keys):
        for step in range(first, last + 1):
            if step == fault:
                model[0].weight.data[0, 0] += 1e-2
            optimizer.zero_grad()
            model(torch.randn(5, 6)).pow(2).mean().backward()
            optimizer.step()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Start 0 goes wrong at step 9, start 1 (without checks) goes through that again, start 2 goes wrong at step 22
    and 23, start 3 begins before that."""
    out = tmp_path_factory.mktemp("starts") / "run"
    train(out, 0, 12, fault=9)
    train(out, 6, 18, seed=1, checks=False, kinds=["grads"])
    train(out, 15, 24, fault=22, seed=2)
    train(out, 20, 26, seed=3)
    return out


@pytest.fixture(scope="module")
def alone(run, tmp_path_factory):
    """What diagnose says of each start where the others are not there."""
    answers = []
    for restart in range(STARTS):
        place = f"rank_00000/restart_{restart:04d}"
        copy = tmp_path_factory.mktemp("alone") / "run"
        shutil.copytree(run / place, copy / place)
        answers.append(trainmon.diagnose(copy))
    return answers


def diagnosed(run, *more):
    return subprocess.run(
        [launch.command_line(), "diagnose", os.fspath(run), *more],
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_each_start_has_the_answer_that_it_has_alone(run, alone):
    answer = trainmon.diagnose(run, all_restarts=True)
    assert answer["findings"] == [one for of_start in alone for one in of_start["findings"]]
    assert answer["restarts"] == [
        {"restart": restart, "verdict": of_start["verdict"]}
        for restart, of_start in enumerate(alone)
    ]
    for check, times in answer["checked"].items():
        assert times == sum(of_start["checked"].get(check, 0) for of_start in alone), check
        by = answer["evidence"].get(check, {})
        for evidence, count in by.items():
            assert count == sum(
                of_start["evidence"].get(check, {}).get(evidence, 0) for of_start in alone
            )
    assert set(answer["checked"]) == set().union(*(of_start["checked"] for of_start in alone))
    found = [one["restart"] for one in answer["restarts"] if one["verdict"]]
    assert found == [0, 2], "as planted"
    assert [(one["verdict"]["check"], one["verdict"]["step"]) for one in answer["restarts"] if one["verdict"]] == [
        ("gap", 9), ("gap", 22),
    ]  # fmt: skip


def test_what_was_not_checked_names_its_starts(run, alone):
    answer = trainmon.diagnose(run, all_restarts=True)
    said = {(one["check"], one["why"]) for one in answer["not_checked"]}
    expected = {}
    for restart, of_start in enumerate(alone):
        for one in of_start["not_checked"]:
            expected.setdefault((one["check"], one["why"]), []).append(restart)
    assert ("replicas", "one rank") in said, "of all starts"
    for (check, why), restarts in expected.items():
        if len(restarts) == STARTS:
            assert (check, why) in said
        elif len(restarts) == 1:
            assert (check, f"{why}, in restart {restarts[0]}") in said
        else:
            assert any(
                one == check and text.startswith(f"{why}, in restarts ") for one, text in said
            )
    assert len(said) == len(expected)
    assert [why for check, why in said if check == "gap"] == [
        "not recorded, watch(..., checks=True) does it, in restart 1"
    ]


def test_the_verdict_is_of_the_earliest_step(run):
    answer = trainmon.diagnose(run, all_restarts=True)
    verdict = answer["verdict"]
    assert (verdict["restart"], verdict["step"], verdict["tensors"]) == (0, 9, ["0.weight"])
    assert trainmon.diagnose(run)["verdict"] is None, "its step was gone through again"
    assert "restarts" not in trainmon.diagnose(run)


def test_of_equal_steps_the_older_start_decides(tmp_path):
    train(tmp_path, 0, 8, fault=5)
    train(tmp_path, 2, 8, fault=5, seed=1)
    answer = trainmon.diagnose(tmp_path, all_restarts=True)
    assert answer["verdict"]["restart"] == 0
    assert trainmon.diagnose(tmp_path)["verdict"]["restart"] == 1
    train(tmp_path, 0, 8, fault=4, seed=2)
    assert trainmon.diagnose(tmp_path, all_restarts=True)["verdict"]["restart"] == 2


def test_the_text_names_what_other_starts_have(run):
    done = diagnosed(run, "--all-restarts")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "first wrong: step 9, restart 0, weights, rank 0, 0.weight"
    other = lines.index("first wrong in other starts:")
    assert lines[other + 1].startswith("  step 22, restart 2, weights, rank 0, 0.weight: ")
    assert lines[other + 2] == "nothing certainly wrong in restarts 1 3"
    assert "--steps 8:9 --all-restarts" in done.stderr
    assert json.loads(diagnosed(run, "--all-restarts", "--json").stdout) == trainmon.diagnose(
        run, all_restarts=True
    )
    assert diagnosed(run).returncode == 0


def test_sound_starts_are_counted(tmp_path):
    train(tmp_path, 0, 8)
    train(tmp_path, 4, 12, seed=1)
    done = diagnosed(tmp_path, "--all-restarts")
    assert done.returncode == 0
    first = done.stdout.splitlines()[0]
    assert first.startswith("nothing certainly wrong in ") and first.endswith(" rows of 2 starts")


def test_one_start_is_as_without(tmp_path):
    train(tmp_path, 0, 8, fault=5)
    answer = trainmon.diagnose(tmp_path, all_restarts=True)
    (start,) = answer.pop("restarts")
    assert start == {"restart": 0, "verdict": answer["verdict"]}
    assert answer == trainmon.diagnose(tmp_path)
    assert diagnosed(tmp_path, "--all-restarts").stdout == diagnosed(tmp_path).stdout


def test_a_selection_holds_for_each_start(run):
    answer = trainmon.diagnose(run, steps=(20, 24), all_restarts=True)
    assert [one["restart"] for one in answer["restarts"] if one["verdict"]] == [2]
    assert answer["verdict"]["step"] == 22
    # Start 1 has no row of this kind, and knows it all the same.
    answer = trainmon.diagnose(run, kinds="momentum_buffer", all_restarts=True)
    assert answer["verdict"] is None
    assert {"check": "all", "why": "no rows, in restart 1"} in answer["not_checked"]
    with pytest.raises(ValueError, match="unknown kind 'momentum_bufer'"):
        trainmon.diagnose(run, kinds="momentum_bufer", all_restarts=True)
    with pytest.raises(TypeError, match="all_restarts"):
        trainmon.diagnose(run, all_restarts="yes")


def test_starts_of_other_numbers_of_ranks(tmp_path):
    """Two ranks that differ at step 3, then one rank alone."""
    for rank in range(2):
        written = WrittenRank(tmp_path, rank, 2)
        for step in range(5):
            value = np.full(4, 1.0 + step + (rank == 1 and step == 3), np.float32)
            written.observe(value, "param_updated", "w", step, replication="identical")
            written.end_step()
        written.stop()
    written = WrittenRank(tmp_path, 0, 1)
    for step in range(5):
        value = np.full(4, 1.0 + step, np.float32)
        written.observe(value, "param_updated", "w", step, replication="identical")
        written.end_step()
    written.stop()
    answer = trainmon.diagnose(tmp_path, all_restarts=True)
    first, second = answer["restarts"]
    assert (first["verdict"]["check"], first["verdict"]["step"]) == ("replicas", 3)
    assert second == {"restart": 1, "verdict": None}
    assert {"check": "replicas", "why": "one rank, in restart 1"} in answer["not_checked"]


@pytest.mark.parametrize(("first", "second"), [(3, 2), (2, 3)])
def test_a_start_is_checked_with_the_ranks_that_it_has(tmp_path, first, second):
    """All ranks of it do the same to a weight, which is noticed; then one rank alone does, which is certain."""
    left = np.arange(1.0, 7.0, dtype=np.float32)
    for size, steps in ((first, range(6)), (second, range(6, 14))):
        begin = left
        for rank in range(size):
            written = WrittenRank(tmp_path, rank, world_size=size, checks=True)
            written.monitor.set_start_step(0, steps[0])
            w = begin.copy()
            for step in steps:
                if step == 9 or (step == 12 and rank == 1):
                    w[:2] += 1e-2
                how = {"window": step - steps[0], "replication": "identical"}
                written.observe(w, "param_origin", "w", **how)
                w -= np.float32(1e-3)
                written.observe(w, "param_updated", "w", **how)
                written.end_step()
            written.stop()
            left = w if rank == 0 else left
    answer = trainmon.diagnose(tmp_path)
    noticed = [one for one in answer["findings"] if not one["certain"]]
    assert [(one["step"], one["ranks"]) for one in noticed] == [(9, [*range(second)])]
    assert (answer["verdict"]["step"], answer["verdict"]["ranks"]) == (12, [1])
    assert answer["checked"]["replicas"] == 2 * 14


def start_of_rank(out, rank, begin, end, fault=None):
    """Eight steps from 0 on, as from one second to another; at `fault` a weight changes between two steps."""
    written = WrittenRank(out, rank, world_size=2, checks=True)
    weight = np.arange(1.0, 7.0, dtype=np.float32)
    for step in range(8):
        if step == fault:
            weight[0] += 1e-2
        written.observe(weight, "param_origin", "w", step)
        weight -= np.float32(1e-3)
        written.observe(weight, "param_updated", "w", step)
        written.end_step()
    written.stop()
    for name, key, second in (("run", "started", begin), ("health", "updated", end)):
        file = written.directory / f"{name}.json"
        said = json.loads(file.read_text())
        file.write_text(
            json.dumps({**said, key: f"2026-01-31T00:{second // 60:02}:{second % 60:02}Z"})
        )


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_died_before_it_recorded_in_the_first_start_is_checked_in_the_second(
    tmp_path, late
):
    """Its numbers are lower than those of the other ranks."""
    out = tmp_path / "run"
    start_of_rank(out, 1 - late, 0, 40)
    start_of_rank(out, 0, 100, 700, fault=5 if late == 0 else None)
    start_of_rank(out, 1, 101, 700, fault=5 if late == 1 else None)
    answer = trainmon.diagnose(out)
    verdict = answer["verdict"]
    assert (verdict["step"], verdict["ranks"], verdict["certain"]) == (5, [late], True)
    assert not [one for one in answer["not_checked"] if one["check"] == "all but finite"]


def test_steps_that_other_ranks_went_through_again_are_said_to_be_left_out(tmp_path):
    out = tmp_path / "run"
    start_of_rank(out, 0, 0, 90)
    start_of_rank(out, 1, 1, 91, fault=5)
    start_of_rank(out, 0, 100, 700)
    answer = trainmon.diagnose(out)
    assert answer["verdict"] is None
    assert {
        "check": "all but finite",
        "why": "rank 1 in 8 steps, the first 0: other ranks went through them again in a newer start",
    } in answer["not_checked"]


def test_values_of_a_start_hold_behind_the_steps_that_another_went_through_again(tmp_path):
    """Start 1 goes from 4 to 11, and start 2 from 2 to 7: of start 1 are steps 8 to 11."""
    out = tmp_path / "run"
    for first, last in ((0, 11), (4, 11), (2, 7)):
        train(out, first, last)
    table = trainmon.read_table(out).declared
    of_first = [i for i, restart in enumerate(table["restart"]) if restart == 1]
    assert {table["step"][i] for i in of_first} == {8}
    names = [table["name"][i] for i in of_first]
    assert len(names) == len(set(names)) and {"lr", "weight_decay", "momentum"} <= set(names)
    findings = trainmon.diagnose(out)["findings"]
    assert [one for one in findings if one["check"] == "update"] == []
