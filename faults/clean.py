"""Trains without a fault, and asks `trainmon diagnose` of each record: what it calls certain is false.

    python faults/clean.py OUT SETTING SEED STEPS [--trainmon COMMAND]

Records have RECORD steps, each with one of VARIATIONS, which are legitimate. OUT/clean.jsonl has a line for
each; a record with a false alarm stays in OUT, the others are removed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from campaign import gradient_norm, watched, whole_norm
from training import CLEAN_SETTINGS, Training, local, text

RECORD = 500
CHANGE = RECORD // 2  # when what happens once does


def scale(key: str, factor: float) -> Callable:
    def before(training, mon, step, kept):
        if step == CHANGE:
            for group in training.optimizer.param_groups:
                group[key] *= factor

    return before


def another_text(training, mon, step, kept):
    if step == CHANGE:
        training.text = text(("pydoc.py", "decimal.py", "turtle.py"))
    if step == RECORD - 1:
        training.text = text()


def load_a_state(training, mon, step, kept):
    """And give the batches since then again."""
    if step == CHANGE:
        kept["saved"] = training.save()
    if step == CHANGE + 20:
        with mon.edits("goes back twenty steps"):
            number = training.step
            training.load(kept["saved"])
            training.step = number


def swap_an_average(training, mon, step, kept):
    """For an evaluation, and back."""
    weights = [local(p) for p in training.parameters.values()]
    with torch.no_grad():
        if step == 0:
            kept["average"] = [one.clone() for one in weights]
        for one, average in zip(weights, kept["average"]):
            average.lerp_(one, 0.05)
        if step % 100 == 99:
            own = [one.clone() for one in weights]
            with mon.edits("an average is evaluated"):
                for one, average in zip(weights, kept["average"]):
                    one.copy_(average)
                evaluate(training, mon, 0, kept)
                for one, before in zip(weights, own):
                    one.copy_(before)


def evaluate(training, mon, step, kept):
    """The same batch on all ranks, again and again."""
    if step % 50 == 0:
        training.wrapped.eval()
        with torch.no_grad():
            training.wrapped(training.text[:64].view(2, 32))
        training.wrapped.train()


def grow_the_batch(training, mon, step, kept):
    training.batch_size = 2 + 6 * step // RECORD
    if step == RECORD - 1:
        training.batch_size = 4


def cosine_with_restarts(training, mon, step, kept):
    for group in training.optimizer.param_groups:
        highest = kept.setdefault("rate", group["lr"])
        place = step % 200
        group["lr"] = highest * min((place + 1) / 20, 0.55 + 0.45 * math.cos(math.pi * place / 200))
        if step == RECORD - 1:
            group["lr"] = highest


VARIATIONS: dict[str, Callable] = {
    "none": lambda *_: None,
    "rate x0.5": scale("lr", 0.5),
    "rate x1.5": scale("lr", 1.5),
    "decay x3": scale("weight_decay", 3),
    "another text": another_text,
    "a loaded state": load_a_state,
    "an average swapped in": swap_an_average,
    "evaluation": evaluate,
    "a growing batch": grow_the_batch,
    "a cosine with restarts": cosine_with_restarts,
}


def train(training: Training, mon, before: Callable, steps: int) -> None:
    kept: dict = {}
    norms: list[float] = []

    def note_norm(which: Training, point: str) -> None:
        if point == "reduced":
            norms.append(whole_norm(which, gradient_norm(which)))

    training.watchers = [note_norm]
    for step in range(steps):
        before(training, mon, step, kept)
        training.take_step()
        mon.log(grad_norm=norms[-1])


def diagnosed(command: str, run: Path) -> dict:
    done = subprocess.run(
        [command, "diagnose", os.fspath(run), "--json"], capture_output=True, text=True, timeout=600
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{run}: diagnose ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("setting", choices=[one.name for one in CLEAN_SETTINGS])
    parser.add_argument("seed", type=int)
    parser.add_argument("steps", type=int)
    parser.add_argument("--seconds", type=float, default=0, help="end after so many; 0: never")
    parser.add_argument("--trainmon", default=os.fspath(Path(sys.executable).with_name("trainmon")))
    options = parser.parse_args()
    torch.set_num_threads(1)
    (setting,) = [one for one in CLEAN_SETTINGS if one.name == options.setting]
    if setting.ranks > 1:
        dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    draws = random.Random(f"clean {setting.name} {options.seed}")
    names = list(VARIATIONS)
    number = draws.randrange(len(names))
    done = 0
    begin = time.monotonic()
    while done < options.steps:
        if options.seconds and out_of_time(begin + options.seconds):
            break
        # A start of its own now and then, for a training that is done learns nothing any more.
        if done % (len(names) * RECORD) == 0:
            training = Training(setting, draws.randrange(1 << 30))
        name = names[number % len(names)]
        steps = min(RECORD, options.steps - done)
        out = options.out / f"{number:04d}"
        mon = watched(training, out)
        train(training, mon, VARIATIONS[name], steps)
        mon.stop()
        number, done = number + 1, done + steps
        if setting.ranks > 1:
            dist.barrier()
        if training.rank == 0:
            note(options, out, setting.name, name, steps)
    if dist.is_initialized():
        dist.destroy_process_group()


def out_of_time(end: float) -> bool:
    """The same on all ranks."""
    late = torch.tensor(float(time.monotonic() > end))
    if dist.is_initialized():
        dist.broadcast(late, 0)
    return bool(late)


def note(options: argparse.Namespace, out: Path, setting: str, name: str, steps: int) -> None:
    answer = diagnosed(options.trainmon, out)
    line = {
        "setting": setting, "variation": name, "steps": steps, "run": out.name,
        "verdict": answer["verdict"], "checked": answer["checked"],
        "noticed": [f"{one['check']}: {one['text']}" for one in answer["findings"]],
    }  # fmt: skip
    with (options.out / "clean.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    if answer["verdict"] is None:
        shutil.rmtree(out)


if __name__ == "__main__":
    main()
    # All is written, and gloo now and then aborts when the interpreter ends.
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(0)
