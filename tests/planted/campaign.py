# Pairs of training runs that differ by one planted bug, or by the order of summation alone, compared.
"""`python campaign.py OUT --seeds 101 102 103` prints the tables of docs/measurements-history.md."""

import argparse
import json
import pathlib
import random
import shutil
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))

import launch  # noqa: E402
import trainmon  # noqa: E402

SCRIPT = HERE / "planted_run.py"
STEPS, DEPTH = 30, 3
# What changes the order of summation and nothing else; the first one is the repeat of `--null`.
ORDERS = {
    "2 threads": {"threads": 2},
    "batch in 2 parts": {"micro_batches": 2},
    "batch in 4 parts": {"micro_batches": 4},
    "batch reversed": {"reversed_batch": True},
    "without oneDNN": {"mkldnn": False},
    "attention in plain operations": {"math_attention": True},
}


def plans(seed):
    """Every bug at a place drawn by the seed, and where it must be found: step, kind, name, rank.
    The run with the bug sums in another order, too."""
    draw = random.Random(seed)

    def place():
        return {"layer": draw.randrange(DEPTH), "step": draw.randrange(20)}

    rate = {**place(), "factor": draw.choice([0.1, 0.3, 3.0, 10.0])}
    mask = {**place(), "transposed": draw.random() < 0.5}
    bf16, reduction = place(), {**place(), "rank": draw.randrange(2)}
    return [
        ("learning_rate", 1, rate, ("param_updated", "blocks.{layer}.", None)),
        ("mask", 1, mask, ("actv", "blocks.{layer}.attention", None)),
        ("bf16", 1, bf16, ("actv", "blocks.{layer}.up", None)),
        ("all_reduce", 2, reduction, ("grad_reduced", "blocks.{layer}.", reduction["rank"])),
    ]


def train(runs, ranks=1):
    launch.run(SCRIPT, *(json.dumps(run) for run in runs), ranks=ranks, timeout=900)


def found_at(report):
    first = report["first"]
    if first is None:
        return f"nothing ({report['worst'][0]['ratio']:.2f})"
    element = f" {first['element']}" if first["element"] else ""
    rank = "" if first["rank"] < 0 else f", rank {first['rank']}"
    return f"{first['step']}, {first['kind']} {first['name']}{element}{rank}, {first['ratio']:.3g}"


def is_right(first, planted, truth):
    kind, name, rank = truth
    return (
        first is not None
        and first["step"] == planted["step"]
        and first["kind"] == kind
        and first["name"].startswith(name.format(**planted))
        and rank in (None, first["rank"])
    )


def campaign(out, seeds):
    """Lines of the table of bugs and of the table of clean pairs, and how many of each are right."""
    bugs, clean, right = [], [], []
    for seed in seeds:
        base = {"seed": seed, "steps": STEPS}

        def run(name, seed=seed, base=base, **more):
            return {**base, "out": str(out / f"{seed}-{name}"), **more}

        def compared(a, b, null, seed=seed):
            runs = [out / f"{seed}-{name}" for name in (a, b, null)]
            alone = trainmon.compare(runs[0], runs[1])
            return alone, trainmon.compare(runs[0], runs[1], null=runs[2])

        planned = plans(seed)
        alone = [run("a-1"), *(run(name, **order) for name, order in ORDERS.items())]
        several = [run("a-2"), run("null-2", threads=2)]
        for bug, ranks, planted, _ in planned:
            runs = alone if ranks == 1 else several
            runs.append(run(bug, bug=bug, mkldnn=False, **planted))
        train(alone)
        train(several, ranks=2)
        for bug, ranks, planted, truth in planned:
            null = "2 threads" if ranks == 1 else "null-2"
            answers = compared(f"a-{ranks}", bug, null)
            right += [is_right(one["first"], planted, truth) for one in answers]
            what = ", ".join(f"{k} {v}" for k, v in planted.items() if k not in ("step", "layer"))
            bugs.append(
                f"| {bug}{' (' + what + ')' if what else ''} | {seed} | {planted['step']}, blocks.{planted['layer']} | "
                + " | ".join(map(found_at, answers))
                + f" | {'yes' if all(right[-2:]) else 'NO'} |"
            )
        for name in ORDERS:
            null = "batch reversed" if name == "2 threads" else "2 threads"
            answers = compared("a-1", name, null)
            right += [one["first"] is None for one in answers]
            clean.append(f"| {name} | {seed} | " + " | ".join(map(found_at, answers)) + " |")
        answers = compared("a-2", "null-2", "null-2")
        right.append(answers[0]["first"] is None)
        clean.append(f"| DDP, 2 ranks: 2 threads each | {seed} | {found_at(answers[0])} | - |")
        shutil.rmtree(out, ignore_errors=True)
    return bugs, clean, right


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=pathlib.Path, help="for the runs, removed afterwards")
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    options = parser.parse_args()
    bugs, clean, right = campaign(options.out, options.seeds)
    print("| bug | seed | planted at step, in | found without `--null` | with `--null` | right |")
    print("|---|---|---|---|---|---|", *bugs, sep="\n")
    print("\n| differs in | seed | found without `--null` | with `--null` |")
    print("|---|---|---|---|", *clean, sep="\n")
    print(f"\n{sum(right)} of {len(right)} verdicts right")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
