"""Every file of tests/data/damaged through the command line: what is lost is said, what is given is
right. What is expected was put down by tests/data/make_damaged.py, which made the damage."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest

import launch
import trainmon

DAMAGED = Path(__file__).parents[2] / "data" / "damaged"
BASE = DAMAGED / "base"
CASES = json.loads((DAMAGED / "expected.json").read_text())
FORMATS = {"log": "log", "csv": "csv", "sqlite": "sqlite", "msprobe": "msprobe_csv"}
KEYS_OF_MSPROBE = ("name", "step", "micro_step")


def command(*arguments, cwd):
    """The command line as a process; a crash and an internal error are never an answer."""
    done = subprocess.run(
        [launch.command_line(), *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        timeout=120,
        env={**os.environ, "NO_COLOR": "1"},
    )
    said = (done.stdout + done.stderr).decode("utf-8", "replace")
    assert done.returncode in (0, 1, 2, 3), f"{arguments}: exit {done.returncode}\n{said}"
    return done


def place_files(reader, case, directory):
    """The directory that is read: the sound files, and in their places the damaged ones."""
    run = directory / "run"
    inner = run / "rank_00000" / "restart_0000"
    if reader == "msprobe":
        inner = run / "Dec03_21-34-40-rank0-a1"
    if reader == "anomaly":
        inner = run / "rank0"
    inner.mkdir(parents=True)
    if reader not in ("msprobe", "anomaly"):
        for file in BASE.iterdir():
            shutil.copyfile(file, inner / file.name)
    if reader == "control":
        inner = run
    if reader == "config":
        inner = directory
    for place, source in case["files"].items():
        (inner / place).unlink(missing_ok=True)
        if source is None:
            (inner / place).mkdir()
        else:
            shutil.copyfile(DAMAGED / source, inner / place)
    return run


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def sound_rows(reader):
    """The rows of the sound files as Python's csv reads them, by what tells rows apart."""
    if reader == "msprobe":
        source = CASES["msprobe"]["sound"]["files"]["grad_reduced_0-7.csv"]
        rows = table(DAMAGED / source)
        return {(row["name"], row["step"], "0"): row for row in rows}
    outcomes = {row["window"]: row for row in table(BASE / "outcomes.csv")}
    rows = table(BASE / "rows-000000.csv")
    for row in rows:
        row.update({key: outcomes[row["window"]][key] for key in ("step", "attempt", "fate")})
    return {row["seq"]: row for row in rows}


def same(found, wanted):
    return found == wanted or float(found) == float(wanted)


def check_rows(reader, case, output):
    """Every row given is one of the sound files, and none comes twice."""
    sound = sound_rows(reader)
    given = table(output / "rows.csv")
    keys = [
        tuple(row[name] for name in KEYS_OF_MSPROBE) if reader == "msprobe" else row["seq"]
        for row in given
    ]
    assert len(set(keys)) == len(keys)
    others = 0
    for key, row in zip(keys, given, strict=True):
        wanted = sound[key]
        for name, value in row.items():
            if name not in wanted or name in case.get("absent", ()):
                continue
            # What became of a window may be what was lost; its rows then have the next best step.
            if name == "fate" and value == "unknown":
                continue
            others += not same(value, wanted[name])
    assert others == case.get("other_values", 0)
    return len(given)


def check_conversion(reader, case, done, output):
    if case["written"] is None and not output.exists():
        return
    report = json.loads(done.stdout)
    assert report["rows"] == report["written"] + report["rejected"] + report["superseded"]
    assert report["written"] == check_rows(reader, case, output)
    if case["written"] is not None:
        assert report["written"] == case["written"]
    if "rejected" in case:
        assert report["rejected"] == case["rejected"]
    if "lines" in case:
        lines = [one["line"] for one in report["rejections"] if one["line"] > 1]
        if (
            case["lines"]
            and case["lines"] != [1]
            and not any(one["line"] == 1 for one in report["rejections"])
        ):
            assert lines == case["lines"]
    rejected = [one for one in report["rejections"] if one["line"] != 1]
    assert all(one["file"] and one["what"] for one in rejected)


CALLS = [
    pytest.param(reader, name, tool, id=f"{reader}-{name}-{tool}")
    for reader, cases in sorted(CASES.items())
    for name, case in sorted(cases.items())
    for tool in case["exit"]
]


@pytest.mark.parametrize("reader, name, tool", CALLS)
def test_what_is_lost_is_said_and_what_is_given_is_right(reader, name, tool, tmp_path):
    case = CASES[reader][name]
    run = place_files(reader, case, tmp_path)
    output = tmp_path / "out"
    arguments = {
        "convert": ("convert", run, "--from", FORMATS.get(reader, "log"), "--to", "csv"),
        "show": ("show", run, "--count", 0),
        "doctor": ("doctor", run),
        "anomalies": ("anomalies", run),
        "config": ("config", "check", tmp_path / "config.json"),
        "ctl": ("ctl", "status", run),
    }[tool]
    if tool == "convert":
        arguments = (*arguments, "-o", output, "--json")
    done = command(*arguments, cwd=tmp_path)
    said = (done.stdout + done.stderr).decode("utf-8", "replace")
    allowed = case["exit"][tool]
    allowed = allowed if isinstance(allowed, list) else [allowed]
    assert done.returncode in allowed, said
    if case["says"]:
        assert case["says"] in said
        assert any(place in said for place in case["files"]) or "health.json" in said, said
    if tool == "convert" and reader in FORMATS:
        check_conversion(reader, case, done, output)
    if tool == "show" and reader == "log" and case["written"] is not None:
        rows = re.findall(r"^ *\d+ +0 +grad_reduced", done.stdout.decode(), re.MULTILINE)
        assert len(rows) == case["written"]


@pytest.mark.parametrize(
    "reader, name", [(reader, name) for reader in ("npy", "sign") for name in CASES[reader]]
)
def test_directions(reader, name, tmp_path):
    """The damaged file beside a sound one and another parameter, which is compared all the same."""
    case = CASES[reader][name]
    (place,) = case["files"]
    sound = CASES[reader]["sound"]["files"][place]
    for dump, source in (("a", sound), ("b", case["files"][place])):
        (tmp_path / dump / "step0").mkdir(parents=True)
        shutil.copyfile(DAMAGED / source, tmp_path / dump / "step0" / place)
        shutil.copyfile(DAMAGED / sound, tmp_path / dump / "step0" / f"other.{reader}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        comparison = trainmon.compare_directions(
            tmp_path / "a", tmp_path / "b", tmp_path / "out", pictures=False
        )
    (rank,) = comparison.ranks
    if not case["says"]:
        assert rank.parameters == ["other", "w"] and rank.equal.tolist() == [[35], [35]]
        assert comparison.remarks() == []
        return
    assert rank.parameters == ["other"] and rank.equal.tolist() == [[35]]
    (remark,) = comparison.remarks()
    assert remark.startswith("not compared: w at step 0: ") and case["says"] in remark


def test_the_corpus_is_what_its_script_makes():
    """Nothing lies beside what is expected of it, and all of it is small."""
    files = {str(path.relative_to(DAMAGED)) for path in DAMAGED.rglob("*") if path.is_file()}
    named = {
        file
        for cases in CASES.values()
        for case in cases.values()
        for file in case["files"].values()
        if file is not None
    }
    assert {file for file in files if not file.startswith(("base/", "found/"))} == named | {
        "expected.json"
    }
    assert sum((DAMAGED / file).stat().st_size for file in files) < 500_000
