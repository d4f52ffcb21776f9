"""`trainmon repair`: of every damaged file of tests/data/damaged, and of frames that claim too much,
a copy that no reader complains of and that gives what the damaged run gave."""

import json
import os
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

import hostile_logs
import launch
from test_damaged import BASE, CASES, place_files
from written_run import WrittenRank

INNER = "rank_00000/restart_0000"
OF_A_LOG = [
    pytest.param(reader, name, id=f"{reader}-{name}")
    for reader in ("log", "run_json", "health_json")
    for name in sorted(CASES[reader])
]


def command(*arguments, cwd):
    return subprocess.run(
        [launch.command_line(), *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "NO_COLOR": "1"},
    )


def rows_of(run, cwd):
    """What a conversion gives, by what tells rows apart."""
    done = command("convert", run, "--to", "csv", "-o", cwd / f"{run.name}.csv", cwd=cwd)
    assert done.returncode in (0, 3), done.stderr
    files = sorted((cwd / f"{run.name}.csv").glob("*.csv"))
    return {file.name: sorted(file.read_text().splitlines()) for file in files}


def files_in(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def expect_repaired(run, directory):
    """The copy, and what repair said of the run."""
    before = files_in(run)
    done = command("repair", run, "--json", cwd=directory)
    assert done.returncode in (0, 3), done.stderr
    told = json.loads(done.stdout)
    lost = any(rank["damage"] or rank["rows_lost"] for rank in told["ranks"])
    assert done.returncode == (3 if lost else 0)
    assert done.stderr.count("trainmon: lost: ") == sum(len(r["damage"]) for r in told["ranks"])
    assert files_in(run) == before
    copy = directory / f"{run.name}-repaired"
    doctor = command("doctor", copy, "--json", cwd=directory)
    books = json.loads(doctor.stdout)
    assert books["damage"] == []
    complaints = [text for rank in books["ranks"] for text in rank["incomplete"] + rank["findings"]]
    is_empty = not any(rank["rows"] for rank in told["ranks"])  # no record could be used
    assert complaints == (["rank 0: nothing was recorded"] if is_empty else [])
    assert doctor.returncode == (3 if is_empty else 0)
    given, kept = rows_of(run, directory), rows_of(copy, directory)
    given.pop("gaps.csv", None), kept.pop("gaps.csv", None)
    assert given == kept
    return copy, told["ranks"]


@pytest.mark.parametrize("reader, name", OF_A_LOG)
def test_every_damaged_file(reader, name, tmp_path):
    run = place_files(reader, CASES[reader][name], tmp_path)
    if all((run / INNER / file.name).exists() for file in BASE.glob("*.csv")):
        for file in BASE.glob("*.csv"):  # of other sinks
            (run / INNER / file.name).unlink()
    copy, ranks = expect_repaired(run, tmp_path)
    said = command("show", copy, "--count", 1, cwd=tmp_path)
    was_changed = ranks[0]["damage"] or ranks[0]["state"] != "closed"
    assert (copy / INNER / "repair.json").exists() == bool(was_changed)
    assert ("repaired by trainmon repair" in said.stderr + said.stdout) == bool(was_changed)


@pytest.mark.parametrize("name", ["rows", "series", "claim"])
def test_frames_that_claim_too_much(name, tmp_path):
    rank = WrittenRank(tmp_path / "run")
    rank.observe(np.ones(3, np.float32), "grad_reduced", "w", 0)
    rank.end_step()
    rank.stop()
    (segment,) = (tmp_path / "run" / INNER).glob("*.tmlog")
    with segment.open("ab") as file:
        for frame in hostile_logs.frames(name, segment.read_bytes().count(b"tmFR")):
            file.write(frame)
    expect_repaired(tmp_path / "run", tmp_path)


def test_what_it_refuses(tmp_path):
    rank = WrittenRank(tmp_path / "run")
    rank.end_step()
    living = command("repair", "run", cwd=tmp_path)
    assert living.returncode == 2 and "still writes" in living.stderr
    rank.stop()
    assert command("repair", "run", "-o", "there", cwd=tmp_path).returncode == 0
    again = command("repair", "run", "-o", "there", cwd=tmp_path)
    assert again.returncode == 2 and "there exists already" in again.stderr
    assert command("repair", "nothing", cwd=tmp_path).returncode == 2
    assert sorted(os.listdir(tmp_path)) == ["run", "there"]


def test_killed_in_the_middle(tmp_path):
    """No copy is there that is not whole, and the next one clears up."""
    run = tmp_path / "run"
    rank = WrittenRank(run, segment_mb=0.01)
    for step in range(3000):
        rank.observe(np.ones(3, np.float32), "grad_reduced", "w", step)
        rank.end_step()
    rank.stop()
    before = files_in(run)
    begin = time.monotonic()
    assert command("repair", run, "-o", "whole", cwd=tmp_path).returncode == 0
    took = time.monotonic() - begin
    for part in range(6):
        process = subprocess.Popen(
            [launch.command_line(), "repair", run, "-o", "copy"],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
        )
        time.sleep(took * part / 6)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if (tmp_path / "copy").exists():
            assert command("doctor", "copy", cwd=tmp_path).returncode == 0
            shutil.rmtree(tmp_path / "copy")
    assert command("repair", run, "-o", "copy", cwd=tmp_path).returncode == 0
    assert sorted(os.listdir(tmp_path)) == ["copy", "run", "whole"]
    assert files_in(run) == before
    same = [path.read_bytes() for path in sorted((tmp_path / "copy").rglob("*.tmlog"))]
    assert same == [path.read_bytes() for path in sorted((tmp_path / "whole").rglob("*.tmlog"))]


def test_times_in_health_are_numbers_with_a_fraction(tmp_path):
    rank = WrittenRank(tmp_path / "run", 0, 1)
    rank.stop()
    health = rank.directory / "health.json"
    said = json.loads(health.read_text())
    for seconds in (0.25, 3, 0):
        health.write_text(json.dumps(said | {"queue_seconds": seconds}))
        done = subprocess.run(
            [launch.command_line(), "doctor", "--json", tmp_path / "run"],
            capture_output=True,
            timeout=60,
        )
        answer = json.loads(done.stdout)
        assert answer["ranks"][0]["queue_seconds"] == seconds and answer["damage"] == []
