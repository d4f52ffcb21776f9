# What a watched step costs: bare and watched steps of the reference model, in one process.
"""bench_overhead.py [--pairs N] [--json FILE] [--only NAME]

Two copies of the model train side by side on the same batches, one watched and one bare, one step
each in random order; half-way the roles change, so that luck of memory placement cancels. The first
line, where neither is watched, shows the noise of the measurement.
"""

import argparse
import pathlib
import random
import statistics
import tempfile

import reference
import timed

import trainmon

MODES = {
    "nothing (noise of the measurement)": None,
    "gradients": {"kinds": ["grads"]},
    "gradients, with a flight recorder": {"kinds": ["grads"], "recorder_mb": 64},
    "gradients, moments": {"kinds": ["grads", "moments"]},
    "gradients, weights, moments": {"kinds": ["grads", "weights", "moments"]},
    "gradients, weights, moments, with checks": {"kinds": ["grads"], "checks": True},
    "activations with output gradients": {"kinds": ["activations"], "input_grads": False},
    "activations with input gradients": {"kinds": ["activations"]},
    "activations with input gradients, sample 1/16": {"kinds": ["activations"], "sample": "1/16"},
    "all kinds, no input gradients": {
        "kinds": ["grads", "weights", "moments", "activations"],
        "input_grads": False,
    },
    "all kinds with input gradients": {"kinds": ["grads", "weights", "moments", "activations"]},
    "the same, with alerts on everything": {
        "kinds": ["grads", "weights", "moments", "activations"],
        "alert_deviation": 1e9,
        "alert_limit": 1e300,
        "alert_stats": ["norm", "mean", "min", "max", "absmax", "zeros", "nans"],
    },
    "attention, all layers and heads": {"kinds": ["attention"]},
    "spectral, all matrices": {"kinds": ["spectral"]},
    "all kinds, switched off": {"kinds": ["grads", "weights", "moments", "activations"]},
    "directions and contributions": {"kinds": ["grad_reduced", "mg_direction", "grad_micro"]},
}
OFF = ("all kinds, switched off",)  # by control.json, from the first step on
SPLIT = ("attention, all layers and heads",)  # need attention as a module of its own


def measure(keys, pairs, trainer=reference.Trainer, is_off=False):
    draw = random.Random(1)
    trainers = [trainer(), trainer()]
    walls, cpus, others, rows = ([], []), ([], []), [], 0
    with tempfile.TemporaryDirectory() as folder:
        for half, (bare, watched) in enumerate([trainers, trainers[::-1]]):
            monitor = None
            if keys is not None:
                out = pathlib.Path(folder, str(half))
                if is_off:
                    out.mkdir()
                    out.joinpath("control.json").write_text(
                        '{"format": 1, "number": 1, "on": false, "set": {}, "apply_at_step": null}'
                    )
                monitor = trainmon.watch(
                    watched.model,
                    watched.optimizer,
                    every=1,
                    out=str(out),
                    allow_volume=True,
                    **keys,
                )
            for pair in range(pairs // 2 + 3):
                batch = reference.batch()
                both = [(0, bare), (1, watched)]
                draw.shuffle(both)
                took = {index: trainer.step(batch) for index, trainer in both}
                if pair >= 3:  # the first steps register series and fill caches
                    for index, (wall, cpu, _) in took.items():
                        walls[index].append(wall)
                        cpus[index].append(cpu)
                    others.append(took[1][2])
            if monitor:
                monitor.stop()
                health = monitor.health()
                rows += health["rows_produced"]
                assert health["parts_off"] == {} and health["errors"] == 0
                assert all(s["rows_written"] == health["rows_produced"] for s in health["sinks"])
    result = reference.paired(*walls)
    result["cpu"] = reference.paired(*cpus)
    result["other_threads_ms"] = 1000 * statistics.median(others)
    result["rows_per_step"] = rows / (2 * (pairs // 2 + 3))
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=160)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--only", choices=list(MODES))
    options = parser.parse_args()
    lines = []
    print(f"{'recorded each step':44s} {'bare':>11s} {'share':>10s}   [5 %, 95 % of the median]")
    for name, keys in MODES.items():
        if options.only in (None, name):
            trainer = reference.SplitTrainer if name in SPLIT else reference.Trainer
            is_off = name in OFF
            result = measure(keys, options.pairs, trainer, is_off)
            lines.append(
                timed.line(
                    f"overhead: {name}",
                    result["median_percent"],
                    "% of a bare step",
                    "a bare step, ms",
                    result["bare_ms"],
                    1 + result["median_percent"] / 100,
                    lower=result["low_percent"],
                    upper=result["high_percent"],
                )
            )
            assert (result["rows_per_step"] == 0) == (is_off or keys is None)
            print(
                f"{reference.line(name, result)}\n{reference.line('  CPU of the thread', result['cpu'])}"
                f"\n  {result['rows_per_step']:.0f} rows a step, writer {result['other_threads_ms']:.2f} ms",
                flush=True,
            )
    timed.write_lines(options.json, lines)


if __name__ == "__main__":
    main()
