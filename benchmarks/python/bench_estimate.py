# Whether trainmon.estimate() is right: what it says of the reference model, and what watched steps then cost.
"""bench_estimate.py [--pairs N] [--json FILE] [--only NAME]

Each selection is estimated first, then measured as bench_overhead.py does. The measured figure is the difference
of CPU time of the training thread, per step: other programs disturb it less than the wall clock.
Bytes on disk are those of the log. A ratio above 1 says that the estimate was too high.
"""

import argparse
import pathlib
import statistics
import tempfile

import reference
import timed
from bench_overhead import measure

import trainmon

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
    return found[0], statistics.median(one.together.milliseconds for one in found)


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
    print(f"{'selection':34s} {'estimated':>12s} {'measured':>24s} {'ratio':>6s}   disk, ratio")
    for name, keys in SELECTIONS.items():
        if options.only not in (None, name):
            continue
        found, milliseconds = estimated(keys)
        took = measure(keys, options.pairs)["cpu"]
        per_percent = took["bare_ms"] / 100
        measured = took["median_percent"] * per_percent
        low, high = (took[end] * per_percent for end in ("low_percent", "high_percent"))
        told = found.together.disk_bytes_per_step
        disk = told / bytes_of_log(keys)
        print(
            f"{name:34s} {milliseconds:9.2f} ms {measured:7.2f} ms [{low:.2f}, {high:.2f}]"
            f" {milliseconds / measured:6.2f}   {found.together.rows} rows, {disk:.2f}",
            flush=True,
        )
        ratio = milliseconds / measured
        lines.append(
            timed.line(
                f"estimate: {name}", milliseconds, "ms", "measured", measured, ratio, disk=disk
            )
        )
    timed.write_lines(options.json, lines)


if __name__ == "__main__":
    main()
