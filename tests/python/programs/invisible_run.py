# Trains every configuration bare and watched in one process (per rank) and writes what happened.
"""invisible_run.py OUT MODE STEPS [--mutant NAME] [--only MODEL PRECISION ACCUMULATION] [--alone]

Bare runs come first, before trainmon is even imported. Each run leaves a trail: for every step one
digest per thing that must not change. OUT/<rank>.json holds trails, marks and health.
"""

import argparse
import collections
import gc
import hashlib
import itertools
import json
import os
import pathlib
import random
import sys

import numpy as np
import torch
import torch.distributed as dist

import launch
import marks
import models

KINDS = ["grads", "grad_unreduced", "weights", "moments", "activations"]


def digest(*parts):
    total = hashlib.blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, torch.Tensor):
            part = models.local(part.detach()).contiguous().view(-1).view(torch.uint8).numpy()
        total.update(part if isinstance(part, (bytes, np.ndarray)) else repr(part).encode())
    return total.hexdigest()


def graph_nodes(loss):
    """Names of the autograd nodes below the loss: a monitor inserts none."""
    seen, waiting, names = set(), [loss.grad_fn], collections.Counter()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        names[node.name()] += 1
        waiting.extend(following for following, _ in node.next_functions)
    return sorted(names.items())


def collectives():
    if not dist.is_initialized():
        return 0
    return dist.distributed_c10d._get_default_group()._get_sequence_number_for_group()


class Mutant:
    """One deliberate disturbance through an extra hook, alive in a few steps only."""

    def __init__(self, name, model, step):
        self.name, self.step, self.now = name, step, 0
        parameter = next(p for p in model.parameters() if p.ndim == 2)
        if name == "scale":
            parameter.register_post_accumulate_grad_hook(self.scale)
        elif name:
            model.register_forward_hook(self.draw)

    def scale(self, parameter):
        if self.now == self.step:
            parameter.grad.mul_(1 + 2**-23)

    def draw(self, *_):
        if self.now == self.step:
            {
                "torch": torch.rand,
                "numpy": np.random.rand,
                "python": random.betavariate,
            }[self.name](*((1, 1) if self.name == "python" else (1,)))


def train(name, mode, precision, accumulation, steps, watch=None, mutant=None):
    """One training run; returns its trail, and its marks after everything was taken off."""
    models.seed(7)
    model = models.spread(models.build(name), mode)
    models.seed(100 + int(os.environ["RANK"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.98**step)
    step_before = vars(optimizer)["step"]  # put there by the scheduler
    monitor = watch(model, optimizer) if watch else None
    disturb = Mutant(mutant, model, steps // 2) if mutant else None
    trail, first = collections.defaultdict(list), collectives()
    for step in range(steps):
        if disturb:
            disturb.now = step
        losses = []
        for micro in range(accumulation):
            data, target = models.draw(name)
            with models.micro_step(model, mode, micro == accumulation - 1):
                with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                    loss = models.loss_of(model(data), target) / accumulation
                if step in (0, steps - 1):
                    trail["graph"].append(digest(graph_nodes(loss)))
                loss.backward()
            losses.append(loss.detach())
        trail["losses"].append(digest(*losses))
        trail["gradients"].append(
            digest(*(p.grad for p in model.parameters() if p.grad is not None))
        )
        optimizer.step()
        scheduler.step()
        trail["weights"].append(digest(*model.parameters(), *model.buffers()))
        state = [v for p in model.parameters() for v in optimizer.state[p].values()]
        trail["moments"].append(digest(*state))
        optimizer.zero_grad()
        trail["torch"].append(digest(torch.get_rng_state()))
        trail["numpy"].append(digest(np.random.get_state()[1], np.random.get_state()[2:]))
        trail["python"].append(digest(random.getstate()))
        trail["collectives"].append(collectives() - first)
    health = None
    if monitor:
        monitor.stop()
        health = monitor.health()
    assert vars(optimizer)["step"] is step_before, "optimizer.step was replaced"
    return trail, marks.of_objects(model, [optimizer]), health


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("mode", choices=("single", "ddp", "fsdp2"))
    parser.add_argument("steps", type=int)
    parser.add_argument("--mutant")
    parser.add_argument("--only", nargs=3)
    parser.add_argument("--alone", action="store_true", help="only rank 0 watches")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    rank = int(os.environ["RANK"])
    if options.mode != "single":
        launch.join()
    cases = list(itertools.product(models.NAMES, ("fp32", "bf16"), (1, 4)))
    if options.only:
        cases = [(options.only[0], options.only[1], int(options.only[2]))]
    report = {}
    for name, precision, accumulation in cases:
        bare, marks_bare, _ = train(name, options.mode, precision, accumulation, options.steps)
        key = f"{name}-{precision}-{accumulation}"
        report[key] = {"bare": bare, "marks_bare": marks_bare}
    assert "trainmon" not in sys.modules
    gc.collect()
    code_before = marks.of_code()

    import trainmon

    for name, precision, accumulation in cases:
        key = f"{name}-{precision}-{accumulation}"
        run = options.out / key

        def watch(model, optimizer, run=run, checks=accumulation == 4):
            return trainmon.watch(
                model,
                optimizer,
                kinds=KINDS,
                checks=checks,
                input_grads=True,
                every=1,
                out=str(run),
            )

        mine = watch if rank == 0 or not options.alone else None
        watched, marks_watched, health = train(
            name, options.mode, precision, accumulation, options.steps, mine, options.mutant
        )
        report[key].update(watched=watched, marks_watched=marks_watched, health=health)
    report["code_changed"], _ = marks.changed(code_before, marks.of_code())
    (options.out / f"{rank}.json").write_text(json.dumps(report, default=str))
    if options.mode != "single":
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
