"""Runs to push, `trainmon push` as a process, and one that is killed again and again."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np

from trainmon import _core
from written_run import WrittenRank

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / ".venv" / "bin" / "trainmon"
# Not the same a second time.
OF_NOW = (
    "lag_seconds", "series_left_out", "damaged_places", "queue_bytes", "queue_bytes_peak",
    "queue_seconds", "log_bytes",
    "dropped_queue_full", "dropped_max_series", "dropped_other", "scalars_dropped",
)  # fmt: skip


def take_steps(rank, first, last, bad=None, start=0):
    """Steps with a loss of 1 / (step + 1) and two layers; `bad`: a step with a NaN."""
    rng = np.random.default_rng(first)
    for step in range(first, last):
        for name in ("layers.1.weight", "layers.2.weight"):
            array = rng.normal(size=8).astype(np.float32)
            if step == bad and name == "layers.2.weight":
                array[0] = np.nan
            rank.observe(array, "grad_reduced", name, step - start)
        rank.monitor.add_scalar("loss", 1.0 / (step + 1))
        rank.end_step()


def write(run, steps=30, **options):
    rank = WrittenRank(run)
    take_steps(rank, 0, steps, **options)
    return rank


def write_restarted(run):
    """12 steps with a NaN in step 7, and a restart that goes through 8 to 13: 18 in all."""
    write(run, steps=12, bad=7).stop()
    again = WrittenRank(run)
    again.monitor.set_start_step(0, 8)
    take_steps(again, 8, 14, start=8)
    again.stop()


def expected(run):
    """{(restart, step): {path: value}} of all that does not change from push to push."""
    steps = _core.PushedSteps(os.fsencode(run), 100, [], False, None)
    found = {}
    while some := steps.look(1000):
        paths = [one[4] for one in steps.series_from(0)]
        for _, restart, step, _, values in some:
            values = {paths[n]: value for n, value in values}
            found[restart, step] = {p: v for p, v in values.items() if not p.endswith(OF_NOW)}
    return found


def same(found, run):
    """Whether these are the values of the run, {(restart, step): {path: value}}."""
    wanted = expected(run)
    found = {
        place: {p: v for p, v in values.items() if not p.endswith(OF_NOW)}
        for place, values in found.items()
    }
    assert found.keys() == wanted.keys()
    for place, values in wanted.items():
        np.testing.assert_equal(found[place], values, str(place))
    return True


@dataclasses.dataclass
class Pusher:
    """`trainmon push` as a process. What it says is read by a thread, so that no test hangs."""

    run: pathlib.Path
    words: tuple
    environment: dict

    def __post_init__(self):
        words = [PROGRAM, "push", self.run, "--interval", "0.05", *self.words]
        environment = {**os.environ, "TRAINMON_PYTHON": sys.executable, **self.environment}
        environment.setdefault("XDG_STATE_HOME", str(self.run.parent / "state"))
        self.process = subprocess.Popen(
            list(map(os.fspath, words)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment,
            cwd=self.run.parent,
        )
        self.said = []
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        for line in self.process.stderr:
            self.said.append(line)

    def wait_for(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end and self.process.poll() is None, "".join(self.said)
            time.sleep(0.01)

    def wait_until_said(self, text):
        self.wait_for(lambda: self.has_said(text))

    def has_said(self, text):
        return any(text in line for line in self.said)

    def end(self, code=0, signal_number=None):
        if signal_number is not None:
            self.process.send_signal(signal_number)
        ended = self.process.wait(90)
        self.thread.join(10)
        assert ended == code, "".join(self.said)
        return "".join(self.said)


def push(run, *words, code=0, **environment):
    return Pusher(run, words, environment).end(code)


def killed_again_and_again(run, *words, times, within, **environment):
    """Kills a push `times` times, at most `within` seconds after it has begun, while the run grows by
    40 steps each time; then lets one end."""
    chance = random.Random(1)
    rank = WrittenRank(run)
    for number in range(times):
        take_steps(rank, 40 * number, 40 * (number + 1))
        assert rank.monitor.settle(10.0)
        pusher = Pusher(run, ("-f", "--no-verdict", *words), environment)
        pusher.wait_until_said("following")
        time.sleep(chance.uniform(0.0, within))
        pusher.end(-signal.SIGKILL, signal.SIGKILL)
    rank.stop()
    push(run, *words, **environment)


@contextlib.contextmanager
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]
