"""What is most unusual in its own history: `trainmon top` beside NumPy, and the page beside both."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import trainmon
from test_report import command, report
from written_run import WrittenRank

STEPS = 60


def distance(values, at):
    """Of the value at this place from its history, and the median before it, by NumPy."""
    so_far = np.abs(values[: at + 1])
    if not np.any(so_far > 0):
        return 0.0, 0.0
    zero = np.log10(so_far[so_far > 0].min()) - 1
    with np.errstate(divide="ignore"):
        sizes = np.log10(so_far)
    logs = np.maximum(sizes, zero)
    before = logs[max(0, at - 16) : at]
    center = np.median(before)
    spread = max(1.4826 * np.median(np.abs(before - center)), 0.01)
    usual = 10 ** np.median(sizes[max(0, at - 16) : at])  # 0 where that is the median
    return abs(logs[at] - center) / spread, usual


def scored(values):
    """The largest distance from the history, its step, and the median before it."""
    best = (math.nan, None, math.nan)
    for at in range(8, len(values)):
        score, usual = distance(values, at)
        if not score <= best[0]:
            best = (score, at, usual)
    return best


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two ranks: values that differ, values that do not, tokens, zeros, constants, short series, a NaN."""
    out = tmp_path_factory.mktemp("unusual") / "run"
    random = np.random.default_rng(11)
    ranks = [WrittenRank(out, number, 2) for number in range(2)]
    values = {}

    def see(rank, kind, name, step, number):
        array = np.array([number, 0.0], np.float64)
        ranks[rank].observe(array, kind, name, step)
        values.setdefault((kind, name, rank), []).append(float(number))

    for step in range(STEPS):
        for i in range(8):
            scale = 10.0 ** (i - 4) * math.exp(random.normal() * 0.02 * (i + 1))
            see(0, "grad_reduced", f"same{i}", step, scale * (9.0 if (i, step) == (2, 40) else 1.0))
            see(1, "grad_reduced", f"same{i}", step, values["grad_reduced", f"same{i}", 0][-1])
            for rank in (0, 1):
                scale = 10.0 ** (4 - i) * math.exp(random.normal() * 0.05)
                see(
                    rank,
                    "actv",
                    f"own{i}",
                    step,
                    scale * (0.02 if (rank, i, step) == (1, 5, 33) else 1.0),
                )
        for rank in (0, 1):
            see(rank, "grad_reduced", "constant", step, 3.0)
            see(rank, "grad_reduced", "cut", step, 0.5 if step < 30 else 0.0)
            see(rank, "grad_reduced", "woken", step, 0.0 if step < 50 else -2.0 * (1 + step % 2))
            see(rank, "grad_reduced", "never", step, 0.0)
            if step >= STEPS - 8:
                see(rank, "grad_reduced", "short", step, 10.0**step)
            tokens = np.array([step**3, 7], np.int64)
            ranks[rank].observe(tokens, "actv", "embed", step, element="input.0")
            bad = np.full(3, np.nan if step == 45 and rank == 1 else 1.0, np.float32)
            ranks[rank].observe(bad, "grad_reduced", "bad", step)
            ranks[rank].end_step()
    for rank in ranks:
        rank.stop()
    return out, values


def test_top_is_what_numpy_says(run):
    out, values = run
    expected = {}
    for (kind, name, rank), series in values.items():
        score, step, usual = scored(np.array(series))
        known = expected.get((kind, name))
        if not math.isnan(score) and (known is None or score > known[0]):
            expected[kind, name] = (score, step, rank, usual, abs(series[step]))
    ranked = trainmon.top(out, count=1000)
    assert (ranked[0].name, ranked[0].step, ranked[0].rank) == ("bad", 45, 1)
    assert math.isinf(ranked[0].unusual) and ranked[0].before == pytest.approx(math.sqrt(3))
    found = {
        (row.kind, row.name): (row.unusual, row.step, row.rank, row.before, row.value)
        for row in ranked[1:]
    }
    assert found.keys() == expected.keys()
    for key, one in expected.items():
        assert found[key] == pytest.approx(one, rel=1e-9, abs=1e-12), key
    scores = [row.unusual for row in ranked]
    assert scores == sorted(scores, reverse=True)
    assert {"same2", "own5", "cut"} <= {row.name for row in ranked[:5]}
    assert {row.name for row in ranked[-2:]} == {"constant", "never"}


def test_the_command_says_the_same(run):
    out, _ = run
    rows = json.loads(command("top", out, "--json", "--count", "1000", check=0).stdout)
    ranked = trainmon.top(out, count=1000)
    assert [(row["name"], row["step"], row["rank"]) for row in rows] == [
        (row.name, row.step, row.rank) for row in ranked
    ]
    assert rows[0]["unusual"] == "inf"
    assert [row["unusual"] for row in rows[1:]] == [row.unusual for row in ranked[1:]]
    assert [row["before"] for row in rows] == [row.before for row in ranked]
    said = command("top", out, "--count", "3", check=0)
    lines = said.stdout.splitlines()
    assert lines[0].split() == ["unusual", "before", "norm", "step", "rank", "kind", "tensor"]
    assert lines[1].startswith("not finite") and len(lines) == 4
    assert "most unusual norm of 21 tensors in" in said.stderr
    assert "2 tensors have no history: fewer than nine steps, or integers" in said.stderr
    both = command("top", out, "--json", "--merged", "--count", "1000", check=0)
    merged = json.loads(both.stdout)
    assert [row["unusual"] for row in merged] == [row["unusual"] for row in rows]


@pytest.mark.parametrize("size", [None, "1"])
def test_the_page_ranks_the_same(run, tmp_path, size):
    """Also where steps share columns: each value counts."""
    out, _ = run
    more = ["--max-size", size] if size else []
    page, _ = report(out, tmp_path / "a.html", *more, check=1)
    table = page.payload["rows"]
    lines = [
        (line[6], line[2], kind["kind"], table["tensors"][line[0]][0], line[1],
         table["bins"][kind["bins"][line[3]]])
        for kind in table["kinds"] for line in kind["lines"] if line[2] is not None
    ]  # fmt: skip
    seen = {}
    for _, score, kind, name, rank, bin in sorted(lines):
        seen.setdefault((kind, name), (score, rank, bin))
    ranked = trainmon.top(out, count=1000)
    assert list(seen) == [(row.kind, row.name) for row in ranked]
    for row in ranked:
        score, rank, (first, last) = seen[row.kind, row.name]
        assert float(score) == pytest.approx(row.unusual) and rank == row.rank
        assert first <= row.step <= last


def test_wrong_questions(run, tmp_path):
    out, _ = run
    for words, said in (
        (["--by", "fame"], "history,size"),
        (["--smallest"], "--smallest is for --by size"),
        (["--by", "history", "--smallest"], "--smallest is for --by size"),
    ):
        done = command("top", out, *words, check=2)
        assert said in done.stderr.replace(" ", "") or said in done.stderr
    with pytest.raises(ValueError, match='by must be "history" or "size", not \'fame\''):
        trainmon.top(out, by="fame")
    with pytest.raises(ValueError, match='smallest=True needs by="size"'):
        trainmon.top(out, smallest=True)
    assert [row.unusual for row in trainmon.top(out, by="size", count=3)] == pytest.approx(
        [math.nan] * 3, nan_ok=True
    )


def test_a_run_without_histories_says_so(tmp_path):
    rank = WrittenRank(tmp_path / "run")
    for step in range(5):
        rank.observe(np.ones(4, np.float32), "grad_reduced", "w", step)
        rank.end_step()
    rank.stop()
    done = command("top", tmp_path / "run", check=0)
    assert (
        "1 tensor has no history: fewer than nine steps, or integers; --by size ranks all"
        in done.stderr
    )
    assert json.loads(command("top", tmp_path / "run", "--json", check=0).stdout) == []
    assert (
        len(json.loads(command("top", tmp_path / "run", "--json", "--by", "size", check=0).stdout))
        == 1
    )
