"""A run is started again, and one rank loads another checkpoint than the others: `diagnose` names the rank, both
steps and what differs."""

from __future__ import annotations

import pytest

import launch
import trainmon

OLD, SAVED = 10, 15
NAMES = ("resumed", "older", "older_late", "older_moments", "count_alone", "no_optimizer")
BY_HAND = ("by_hand_resumed", "by_hand_older")
# name: the step of the last rank, what differs, whether it is certain
APART = {
    "older": (OLD, "moments", True),
    "older_late": (OLD, "weights before the step, moments", True),
    "count_alone": (OLD, "weights after the step", True),
    "no_optimizer": (0, "moments", True),
    "by_hand_older": (OLD, "weights before the step, moments", False),
}


@pytest.fixture(scope="module", params=[2, 3])
def runs(tmp_path_factory, request):
    out = tmp_path_factory.mktemp(f"resumed_{request.param}")
    launch.run("resumed_run.py", out, *NAMES, *BY_HAND, ranks=request.param)
    assert (out / "done.json").exists()
    return out, request.param


@pytest.mark.parametrize("name", APART)
@pytest.mark.parametrize("all_restarts", [False, True])
def test_a_rank_that_resumes_from_another_step_is_named(name, all_restarts, runs):
    out, ranks = runs
    step, what, is_certain = APART[name]
    answer = trainmon.diagnose(str(out / name), all_restarts=all_restarts)
    (one,) = (one for one in answer["findings"] if "began this start" in one["text"])
    assert (one["restart"], one["step"], one["stage"]) == (1, SAVED, "start")
    assert one["certain"] == is_certain and (answer["verdict"] == one) == is_certain, answer
    assert one["ranks"] == ([0, 1] if ranks == 2 else [2]), one
    assert f"step {step} on rank {ranks - 1}" in one["text"], one
    assert one["text"].endswith(f"They differ in {what}"), one
    if ranks == 2:
        assert one["one_of_ranks"]


def test_all_from_one_step_is_nothing(runs):
    out, _ = runs
    for name in ("resumed", "by_hand_resumed"):
        answer = trainmon.diagnose(str(out / name))
        assert answer["verdict"] is None and answer["findings"] == [], answer


def test_older_moments_of_a_newer_count_are_noticed(runs):
    out, _ = runs
    answer = trainmon.diagnose(str(out / "older_moments"))
    first = min(answer["findings"], key=lambda one: one["step"])
    assert (first["check"], first["stage"], first["step"]) == ("replicas", "moments", SAVED)
