"""`trainmon tail`: the newest steps of a run, and those that come while it is followed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time

import numpy as np
import pytest

from launch import command_line as program
from written_run import WrittenRank

NAMES = ("layers.1.weight", "layers.2.weight")


def call(*arguments, **environment):
    done = subprocess.run(
        [program(), "tail", *map(os.fspath, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "80", **environment},
    )
    return done.returncode, done.stdout, done.stderr


def lines_of(*arguments):
    code, out, err = call(*arguments, "--json")
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


class Follower:
    """`trainmon tail -f --json` as a process; lines come from a thread, so that no test hangs."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [program(), "tail", "-f", "--json", "--interval", "0.05", *map(os.fspath, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines = []
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(json.loads(line))
                self.changed.notify_all()

    def wait_for(self, condition):
        with self.changed:
            assert self.changed.wait_for(lambda: condition(self.lines), 30), self.lines
            return list(self.lines)

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)
        self.thread.join(30)
        return self.process.returncode, self.process.stderr.read()


def wait_until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def take_step(rank, step, rng, kinds=("grad_reduced",), bad=None):
    arrays = {}
    for kind in kinds:
        for name in NAMES:
            array = rng.normal(size=30).astype(np.float32)
            if (kind, name) == bad:
                array[[3, 4]] = np.nan, np.inf
            rank.observe(array, kind, name, step)
            arrays[kind, name] = array
    rank.end_step()
    return arrays


def norm(*arrays):
    return pytest.approx(np.linalg.norm(np.concatenate(arrays).astype(np.float64)), rel=1e-9)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Two ranks, 12 steps; rank 1 sees a NaN and an infinity in step 7."""
    out = tmp_path_factory.mktemp("tail") / "run"
    rng = np.random.default_rng(1)
    ranks = [WrittenRank(out, number, 2) for number in range(2)]
    seen = {}
    for step in range(12):
        for number, rank in enumerate(ranks):
            bad = ("param_updated", NAMES[1]) if (number, step) == (1, 7) else None
            kinds = ("grad_reduced", "param_updated")
            seen[step, number] = take_step(rank, step, rng, kinds, bad)
    for rank in ranks:
        rank.stop()
    return out, seen


def test_the_newest_steps_with_norms_that_numpy_gives(written):
    out, seen = written
    lines = lines_of(out, "-n", "3")
    assert sorted((line["step"], line["rank"]) for line in lines) == [
        (step, rank) for step in (9, 10, 11) for rank in (0, 1)
    ]
    assert [line["step"] for line in lines] == [9, 9, 10, 10, 11, 11]
    for line in lines:
        arrays = seen[line["step"], line["rank"]]
        assert set(line["norms"]) == {"grad_reduced", "param_updated"}
        for kind, value in line["norms"].items():
            assert value == norm(*(arrays[kind, name] for name in NAMES))
        gradients = {name: np.linalg.norm(arrays["grad_reduced", name]) for name in NAMES}
        worst = max(gradients, key=gradients.get)
        assert (line["worst"]["kind"], line["worst"]["name"]) == ("grad_reduced", worst)
        assert (line["fate"], line["rows"], line["non_finite"]) == ("taken", 4, 0)
    assert len(lines_of(out, "-n", "100")) == 24
    assert lines_of(out, "-n", "0") == []


def test_a_bad_rank_comes_first_and_its_tensor_is_named(written):
    lines = [line for line in lines_of(written[0], "-n", "12") if line["step"] == 7]
    assert [line["rank"] for line in lines] == [1, 0]
    assert lines[0]["non_finite"] == 2 and lines[0]["norms"]["param_updated"] == "nan"
    assert lines[0]["worst"]["name"] == NAMES[1] and lines[0]["worst"]["norm"] == "nan"
    assert lines[1]["non_finite"] == 0


def test_selection(written):
    lines = lines_of(written[0], "-n", "1", "--rank", "1", "--kind", "grads", "--name", "layers.1")
    (line,) = lines
    assert line["norms"] == {"grad_reduced": norm(written[1][11, 1]["grad_reduced", NAMES[0]])}
    code, out, err = call(written[0], "--kind", "gradz")
    assert code == 2 and out == "" and "'grads'" in err


def test_rows(written):
    lines = lines_of(written[0], "--rows", "-n", "4", "--rank", "0")
    assert [(line["step"], line["kind"], line["name"]) for line in lines] == [
        (11, kind, name) for kind in ("grad_reduced", "param_updated") for name in NAMES
    ]
    for line in lines:
        assert line["norm"] == norm(written[1][11, 0][line["kind"], line["name"]])


def test_text(written, tmp_path):
    code, out, err = call(written[0], "-n", "5")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    title = "step rank grad norm weight norm bad worst tensor its norm logged"
    assert " ".join(lines[0].split()) == title
    assert len(lines) == 11 and max(map(len, lines)) <= 80
    ranks = [WrittenRank(tmp_path / "many", number, 12) for number in range(12)]
    rng = np.random.default_rng(2)
    for step in range(3):
        for number, rank in enumerate(ranks):
            bad = ("grad_reduced", NAMES[0]) if (number, step) == (10, 2) else None
            take_step(rank, step, rng, bad=bad)
    for rank in ranks:
        rank.stop()
    lines = call(tmp_path / "many", "-n", "1", "--worst", "3")[1].splitlines()
    assert len(lines) == 5 and lines[1].split()[:2] == ["2", "10"]
    assert lines[4].startswith("  ... and 9 more ranks")
    assert len(call(tmp_path / "many", "-n", "1", "--worst", "0")[1].splitlines()) == 13


def test_a_run_is_followed_into_its_restart(tmp_path):
    out = tmp_path / "run"
    rng = np.random.default_rng(3)
    rank = WrittenRank(out, flush_seconds=0.01)
    seen = [take_step(rank, step, rng) for step in range(3)]
    follower = Follower(out, "-n", "2")
    follower.wait_for(lambda lines: any(line["step"] == 2 for line in lines))
    seen += [take_step(rank, step, rng) for step in (3, 4)]
    follower.wait_for(lambda lines: any(line["step"] == 4 for line in lines))
    rank.stop()
    again = WrittenRank(out, flush_seconds=0.01)
    assert again.directory != rank.directory
    take_step(again, 0, rng)
    lines = follower.wait_for(lambda lines: lines[-1]["restart"] == 1)
    again.stop()
    code, err = follower.end()
    assert code == 0 and "following 1 rank" in err
    first = [line for line in lines if line["restart"] == 0]
    steps = [line["step"] for line in first]
    # The newest two of what was there, then each once.
    assert steps == list(range(steps[0], 5))
    for line in first:
        arrays = seen[line["step"]]
        assert line["norms"]["grad_reduced"] == norm(*arrays.values())


def test_following_says_that_the_run_has_ended_and_waits_for_a_restart(tmp_path):
    out = tmp_path / "run"
    rng = np.random.default_rng(3)
    rank = WrittenRank(out, flush_seconds=0.01)
    take_step(rank, 0, rng)
    follower = Follower(out)
    said = []
    reads = threading.Thread(target=lambda: said.extend(follower.process.stderr), daemon=True)
    reads.start()
    wait_until(lambda: said)
    time.sleep(0.5)
    assert said == ["following 1 rank; Ctrl-C ends\n"], "it goes on"
    end = "the run has ended; waiting for a restart, Ctrl-C ends\n"
    rank.stop()
    wait_until(lambda: end in said)
    time.sleep(0.5)
    assert said.count(end) == 1 and follower.process.poll() is None
    again = WrittenRank(out, flush_seconds=0.01)
    take_step(again, 1, rng)
    follower.wait_for(lambda lines: lines[-1]["restart"] == 1 if lines else False)
    again.stop()
    wait_until(lambda: said.count(end) == 2)
    follower.process.send_signal(signal.SIGINT)
    assert follower.process.wait(30) == 0


def test_the_last_step_of_an_ended_run_comes_before_its_end_is_said(tmp_path):
    rng = np.random.default_rng(3)
    rank = WrittenRank(tmp_path / "run")
    for step in range(3):
        take_step(rank, step, rng)
    rank.stop()
    words = [program(), "tail", "-f", "-n", "1", "--interval", "0.05", tmp_path / "run"]
    both = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    time.sleep(3)
    both.send_signal(signal.SIGINT)
    lines = both.communicate(timeout=30)[0].splitlines()
    end = [i for i, line in enumerate(lines) if line.startswith("the run has ended")]
    steps = [i for i, line in enumerate(lines) if line.split()[:1] == ["2"]]
    assert len(end) == 1 and steps and steps[0] < end[0], lines


def test_steps_in_many_segments(tmp_path):
    rng = np.random.default_rng(4)
    rank = WrittenRank(tmp_path / "run", segment_mb=0.002, flush_seconds=0.01)
    follower = None
    for step in range(60):
        take_step(rank, step, rng)
        if step == 20:
            rank_segments = lambda: len(list(rank.directory.glob("*.tmlog")))  # noqa: E731
            follower = Follower(tmp_path / "run", "-n", "100")
    lines = follower.wait_for(lambda lines: len(lines) >= 60)
    rank.stop()
    assert rank_segments() > 3
    assert follower.end()[0] == 0
    assert [line["step"] for line in lines] == list(range(60))
    assert [line["step"] for line in lines_of(tmp_path / "run", "-n", "45")] == list(range(15, 60))


def test_a_log_that_begins_after_the_first_look(tmp_path):
    rank = WrittenRank(tmp_path / "run", segment_mb=0.002, flush_seconds=0.01)
    rng = np.random.default_rng(4)
    for step in range(60):
        take_step(rank, step, rng)
    rank.stop()
    segments = sorted(rank.directory.glob("*.tmlog"))
    assert len(segments) > 3
    for segment in segments:
        segment.rename(tmp_path / segment.name)
    follower = Follower(tmp_path / "run", "-n", "100")
    while not follower.process.stderr.readline().startswith("following"):
        assert follower.process.poll() is None
    for segment in segments:  # sooner than the next look comes
        (tmp_path / segment.name).rename(segment)
    lines = follower.wait_for(lambda lines: len(lines) >= 60)
    follower.end()
    assert [line["step"] for line in lines] == list(range(60))


def test_an_unfinished_step_is_told_at_the_end_and_a_torn_frame_is_no_damage(tmp_path):
    rng = np.random.default_rng(5)
    rank = WrittenRank(tmp_path / "run")
    take_step(rank, 0, rng)
    rank.observe(rng.normal(size=9).astype(np.float32), "grad_reduced", "w", 1)
    rank.monitor.seal("backward_end")
    rank.stop()
    lines = lines_of(tmp_path / "run")
    assert [(line["step"], line["fate"]) for line in lines] == [(0, "taken"), (1, "open")]
    (segment,) = rank.directory.glob("*.tmlog")
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-7])
    (rank.directory / "health.json").unlink()
    code, out, err = call(tmp_path / "run", "--json")
    assert (code, err) == (0, "") and json.loads(out.splitlines()[0])["step"] == 0
    segment.write_bytes(whole[:300] + bytes([whole[300] ^ 255]) + whole[301:])
    code, out, err = call(tmp_path / "run", "--json")
    assert code == 3 and "not used" in err


def test_no_run_is_wrong_usage(tmp_path):
    code, out, err = call(tmp_path / "nothing")
    assert (code, out) == (2, "") and "no such directory" in err


def test_it_waits_for_the_first_start(tmp_path):
    run = tmp_path / "later" / "run"
    follower = Follower(run)
    waits = f"no run in {run} yet; waiting for its first start, Ctrl-C ends\n"
    assert follower.process.stderr.readline() == waits
    run.mkdir(parents=True)
    time.sleep(0.2)
    assert follower.process.poll() is None and not follower.lines
    rng = np.random.default_rng(6)
    rank = WrittenRank(run, flush_seconds=0.01)
    for step in range(3):
        take_step(rank, step, rng)
    rank.stop()
    lines = follower.wait_for(lambda lines: len(lines) == 3)
    assert [line["step"] for line in lines] == [0, 1, 2]
    code, said = follower.end()
    assert code == 0 and "waiting for its" not in said


@pytest.mark.parametrize("command", ["tail", "diagnose", "blackbox"])
def test_ctrl_c_before_the_first_start(tmp_path, command):
    words = [program(), command, "-f", tmp_path / "run"]
    waits = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "waiting for its first start" in waits.stderr.readline()
    waits.send_signal(signal.SIGINT)
    out, said = waits.communicate(timeout=30)
    assert (waits.returncode, out, said) == (3, "", "")


@pytest.mark.parametrize("command", ["tail", "diagnose", "blackbox"])
def test_where_no_run_can_start_nothing_is_waited_for(tmp_path, command):
    """A file, and a directory of runs: somebody has mistyped."""
    (tmp_path / "file").write_text("")
    rank = WrittenRank(tmp_path / "runs" / "a")
    rank.stop()
    for path, said in (("file", "file"), ("runs", "did you mean")):
        words = [program(), command, "-f", tmp_path / path]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (2, "") and said in done.stderr, done.stderr
