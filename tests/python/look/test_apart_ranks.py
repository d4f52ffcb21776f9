"""Ranks with the same weights, of which one computes otherwise from a step on: rows written by hand, beside NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import trainmon
from test_report import command, report
from written_run import WrittenRank

STEPS, BEGIN = 300, 180


def diagnosed(out, ranks, change, replication="union"):
    """Activations of two modules; change(step, rank) is added to those of the second one."""
    random = np.random.default_rng(2)
    all_ranks = [WrittenRank(out, number, ranks) for number in range(ranks)]
    means = np.empty((STEPS, ranks))
    for step in range(STEPS):
        learned = 0.2 * np.sin(step / 100)  # which all ranks do
        for number, rank in enumerate(all_ranks):
            for name in ("first", "second", "third"):
                batch = random.standard_normal(400) + learned
                if name != "first":
                    batch = batch + change(step, number)
                if name == "second":
                    means[step, number] = batch.mean() / np.sqrt(np.square(batch).mean())
                rank.observe(batch, "actv", name, step, element="output", replication=replication)
            rank.end_step()
    for rank in all_ranks:
        rank.stop()
    return trainmon.diagnose(out)["left_history"], means


def from_begin(rank, size):
    return lambda step, number: size if number == rank and step >= BEGIN else 0.0


@pytest.mark.parametrize("ranks, wrong", [(2, 0), (2, 1), (4, 0), (4, 2), (4, 3)])
def test_the_rank_the_step_and_the_line_are_named(tmp_path, ranks, wrong):
    left, means = diagnosed(tmp_path / "run", ranks, from_begin(wrong, 0.12))
    assert (left["rank"], left["ranks"], left["name"], left["kind"]) == (
        wrong,
        [wrong],
        "second",
        "actv",
    )
    assert abs(left["step"] - BEGIN) <= 6
    assert abs(left["beside"] - wrong) == 1 and left["measure"] == "mean"
    difference = means[:, wrong] - means[:, left["beside"]]
    assert left["norm"] == pytest.approx(difference[left["step"] :].mean(), rel=1e-3)
    assert left["before"] == pytest.approx(difference[: left["step"]].mean(), rel=0.2, abs=0.01)
    said = command("diagnose", tmp_path / "run").stdout
    assert f"more than that on rank {left['beside']} in the mean of" in said
    assert f"rank {wrong} changed more, and both hold the same weights" in said
    page, _ = report(tmp_path / "run", tmp_path / "a.html", check=0)
    assert page.report["diagnosis"]["left_history"] == left


def test_what_all_ranks_do_is_nothing(tmp_path):
    left, _ = diagnosed(tmp_path / "run", 3, lambda step, number: 0.12 if step >= BEGIN else 0.0)
    assert left is None


def test_ranks_that_always_differ_or_part_slowly_are_nothing(tmp_path):
    left, _ = diagnosed(tmp_path / "own", 2, lambda step, number: 0.3 * number)
    assert left is None
    left, _ = diagnosed(tmp_path / "slow", 2, lambda step, number: 0.001 * step * number)
    assert left is None


def test_ranks_with_other_modules_or_weights_are_not_compared(tmp_path):
    left, _ = diagnosed(tmp_path / "run", 2, from_begin(1, 0.12), replication="independent")
    assert left is None


def test_noise_is_nothing(tmp_path):
    for seed in range(3):
        random = np.random.default_rng(seed)
        left, _ = diagnosed(
            tmp_path / str(seed), 2, lambda step, number, r=random: 0.05 * r.standard_t(3)
        )
        assert left is None
