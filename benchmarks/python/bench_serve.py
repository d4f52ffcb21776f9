# What `trainmon serve` costs a training that it follows, and how far its pictures are behind.
"""bench_serve.py [--pairs N] [--seconds N] [--tensors N] [--steps N] [--json FILE]

The reference model trains and is watched. Blocks of its steps come in pairs: in one block of each,
`trainmon serve` and a client that asks as the page does go on; in the other one both are stopped by
a signal. Which comes first is drawn. The first line of the paired statistics has no follower in
either block: it shows the noise of the measurement.

Then a run of many rows (`--tensors` times `--steps`) gets one more step each second. There the
server's share of a core and its memory are measured, and how long after its writing a step is in
the pictures.
"""

import argparse
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import reference
import timed

import trainmon
from trainmon import _core

# As src/report/page/80_live.js asks. A line for each page: when it was there, and its last step.
CLIENT = r"""
import http.client, json, re, sys, time, urllib.parse
parts = urllib.parse.urlsplit(sys.argv[1])
def ask(path, tag=None):
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    connection.request("GET", parts.path + path, headers={"If-None-Match": tag} if tag else {})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, answer.headers.get("ETag"), content
tag, page = None, None
while True:
    status, now, content = ask("state", tag)
    if status == 200:
        tag = now
        state = json.loads(content)
        if state["page"] not in (None, page):
            page = state["page"]
            text = ask("")[2].decode()
            last = re.search(r'"steps":\[\d+,(\d+)\]', text)
            print(json.dumps([time.time(), int(last[1]) if last else -1, len(text)]), flush=True)
    time.sleep(1)
"""


class Follower:
    """`trainmon serve` of a run, and one client, whose pages are noted beside the run."""

    def __init__(self, run: pathlib.Path):
        command = str(pathlib.Path(sys.executable).parent / "trainmon")
        self.server = subprocess.Popen(
            [command, "serve", os.fspath(run)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        address = self.server.stdout.readline().strip()
        self.pages = run.parent / "pages.json"
        with self.pages.open("w") as pages:
            self.client = subprocess.Popen([sys.executable, "-c", CLIENT, address], stdout=pages)

    def signal(self, number: int) -> None:
        for process in (self.server, self.client):
            process.send_signal(number)

    def cpu_seconds(self) -> float:
        fields = (
            pathlib.Path(f"/proc/{self.server.pid}/stat").read_text().rpartition(")")[2].split()
        )
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        status = pathlib.Path(f"/proc/{self.server.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024 / 1e6

    def seen(self) -> list[tuple[float, int, int]]:
        return [json.loads(line) for line in self.pages.read_text().splitlines()]

    def end(self) -> None:
        self.signal(signal.SIGCONT)
        for process in (self.client, self.server):
            process.kill()
            process.wait()


def block(trainer, steps: int) -> tuple[float, float]:
    """Seconds of a step, the median of a block: of a clock, and of the processor over all threads."""
    walls, cpus = [], []
    for _ in range(steps):
        batch = reference.batch()
        wall, mine, others = trainer.step(batch)
        walls.append(wall)
        cpus.append(mine + others)
    return statistics.median(walls), statistics.median(cpus)


def paired_blocks(pairs: int, steps: int, is_followed: bool) -> dict:
    draw = random.Random(1)
    walls, cpus = ([], []), ([], [])
    trainer = reference.Trainer()
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "run")
        monitor = trainmon.watch(
            trainer.model,
            trainer.optimizer,
            kinds=["grads", "weights", "moments"],
            every=1,
            out=str(out),
            allow_volume=True,
        )
        block(trainer, 5)  # register series and fill caches
        follower = Follower(out)
        try:
            time.sleep(3)
            for _ in range(pairs):
                for is_on in draw.sample([False, True], 2):
                    is_stopped = not (is_on and is_followed)
                    follower.signal(signal.SIGSTOP if is_stopped else signal.SIGCONT)
                    wall, cpu = block(trainer, steps)
                    walls[is_on].append(wall)
                    cpus[is_on].append(cpu)
            monitor.stop()
            assert monitor.health()["errors"] == 0
            assert not is_followed or len(follower.seen()) > 1
        finally:
            follower.end()
    result = reference.paired(*walls)
    result["cpu"] = reference.paired(*cpus)
    return result


def grown(tensors: int, steps: int, seconds: int) -> dict:
    """A run that grows by a step each second behind its first rows, and is followed."""
    random_numbers = np.random.default_rng(0)
    values = random_numbers.standard_normal((64, 32)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "run")
        configuration = json.dumps({"out": str(out), "every": 1, "allow_volume": True})
        identity = json.dumps({"rank": 0, "world_size": 1, "run_id": "grown"})
        monitor = _core.Monitor(configuration, identity)
        monitor.add_optimizer(0)
        kinds = ("param_origin", "grad_reduced")
        series = [
            monitor.add_series(kinds[i % 2], f"layers.{i // 8}.w{i % 8}", dtype="float32")
            for i in range(tensors)
        ]

        def take_step(step: int) -> float:
            sizes = 1 + 0.3 * random_numbers.standard_normal(tensors).astype(np.float32)
            for i, number in enumerate(series):
                array = values[(i * 7 + step * 13) % 64] * sizes[i]
                _core.observe_at(monitor.handle, number, array, step, 0, 0)
            monitor.add_scalar("loss", 1.0 / (step + 1))
            monitor.begin_attempt(0)
            monitor.end_attempt(0, "taken", 1.0)
            monitor.seal("after_step")
            return time.time()

        written = {step: take_step(step) for step in range(steps)}
        time.sleep(2)
        follower = Follower(out)
        try:
            while not follower.seen():  # the first page reads all rows
                time.sleep(0.5)
            before, begin = follower.cpu_seconds(), time.time()
            for step in range(steps, steps + seconds):
                written[step] = take_step(step)
                time.sleep(max(0.0, begin + step - steps + 1 - time.time()))
            share = 100 * (follower.cpu_seconds() - before) / (time.time() - begin)
            pages = [one for one in follower.seen() if one[0] >= begin]
            # The oldest step that a page shows first waited longest.
            lags, shown = [], steps - 1
            for at, last, _ in pages:
                if last > shown:
                    lags.append(at - written[shown + 1])
                    shown = last
            return {
                "share": share,
                "memory": follower.memory_mb(),
                "lags": lags,
                "bytes": statistics.median(one[2] for one in pages),
            }
        finally:
            follower.end()
            monitor.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--block", type=int, default=12, help="steps of a block")
    parser.add_argument("--seconds", type=int, default=90)
    parser.add_argument("--tensors", type=int, default=400)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    lines = []
    for name, is_followed in (("nothing (noise of the measurement)", False), ("followed", True)):
        result = paired_blocks(options.pairs, options.block, is_followed)
        for clock, one in (("clock", result), ("processor", result["cpu"])):
            lines.append(
                timed.line(
                    f"serve: {name}, {clock}",
                    one["median_percent"],
                    "% of a step",
                    "a step without a follower, ms",
                    one["bare_ms"],
                    1 + one["median_percent"] / 100,
                    lower=one["low_percent"],
                    upper=one["high_percent"],
                )
            )
            print(reference.line(f"{name}, {clock}", one), flush=True)
    found = grown(options.tensors, options.steps, options.seconds)
    rows = options.tensors * options.steps
    for name, figure, unit, bound in (
        ("share of a core", found["share"], "%", 5.0),
        ("memory of the server", found["memory"], "MB", 256.0),
        ("pictures behind, median", statistics.median(found["lags"]), "s", 10.0),
        ("pictures behind, slowest", max(found["lags"]), "s", 20.0),
        ("size of the page", found["bytes"] / 1e6, "MB", 4.2),
    ):
        lines.append(timed.line(f"serve: {name}", figure, unit, "at most", bound))
        print(f"{rows} rows and a step a second: {name:<28} {figure:8.2f} {unit}", flush=True)
    timed.write_lines(options.json, lines)


if __name__ == "__main__":
    main()
