"""`trainmon compact`: not a record changes, whoever reads and whatever ends it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time

import numpy as np

import launch
import log_decoder
import trainmon
from written_run import WrittenRank

ANSWERS = (
    ("first-bad", "RUN"),
    ("top", "RUN"),
    ("top", "RUN", "--by", "size"),
    ("show", "RUN", "--json"),
    ("show", "RUN", "--declared"),
    ("query", "RUN", "SELECT * FROM stats", "--csv"),
    ("query", "RUN", "SELECT * FROM logged", "--csv"),
    ("tail", "RUN", "-n", "1000"),
    ("show", "RUN", "--json", "--merged"),
)


def call(*arguments):
    return subprocess.run(
        [launch.command_line(), *map(os.fspath, arguments)],
        capture_output=True,
        text=True,
        timeout=100,
    )


def write(out, steps=60, ranks=2, **config):
    rng = np.random.default_rng(3)
    written = [WrittenRank(out, rank, ranks, **config) for rank in range(ranks)]
    for step in range(steps):
        for rank in written:
            for name in ("a.weight", "b.weight", "b.bias"):
                array = rng.normal(size=step % 7 + 1).astype(np.float32)
                if name == "b.bias" and step == 40:
                    array[0] = np.inf
                rank.observe(array, "grad_reduced", name, step)
            rank.end_step()
    for rank in written:
        rank.stop()
    return [rank.directory for rank in written]


def answers(run):
    found = {}
    for command in ANSWERS:
        done = call(*(run if word == "RUN" else word for word in command))
        assert done.returncode in (0, 1), done.stderr
        assert command[0] != "show" or done.stdout
        found[command] = (done.returncode, done.stdout)
    return found


def test_every_answer_is_the_same(tmp_path):
    run = tmp_path / "run"
    directories = write(run, segment_mb=0.01)
    assert len(list(directories[0].glob("*.tmlog"))) > 1
    before = answers(run)
    frame = trainmon.read_table(run).to_pandas()
    done = call("compact", run)
    assert done.returncode == 0 and "frames before" in done.stdout, done.stderr
    assert answers(run) == before
    assert trainmon.read_table(run).to_pandas().equals(frame)
    doctor = call("doctor", run)
    assert doctor.returncode == 0 and "in order" in doctor.stdout
    again = call("compact", run)
    assert again.returncode == 0 and again.stdout == "nothing to compact\n"


def test_the_document_is_enough_to_decode_a_compacted_log(tmp_path):
    (directory,) = write(tmp_path / "run", ranks=1, segment_mb=0.01)
    paths = sorted(directory.glob("*.tmlog"))
    before = [log_decoder.decode(path.read_bytes()) for path in paths]
    sizes = [path.stat().st_size for path in paths]
    assert call("compact", tmp_path / "run").returncode == 0
    after = [log_decoder.decode(path.read_bytes()) for path in paths]
    for old, new, path, size in zip(before, after, paths, sizes, strict=True):
        assert repr(new.batches) == repr(old.batches)  # a NaN is not itself
        assert new.series == old.series
        assert new.start.pop("compacted_bytes") == path.stat().st_size
        assert new.start.pop("written_bytes") == size
        assert new.start == old.start


def test_kills_leave_the_old_file_or_the_new_one(tmp_path):
    run = tmp_path / "run"
    write(run, steps=200, segment_mb=0.005)
    frame = trainmon.read_table(run).to_pandas()
    seconds = random.Random(1)
    kills = 0
    for _ in range(12):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        process = subprocess.Popen(
            [launch.command_line(), "compact", copy], stdout=subprocess.DEVNULL
        )
        time.sleep(seconds.uniform(0.0, 0.1))
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        assert trainmon.read_table(copy).to_pandas().equals(frame)
        assert call("compact", copy).returncode == 0
        assert trainmon.read_table(copy).to_pandas().equals(frame)
        assert not list(copy.rglob("*.tmp"))
    assert kills > 0


def test_a_run_that_goes_on_keeps_its_last_segment(tmp_path):
    run = tmp_path / "run"
    rank = WrittenRank(run, segment_mb=0.005)
    for step in range(100):
        rank.observe(np.ones(3, np.float32), "grad_reduced", "w", step)
        rank.end_step()
    for _ in range(100):
        if len(list(rank.directory.glob("*.tmlog"))) > 1:
            break
        time.sleep(0.05)
    done = call("compact", run)
    assert done.returncode == 0 and "still be written" in done.stderr, done.stderr
    for step in range(100, 150):
        rank.observe(np.ones(3, np.float32), "grad_reduced", "w", step)
        rank.end_step()
    rank.stop()
    assert len(trainmon.read_table(run)["step"]) == 150
    assert call("doctor", run).returncode == 0
    done = call("compact", run)
    assert done.returncode == 0 and not done.stderr.strip(), done.stderr
    assert len(trainmon.read_table(run)["step"]) == 150


def test_what_cannot_be_compacted_is_named(tmp_path):
    run = tmp_path / "run"
    (directory,) = write(run, ranks=1)
    path = directory / "log-000000.tmlog"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    done = call("compact", run)
    assert done.returncode == 3 and "log-000000.tmlog" in done.stderr and "checksum" in done.stderr
    assert path.read_bytes() == damaged
    assert call("compact", tmp_path / "none").returncode == 2
