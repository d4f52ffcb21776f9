# Whether trainmon.estimate() is right: what it says of the reference model, and what watched steps then cost.
"""bench_estimate.py [--pairs N] [--json FILE] [--only NAME]

Each selection is estimated first, then measured twice. "Step" is what watched steps take more than bare ones,
as bench_overhead.py measures it: the CPU time of the training thread. "Hooks" is the CPU time inside
hooks, which they measure themselves as for a budget: the quickest step and the median one. It leaves out
what reading does to caches, and is disturbed less. A ratio above 1 says that the estimate was too high.
"""

import argparse
import pathlib
import statistics
import tempfile
import time

import reference
import timed
from bench_overhead import measure

import trainmon
from trainmon.torch.measuring import own_time

SELECTIONS = {
    "gradients": {"kinds": ["grads"]},
    "gradients, weights, moments": {"kinds": ["grads", "weights", "moments"]},
    "the same with checks": {"kinds": ["grads", "weights", "moments"], "checks": True},
    "activations": {"kinds": ["actv"]},
    "activations and their gradients": {"kinds": ["activations"]},
    "activations of blocks": {"kinds": ["activations"], "modules": "blocks"},
    "all of these": {"kinds": ["grads", "weights", "moments", "activations"]},
}
ROUNDS = 3  # of an estimate; its median is taken


def estimated(keys):
    trainer, batch = reference.Trainer(), reference.batch()
    found = [
        trainmon.estimate(trainer.model, trainer.optimizer, batch[0], every=1, **keys)
        for _ in range(ROUNDS)
    ]
    took = (one.together.milliseconds + one.hooks_milliseconds for one in found)
    return found[0], statistics.median(took)


class Heard:
    """In the place of the core, for what hooks tell of a step."""

    def __init__(self):
        self.seconds = []

    def step_timed(self, seconds, own_seconds, recorded):
        if recorded:
            self.seconds.append(own_seconds)
        return False  # the same steps are recorded as before


def time_in_hooks(keys, steps=24):
    """Milliseconds of the quickest recorded step, and of the median one."""
    trainer, heard = reference.Trainer(), Heard()
    own_time.now = (
        time.thread_time
    )  # instead of the wall clock; hooks of gradients in C++ keep that
    with (
        tempfile.TemporaryDirectory() as folder,
        trainmon.watch(
            trainer.model,
            trainer.optimizer,
            every=1,
            budget=0.5,
            out=folder,
            allow_volume=True,
            **keys,
        ) as monitor,
    ):
        monitor._adapter.own_time.core = heard
        for _ in range(steps):
            trainer.step(reference.batch())
    took = heard.seconds[2:]
    return 1000 * min(took), 1000 * statistics.median(took)


def bytes_of_log(keys, steps=40):
    """Of one step, in a run of some."""
    trainer = reference.Trainer()
    with tempfile.TemporaryDirectory() as folder:
        with trainmon.watch(
            trainer.model, trainer.optimizer, every=1, out=folder, allow_volume=True, **keys
        ):
            for _ in range(steps):
                trainer.step(reference.batch())
        return sum(path.stat().st_size for path in pathlib.Path(folder).rglob("*.tmlog")) / steps


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--only", choices=list(SELECTIONS))
    options = parser.parse_args()
    lines = []
    print(f"{'selection':34s} {'estimated':>10s}   hooks, ratio           step   rows, disk ratio")
    for name, keys in SELECTIONS.items():
        if options.only not in (None, name):
            continue
        found, milliseconds = estimated(keys)
        took = measure(keys, options.pairs)["cpu"]
        per_percent = took["bare_ms"] / 100
        measured = took["median_percent"] * per_percent
        low, high = (took[end] * per_percent for end in ("low_percent", "high_percent"))
        disk = found.together.disk_bytes_per_step / bytes_of_log(keys)
        least, median = time_in_hooks(keys)
        print(
            f"{name:34s} {milliseconds:7.2f} ms {least:6.2f} to {median:.2f} ms {milliseconds / least:5.2f}"
            f" {measured:7.2f} ms [{low:.2f}, {high:.2f}]"
            f"   {found.together.rows} {disk:.2f}",
            flush=True,
        )
        more = {"disk": disk, "hooks_median_ms": median, "step_ms": measured}
        told, hooks = "estimate: " + name, "CPU time inside hooks, the quickest step"
        lines.append(timed.line(told, milliseconds, "ms", hooks, least, **more))
    timed.write_lines(options.json, lines)


if __name__ == "__main__":
    main()
