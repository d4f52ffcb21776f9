"""The manual's rule over what trainmon.compare_directions found, its verdict.json, pictures, Ctrl-C."""

import csv
import json
import shutil
import signal

import numpy as np
import pytest
from matplotlib.image import imread

import direction_dumps as dumps
import trainmon
from direction_dumps import compared


@pytest.fixture
def pair(tmp_path):
    return dumps.write_pair(tmp_path)


def ones_with(different, size=1000):
    values = np.ones(size)
    values[:different] = -1
    return values


def dump_of(path, rows):
    """One parameter per row; how many of 1,000 signs differ from all ones, None: not there."""
    steps = {}
    for name, row in rows.items():
        for step, different in enumerate(row):
            if different is not None:
                steps.setdefault(step, {})[name] = ones_with(different)
    return dumps.write_dump(path, {0: steps}, names=list(rows))


def test_the_manuals_rule(tmp_path):
    rows = {
        "borders": [30, 60, 90, 120],  # 0.97, then 0.03 less each time
        "embedding": [0, 0, 31, 500],
        "fc": [0, 20, 60, 60],
        "late": [None, None, None, 31],
        "norm": [0, None, 0, 30],
        "rises": [30, 0, 20, 0],
    }
    a = dump_of(tmp_path / "a", {name: [v and 0 for v in row] for name, row in rows.items()})
    b = dump_of(tmp_path / "b", rows)
    comparison = compared(a, b, tmp_path / "out")
    (rank,) = comparison.ranks
    assert comparison.first_bad_step == rank.first_bad_step == 2
    assert [(s.parameter, s.step, s.rule, s.similarity, s.before) for s in rank.suspicions] == [
        ("fc", 2, "drop", 0.94, 0.98),  # in backward order
        ("embedding", 2, "drop", 0.969, 1.0),
        ("late", 3, "first_step", 0.969, None),
    ]
    assert str(comparison) == (
        "rank 0: suspicious at step 2, in backward order: fc 0.94 after 0.98, embedding 0.969 after 1"
    )
    verdict = json.loads((tmp_path / "out" / "rank0" / "verdict.json").read_text())
    assert verdict["suspicious"] is True and verdict["first_bad_step"] == 2
    assert verdict["rule"] == {"first_step_below": 0.97, "drop_above": 0.03}
    assert [one["parameter"] for one in verdict["parameters"]] == ["fc", "embedding"]
    assert verdict["parameters"][0] == {
        "parameter": "fc", "step": 2, "rule": "drop", "similarity": 0.94, "equal": 940,
        "elements": 1000, "similarity_before": 0.98, "drop": pytest.approx(0.04),
    }  # fmt: skip
    assert verdict["later"] == [
        {"parameter": "late", "step": 3, "rule": "first_step", "similarity": 0.969, "equal": 969,
         "elements": 1000}
    ]  # fmt: skip
    assert verdict["compared"] == {
        "steps": 4, "first_step": 0, "last_step": 3, "parameters": 6
    }  # fmt: skip
    assert (verdict["first"], verdict["second"], verdict["rank"]) == (a, b, 0)


def test_nothing_suspicious(pair):
    comparison = compared(pair.a, pair.a, pair.out)
    assert comparison.first_bad_step is None
    assert str(comparison).splitlines() == [
        "rank 0: nothing suspicious in 4 parameters and 3 steps",
        "rank 1: nothing suspicious in 4 parameters and 3 steps",
    ]
    verdict = json.loads((pair.out / "rank1" / "verdict.json").read_text())
    assert verdict["suspicious"] is False and verdict["first_bad_step"] is None
    assert verdict["parameters"] == verdict["later"] == verdict["not_compared"] == []


def test_empty_tensors_are_never_suspicious(tmp_path):
    steps = {s: {"empty": np.ones((0, 3)), "w": np.ones(2)} for s in range(2)}
    dumps.write_dump(tmp_path / "a", {0: steps})
    assert compared(tmp_path / "a", tmp_path / "a", tmp_path / "out").first_bad_step is None
    with open(tmp_path / "out" / "rank0" / "similarities.csv", encoding="utf-8-sig") as file:
        assert list(csv.reader(file))[1] == ["empty", "0", "0"]


def has_colour(path, colour):
    pixels = imread(path)[..., :3]
    wanted = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return bool((np.abs(pixels - wanted).max(axis=-1) < 0.02).any())


def test_pictures(tmp_path):
    rows = {"good": [0, 1], "bad $one": [0, 800], "坏": [1000, 0]}
    a = dump_of(tmp_path / "a", {name: [0, 0] for name in rows})
    b = dump_of(tmp_path / "b", rows)
    trainmon.compare_directions(a, b, tmp_path / "out")
    folder = tmp_path / "out" / "rank0" / "similarities_picture"
    assert {path.stem: has_colour(path, "#D55E00") for path in folder.iterdir()} == {
        "good": False, "bad $one": True, "坏": True, "summary_similarities": True,
    }  # fmt: skip
    for path in folder.iterdir():
        assert path.suffix == ".png" and has_colour(path, "#0072B2")
    good = (folder / "good.png").read_bytes()
    (tmp_path / "taken" / "rank0" / "similarities_picture" / "good.png").mkdir(parents=True)
    with pytest.raises(IsADirectoryError, match="the picture cannot be written.*/good.png"):
        trainmon.compare_directions(a, b, tmp_path / "taken")
    trainmon.compare_directions(a, b, tmp_path / "out")
    assert (folder / "good.png").read_bytes() == good


def test_parameters_named_like_the_summary(tmp_path):
    rows = {"summary": [0, 0], "summary_similarities": [0, 0], "bad": [1000, 0]}
    a = dump_of(tmp_path / "a", {name: [0, 0] for name in rows})
    b = dump_of(tmp_path / "b", rows)
    trainmon.compare_directions(a, b, tmp_path / "out")
    folder = tmp_path / "out" / "rank0"
    pictures = folder / "similarities_picture"
    assert {path.stem: has_colour(path, "#D55E00") for path in pictures.iterdir()} == {
        "summary": False, "summary_similarities~": False, "bad": True, "summary_similarities": True,
    }  # fmt: skip
    with open(folder / "similarities.csv", encoding="utf-8-sig", newline="") as file:
        lines = [line for line in csv.reader(file) if line[0] == "summary"]
    assert len(lines) == 2 and float(lines[0][1]) == 1.0 and float(lines[1][1]) < 1.0


@pytest.mark.parametrize("threads", [1, 4])
def test_interrupt_leaves_nothing(pair, threads):
    with pytest.raises(KeyboardInterrupt):
        compared(
            pair.a, pair.b, pair.out, threads=threads,
            progress=lambda done, total: signal.raise_signal(signal.SIGINT),
        )  # fmt: skip
    assert not pair.out.exists()


def test_progress_and_its_exceptions(pair):
    seen = []
    compared(pair.a, pair.b, pair.out, progress=lambda *numbers: seen.append(numbers), threads=1)
    assert seen == [(i, 24) for i in range(1, 25)]

    def fail(done, total):
        raise KeyError("mine")

    shutil.rmtree(pair.out)
    with pytest.raises(KeyError, match="mine"):
        compared(pair.a, pair.b, pair.out, progress=fail)
    assert not pair.out.exists()


def test_older_output_is_replaced(pair):
    compared(pair.a, pair.b, pair.out)
    before = (pair.out / "rank1" / "similarities.csv").read_bytes()
    compared(pair.a, pair.a, pair.out)
    after = (pair.out / "rank1" / "similarities.csv").read_bytes()
    assert after != before and b"0." not in after
