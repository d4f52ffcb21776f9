"""Trains, forks, plants: one setting, many faults, in as many processes as the setting has ranks.

    python faults/campaign.py OUT SETTING SEED [--forks N] [--faults N]

OUT/<number> is the run of one fault, with truth.json beside its ranks; OUT/clean_<fork> that of a clean
twin. The seed decides everything that is drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from catalogue import BEFORE, FAULTS
from planting import Draw, Fault
from training import SETTINGS, Setting, Training, local
from witness import Witness, first_difference

import trainmon

BEFORE_FORKS, BETWEEN_FORKS = 20, 10
STEPS = 24  # of each run
LASTING = 10**6  # steps of a fault that goes on
FIRST, LAST = 12, 17  # when a fault may strike: every check has held before, and steps come after


def gathered(one):
    if not dist.is_initialized():
        return [one]
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, one)
    return parts


def gradient_norm(training: Training, counts_twice: bool = False) -> float:
    """Of this rank's part; `counts_twice`: with the LayerNorms once more."""
    squares = sum(
        local(p.grad).double().square().sum().item() * (2 if counts_twice and "norm" in name else 1)
        for name, p in training.parameters.items()
    )
    return squares**0.5


def whole_norm(training: Training, norm: float) -> float:
    """What a training logs: of all shards."""
    if training.setting.wrapper != "fsdp2":
        return norm
    squares = torch.tensor(norm**2, dtype=torch.float64)
    dist.all_reduce(squares)
    return squares.sqrt().item()


class Plant:
    def __init__(self, fault: Fault, draw: Draw, fork: int):
        self.fault, self.draw, self.fork = fault, draw, fork
        self.before = BEFORE.get(fault.name)
        self.last = LASTING if fault.lasts else 0

    def __call__(self, training: Training, point: str) -> None:
        step = training.step - self.fork
        first = self.draw.step
        if self.before and point == self.before[0]:
            if first <= step - self.before[1] <= first + self.last:
                self.before[2](training, self.draw)
        if point == self.fault.point and first <= step <= first + self.last:
            self.fault.act(training, self.draw)


def watched(training: Training, out: Path):
    return trainmon.watch(training.wrapped, training.optimizer, checks=True, every=1, out=out)


def run(training: Training, saved: dict, out: Path | None, *watchers) -> dict:
    """What one fork of the training did: bits by the witness, losses, gradient norms."""
    training.load(saved)
    witness, losses, norms, logged = Witness(), [], [], []

    def note_norm(which: Training, point: str) -> None:
        if point == "reduced":
            norms.append(gradient_norm(which))
            counted = gradient_norm(which, which.counts_twice)
            logged.append(whole_norm(which, counted))
            witness.logs(which.step, logged[-1])

    training.watchers = [*watchers, witness, note_norm]
    mon = watched(training, out) if out is not None else None
    for _ in range(STEPS):
        losses.append(training.take_step())
        if mon is not None:
            mon.log(grad_norm=logged[-1])
    if mon is not None:
        mon.stop()
    training.watchers = []
    return {"seen": witness.seen, "losses": losses, "norms": norms}


def expected(fault: Fault, draw: Draw, setting: Setting, names: list[str]) -> dict:
    every = list(range(setting.ranks))
    return {
        "step": draw.step,
        "stage": fault.stage,
        "ranks": [draw.rank] if fault.blames == "own" else every,
        "tensors": {"one": [draw.tensor], "all": sorted(names), "none": []}[fault.tensors],
        "differ_on": [draw.rank] if fault.ranks == "own" else every,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("setting", choices=[one.name for one in SETTINGS])
    parser.add_argument("seed", type=int)
    parser.add_argument("--forks", type=int, default=2)
    parser.add_argument("--faults", type=int, help="so many, drawn from the list")
    options = parser.parse_args()
    torch.set_num_threads(1)
    (setting,) = [one for one in SETTINGS if one.name == options.setting]
    if setting.ranks > 1:
        dist.init_process_group("gloo", timeout=timedelta(minutes=3))
    draws = random.Random(f"{setting.name} {options.seed}")
    training = Training(setting, draws.randrange(1 << 30))
    run_faults(training, draws, options)
    if dist.is_initialized():
        dist.destroy_process_group()


def run_faults(training: Training, draws: random.Random, options: argparse.Namespace) -> None:
    setting, rank = training.setting, training.rank
    saved, twins = [], []
    for fork in range(options.forks):
        for _ in range(BEFORE_FORKS if fork == 0 else BETWEEN_FORKS):
            training.take_step()
        saved.append(training.save())
    for fork, state in enumerate(saved):
        bare = gathered(run(training, state, None))
        twin = gathered(run(training, state, options.out / f"clean_{fork}"))
        if first_difference([one["seen"] for one in bare], [one["seen"] for one in twin]):
            raise SystemExit("a watched training has other bits than one that is not watched")
        twins.append(bare)
        if rank == 0:
            record = {"setting": setting.name, "fault": None, "steps": STEPS}
            write(options.out / f"clean_{fork}", record, twin)

    faults = [one for one in FAULTS if one.applies(setting)]
    if options.faults:
        faults = draws.sample(faults, min(options.faults, len(faults)))
    for number, fault in enumerate(faults):
        fork = draws.randrange(options.forks)
        draw = Draw(
            0 if fault.from_start else draws.randint(FIRST, LAST), draws.randrange(setting.ranks), draws.choice(training.names),
            draws.random(),
        )  # fmt: skip
        out = options.out / f"{number:03d}"
        results = gathered(run(training, saved[fork], out, Plant(fault, draw, saved[fork]["step"])))
        if rank != 0:
            continue
        seen = first_difference(
            [one["seen"] for one in twins[fork]], [one["seen"] for one in results]
        )
        if seen is not None:
            seen["step"] -= saved[fork]["step"]
        record = {
            "setting": setting.name,
            "fault": fault.name,
            "exact": fault.exact,
            "expected": expected(fault, draw, setting, training.names),
            "seen": seen,
            "clean_losses": [one["losses"] for one in twins[fork]],
        }
        write(out, record, results)


def write(out: Path, record: dict, results: list[dict]) -> None:
    """With what the baselines look at."""
    record["losses"] = [one["losses"] for one in results]
    record["norms"] = [one["norms"] for one in results]
    record["states_differ_at"] = states_differ_at(results)
    (out / "truth.json").write_text(json.dumps(record))


def states_differ_at(results: list[dict]) -> int | None:
    """The first step after which ranks hold other weights: a hash of all state, compared."""
    by_step: dict[int, set] = {}
    for one in results:
        steps: dict[int, list] = {}
        for (step, stage, name), bits in sorted(one["seen"].items()):
            if stage == "update":
                steps.setdefault(step, []).append((name, bits))
        for step, state in steps.items():
            by_step.setdefault(step, set()).add(tuple(state))
    first = min(by_step, default=0)
    return next((step - first for step in sorted(by_step) if len(by_step[step]) > 1), None)


if __name__ == "__main__":
    main()
    # All is written, and gloo now and then aborts when the interpreter ends.
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(0)
