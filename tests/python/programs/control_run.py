# Trains bare, then watched and switched by `trainmon ctl` on the way; every rank saves what it saw.
"""control_run.py OUT MODE: OUT/<rank>.json holds digests per step of both runs, what objects bear
while switched off, and the health. The run is OUT/run."""

import json
import os
import pathlib
import subprocess
import sys
import time

import torch
import torch.distributed as dist

import launch
import marks
import models
import trainmon
from invisible_run import digest

KINDS = ["grads", "weights", "activations"]
STEPS, ACCUMULATION, OFF_STEP = 20, 2, 7
# Before which step what is asked for.
CHANGES = {
    3: ["off", "--at-step", "5"],
    7: ["on", "--at-step", "9"],
    10: ["set", "every=2", "kinds=actv,exp_avg", "--at-step", "12"],
    15: ["set", "every=", "kinds="],
}


def ask(monitor, rank, number, arguments):
    """All ranks have seen the file afterwards; nobody has followed yet."""
    if rank == 0:
        command, *rest = arguments
        subprocess.run(
            [launch.command_line(), "ctl", command, monitor.directory, *rest], check=True
        )
    deadline = time.monotonic() + 60
    while monitor._core.control_versions() < number:
        assert time.monotonic() < deadline, "control.json was not read"
        time.sleep(0.05)


def train(mode, rank, out=None):
    models.seed(7)
    model = models.spread(models.build(models.NAMES[0]), mode)
    models.seed(100 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, every=1, out=out) if out else None
    trail, seen = [], {}
    for step in range(STEPS):
        if monitor and step in CHANGES:
            ask(monitor, rank, list(CHANGES).index(step) + 1, CHANGES[step])
        losses = []
        for micro in range(ACCUMULATION):
            data, target = models.draw(models.NAMES[0])
            with models.micro_step(model, mode, micro == ACCUMULATION - 1):
                loss = models.loss_of(model(data), target) / ACCUMULATION
                loss.backward()
            losses.append(loss.detach())
        if step == OFF_STEP:
            seen = marks.of_objects(model, [])
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found = digest(*losses, *gradients)
        optimizer.step()
        state = [v for p in model.parameters() for v in optimizer.state[p].values()]
        trail.append([found, digest(*model.parameters(), *state), digest(torch.get_rng_state())])
        optimizer.zero_grad()
    health = monitor.stop() if monitor else None
    return trail, seen, marks.of_objects(model, [optimizer]), health


def main():
    out, mode, rank = pathlib.Path(sys.argv[1]), sys.argv[2], int(os.environ["RANK"])
    torch.set_num_threads(1)
    if mode != "single":
        launch.join()
    bare, bare_off, bare_end, _ = train(mode, rank)
    watched, off, end, health = train(mode, rank, out / "run")
    report = {
        "bare": bare,
        "watched": watched,
        "left_while_off": marks.changed(bare_off, off),
        "left_at_end": marks.changed(bare_end, end),
        "health": health,
    }
    (out / f"{rank}.json").write_text(json.dumps(report))
    if mode != "single":
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
