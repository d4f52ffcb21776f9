# What a watch adds to the peak memory of a process: bare and watched processes of the reference model.
"""bench_memory.py [--steps N] [--repeats N] [--json FILE]

Each candidate trains in a process of its own; the peak resident size is the kernel's. The budget is
4 MiB and 256 bytes per series beside what the queue may hold. The bare process imports trainmon, too.

Tensors get blocks of their own from the kernel (MALLOC_MMAP_THRESHOLD_), so that the peak is what is
in use. With glibc's defaults, --default-malloc, it is as much a matter of how the heap breaks up: the
same runs then differ by tens of MiB among themselves.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

import reference
import timed

MODES = {
    "bare": None,
    "gradients": {"kinds": ["grads"]},
    "all kinds with input gradients": {"kinds": ["grads", "weights", "moments", "activations"]},
    "the same, with alerts": {
        "kinds": ["grads", "weights", "moments", "activations"],
        "alert_deviation": 1e9,
        "alert_limit": 1e300,
    },
    "attention, all layers and heads": {"kinds": ["attention"]},
    "spectral, all matrices": {"kinds": ["spectral"]},
}


def train(mode, steps):
    """In the child: prints the peak in bytes, the series, and the most that the queue held."""
    trainer = reference.SplitTrainer()
    watch = None
    with tempfile.TemporaryDirectory() as folder:
        import trainmon.torch.adapter

        if MODES[mode] is not None:
            watch = trainmon.watch(
                trainer.model,
                trainer.optimizer,
                every=1,
                out=folder,
                allow_volume=True,
                **MODES[mode],
            )
        for _ in range(steps):
            trainer.step(reference.batch())
        series = 0
        if watch is not None:
            series = len({(r["kind"], r["name"], r["element"]) for r in watch.latest()})
        health = watch.stop() if watch is not None else {"queue_bytes_peak": 0}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps([peak, series, health["queue_bytes_peak"]]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--default-malloc", action="store_true")
    parser.add_argument("--child", choices=list(MODES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        train(options.child, options.steps)
        return
    lines, bare = [], None
    environment = dict(os.environ)
    if not options.default_malloc:
        blocks = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
        environment.update(blocks, MALLOC_TRIM_THRESHOLD_="65536")
    for mode in MODES:
        runs = []
        for _ in range(options.repeats):
            command = [sys.executable, __file__, "--child", mode, "--steps", str(options.steps)]
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, env=environment
            )
            runs.append(json.loads(done.stdout.splitlines()[-1]))
        peaks = [run[0] for run in runs]
        result = {
            "peak": statistics.median(peaks),
            "spread": max(peaks) - min(peaks),
            "series": runs[0][1],
            "queue": max(run[2] for run in runs),
        }
        bare = bare or result
        added = result["peak"] - bare["peak"]
        budget = 4 * 2**20 + 256 * result["series"]
        print(
            f"{mode:34s} {result['peak'] / 2**20:8.1f} MiB (spread {result['spread'] / 2**20:.1f})"
            f"  added {added / 2**20:+6.1f} MiB, budget {budget / 2**20:.1f} MiB"
            f" and the queue, which held {result['queue'] / 2**20:.2f} MiB",
            flush=True,
        )
        if MODES[mode] is not None:
            lines.append(
                timed.line(
                    f"memory: {mode}",
                    (added - result["queue"]) / 2**20,
                    "MiB added, beside the queue",
                    f"4 MiB and 256 B for each of {result['series']} series",
                    budget / 2**20,
                )
            )
    timed.write_lines(options.json, lines)


if __name__ == "__main__":
    main()
