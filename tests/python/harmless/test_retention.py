"""What readers say of a run that keeps so many bytes: rows from some step on, and no damage. The
kept files are decoded by code that shares none with trainmon."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess

import numpy as np
import pytest
import torch

import launch
import log_decoder
import trainmon
from written_run import WrittenRank

STEPS = 400
KEPT = {"segment_mb": 0.004, "retention_mb": 0.04}


def call(*arguments):
    return subprocess.run(
        [launch.command_line(), *map(os.fspath, arguments)],
        capture_output=True,
        text=True,
        timeout=100,
    )


def train(out, steps=STEPS, **options):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125)
    monitor = trainmon.watch(model, optimizer, out=out, checks=True, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        monitor.flush(60)
    return monitor.stop()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("retention") / "run"
    train(out, **KEPT)
    return out


def decoded_steps(run):
    """Of the kept segments: steps of outcomes, names of series with rows."""
    steps, names, rows = [], set(), 0
    for path in sorted(run.rglob("*.tmlog")):
        segment = log_decoder.decode(path.read_bytes())
        for batch in segment.batches:
            steps += [outcome["step"] for outcome in batch.get("outcomes", [])]
            names |= {segment.series[row["series"]]["name"] for row in batch.get("rows", [])}
            rows += len(batch.get("rows", []))
    return steps, names, rows


def test_the_files_keep_to_the_size_and_the_last_step_is_there(run):
    assert sum(path.stat().st_size for path in run.rglob("*.tmlog")) <= 0.04 * 2**20
    steps, names, rows = decoded_steps(run)
    assert steps == list(range(steps[0], STEPS)) and 0 < steps[0] < STEPS - 20
    assert names == {"weight", "bias", ""}  # the last one: what the whole model is given
    table = trainmon.read_table(run)
    assert len(table["step"]) == rows and len(table.expired) == 1
    (path,) = run.rglob("retention.json")
    told = json.loads(path.read_text())
    (health,) = run.rglob("health.json")
    (sink,) = json.loads(health.read_text())["sinks"]
    assert told["rows"] + rows == sink["rows_written"]
    assert not list(path.parent.glob(f"log-{told['first_segment'] - 1:06}.tmlog"))


@pytest.mark.parametrize("command", ["doctor", "tail", "first-bad", "diagnose", "show", "top"])
def test_every_reader_says_from_where_on_there_are_rows(run, command):
    done = call(command, run)
    first = decoded_steps(run)[0][0] + 1
    said = f"there are all rows from step {first} on: what is older was deleted to keep to"
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count(said) == 1, done.stdout + done.stderr
    for word in ("damage", "missing", "not used", "incomplete"):
        assert word not in (done.stdout + done.stderr).replace("--", ""), command


def test_other_readers_take_what_is_there(run, tmp_path):
    first = decoded_steps(run)[0][0]
    for words in (
        ("compare", run, run),
        ("report", run, "-o", tmp_path / "report.html"),
        ("convert", run, "--to", "csv", "-o", tmp_path / "csv"),
        ("show", run, "--merged"),
        ("query", run, "SELECT min(step) FROM stats"),
    ):
        done = call(*words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        assert "not used" not in done.stderr and "damage" not in done.stderr
    assert str(first) in done.stdout
    declared = json.loads(call("doctor", run, "--json").stdout)
    assert declared["damage"] == [] and len(declared["expired"]) == 1


def test_declared_values_and_checks_outlive_their_segment(run):
    done = call("show", run, "--declared")
    assert "0.125" in done.stdout and done.returncode == 0
    found = json.loads(call("diagnose", run, "--json").stdout)
    assert found["checked"]["update"] > 0 and found["verdict"] is None


def test_the_line_at_the_stop_says_it(tmp_path, capfd):
    health = train(tmp_path / "run", steps=200, **KEPT)
    said = capfd.readouterr().err.splitlines()[-1]
    expired = health["sinks"][0]["rows_expired"]
    assert expired > 0 and health["sinks"][0]["rows_deleted"] == 0
    assert (
        f"({expired} of them deleted to keep to retention_mb or retention_days), 0 dropped" in said
    )


def test_too_little_is_refused(tmp_path):
    with pytest.raises(trainmon.ConfigError, match="at least twice segment_mb"):
        train(tmp_path / "run", steps=0, retention_mb=100.0)


def test_a_damaged_retention_json_is_said(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (path,) = copy.rglob("retention.json")
    for text in ("{", '{"first_segment": -1, "rows": 0, "batches": 0}', "[]", '{"rows": 3}'):
        path.write_text(text)
        done = call("doctor", copy)
        assert done.returncode == 3 and "retention.json" in done.stdout, text
    path.unlink()
    done = call("doctor", copy)
    assert done.returncode == 3 and "missing" in done.stdout


def test_what_was_deleted_by_hand_is_damage_as_before(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    segments = sorted(copy.rglob("*.tmlog"))
    segments[2].unlink()
    done = call("first-bad", copy)
    number = int(segments[2].stem.split("-")[1])
    assert done.returncode == 3 and f"segment {number} is missing" in done.stderr
    segments[0].unlink()
    said = call("first-bad", copy).stderr
    assert f"segment {int(segments[0].stem.split('-')[1])} is missing" in said


def test_a_follower_that_falls_behind_goes_on(tmp_path):
    """It is stopped while what it reads is deleted."""
    rank = WrittenRank(tmp_path / "run", flush_seconds=0.01, segment_mb=0.002, retention_mb=0.01)
    rng = np.random.default_rng(3)
    step = 0

    def steps(count):
        nonlocal step
        for _ in range(count):
            rank.observe(rng.normal(size=3).astype(np.float32), "grad_reduced", "a.weight", step)
            rank.end_step()
            step += 1
        assert rank.monitor.flush(60)

    steps(20)
    words = [launch.command_line(), "tail", "-f", "--json", "--interval", "0.05", tmp_path / "run"]
    follower = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = json.loads(follower.stdout.readline())
    follower.send_signal(signal.SIGSTOP)
    steps(300)
    follower.send_signal(signal.SIGCONT)
    rank.stop()
    seen = [first["step"]]
    while seen[-1] != step - 1:
        seen.append(json.loads(follower.stdout.readline())["step"])
    follower.send_signal(signal.SIGINT)
    assert follower.wait(30) == 0, follower.stderr.read()
    assert seen == sorted(set(seen)) and len(seen) < step
    assert "not used" not in follower.stderr.read()


def test_a_push_whose_place_was_deleted_goes_on_with_what_is_there(tmp_path):
    """A position names the last step that was sent, not a place in a file."""
    rank = WrittenRank(tmp_path / "run", flush_seconds=0.01, segment_mb=0.002, retention_mb=0.01)
    rng = np.random.default_rng(3)

    def pushed():
        folder = os.fsencode(tmp_path / "state")
        steps = trainmon._core.PushedSteps(os.fsencode(tmp_path / "run"), 100, [], False, folder)
        found = []
        while new := steps.look(1000):
            found += [step for _, _, step, _, _ in new]
        steps.done("")
        assert steps.damage() == []
        return found, steps.expired()

    def steps(begin, end):
        for step in range(begin, end):
            rank.observe(rng.normal(size=3).astype(np.float32), "grad_reduced", "a.weight", step)
            rank.end_step()
        assert rank.monitor.flush(60)

    steps(0, 20)
    before, expired = pushed()
    assert before == list(range(before[-1] + 1)) and expired == []
    steps(20, 320)
    rank.stop()
    after, expired = pushed()
    assert after == list(range(after[0], 320)) and after[0] > before[-1] + 1 and len(expired) == 1
    assert pushed()[0] == []


def test_a_start_that_goes_on_loses_nothing_to_a_newer_one(tmp_path):
    """Two monitors of one process write to one run: each keeps to its limit."""
    keys = {"flush_seconds": 0.01, "segment_mb": 0.002, "retention_mb": 0.01}
    older, newer = WrittenRank(tmp_path / "run"), WrittenRank(tmp_path / "run", **keys)
    rng = np.random.default_rng(4)

    def steps(rank, count):
        for step in range(count):
            rank.observe(rng.normal(size=3).astype(np.float32), "grad_reduced", "a.weight", step)
            rank.end_step()
        assert rank.monitor.flush(60)

    steps(older, 50)
    steps(newer, 400)
    steps(older, 50)
    older.stop()
    assert decoded_steps(older.directory)[2] == 100
    assert decoded_steps(newer.directory)[2] < 400
    assert not (older.directory / "retention.json").exists()
    steps(newer, 50)  # the older one has ended: it is the first to go
    newer.stop()
    assert decoded_steps(older.directory)[2] == 0
