# Whether a budget is kept: the reference model with every kind watched, under several budgets.
"""bench_governor.py [--steps N] [--json FILE] [--budget B ...]

Two copies of the model train on the same batches, one watched with a budget and one bare, one step
each in random order. The first 50 steps are the governor's to settle; of the rest, recorded and
unrecorded steps are compared with their bare ones apart (medians of paired differences, of the
thread's CPU time, which other processes disturb least) and weighted as often as they came. Where its
tensors lie in memory makes one copy faster than the other by up to a per cent: both train on as many
steps with nobody watching, and by that difference the result is corrected. The governor's clock must
not see the bare copy's steps, which lie between those of the watched one: it is put forward by them.
"""

import argparse
import json
import pathlib
import random
import statistics
import tempfile
import time

import reference

import trainmon

KINDS = ["grads", "weights", "moments", "activations"]
SETTLING = 50


def overhead(pairs, unwatched):
    """Mean cost of a step over a bare one, as a share, from (recorded, bare, watched) seconds and
    the last two of the same copies unwatched."""
    bare = statistics.median(b for _, b, _ in pairs)
    cost = -statistics.median(w - b for b, w in unwatched)
    for sort in (True, False):
        differences = [w - b for recorded, b, w in pairs if recorded is sort]
        if differences:
            cost += len(differences) / len(pairs) * statistics.median(differences)
    return cost / bare


def low_and_high(pairs, unwatched, rounds=1000):
    draw = random.Random(0)
    found = sorted(
        overhead(draw.choices(pairs, k=len(pairs)), draw.choices(unwatched, k=len(unwatched)))
        for _ in range(rounds)
    )
    return found[rounds // 20], found[-rounds // 20]


def measure(budget, steps):
    draw = random.Random(1)
    bare, watched = reference.Trainer(), reference.Trainer()
    pairs = []

    def both_step(own_time=None):
        batch = reference.batch()
        took = {}
        for trainer in draw.sample([bare, watched], 2):
            began = time.perf_counter()
            took[trainer] = trainer.step(batch)[1]
            if trainer is bare and own_time is not None and own_time.step_began is not None:
                own_time.step_began += time.perf_counter() - began
        return took[bare], took[watched]

    with tempfile.TemporaryDirectory() as folder:
        monitor = trainmon.watch(
            watched.model,
            watched.optimizer,
            kinds=KINDS,
            every=1,
            budget=budget,
            out=folder,
            allow_volume=True,
        )
        for step in range(SETTLING + steps):
            recorded = monitor._adapter.clock.recording
            took = both_step(monitor._adapter.own_time)
            if step >= SETTLING:
                pairs.append((recorded, *took))
        note = json.loads(monitor._core.budget())
        health = monitor.stop()
        assert health["parts_off"] == {} and health["errors"] == 0
    return pairs, [both_step() for _ in range(steps)], note


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="after the first 50")
    parser.add_argument("--budget", nargs="+", default=["1%", "2%", "5%"])
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    lines = []
    print("budget  kept           governor's estimate  measured  [5 %, 95 %]")
    for budget in options.budget:
        pairs, unwatched, note = measure(budget, options.steps)
        share, (low, high) = overhead(pairs, unwatched), low_and_high(pairs, unwatched)
        part, of = note["kept"]
        print(
            f"{budget:7s} {part:4d} of {of:5d} {100 * note['share']:10.2f} % "
            f"(recorded step {100 * note['recorded_cost']:.2f} %, factor {note['factor']:.2f}) "
            f"{100 * share:8.2f} %  [{100 * low:.2f}, {100 * high:.2f}]",
            flush=True,
        )
        lines.append(
            {
                "name": f"overhead with every kind and budget {budget}",
                "figure": 100 * share,
                "unit": "% of a bare step",
                "yardstick": "budget",
                "yardstick_figure": 100 * note["budget"],
                "ratio": share / note["budget"],
                "lower_is_better": True,
                "low": 100 * low,
                "high": 100 * high,
                "kept": note["kept"],
                "estimate": 100 * note["share"],
            }
        )
    if options.json:
        options.json.write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
