# Two ranks train sharded under ColossalAIMonitor and go different ways with it.
"""compat_colossalai_apart_run.py OUT: OUT/<case> gets the files, OUT/<case>.<rank>.pt the gradients
that torch shows at each step, of this rank's part and of the whole. Rank 1 comes no more to the
monitor of `behind` and lets it go when rank 0 has ended."""

import datetime
import fcntl
import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import launch
from trainmon.compat.colossalai import ColossalAIMonitor
from trainmon.torch.parameters import rank_tables

OUT, RANK = pathlib.Path(sys.argv[1]), int(os.environ["RANK"])
STEPS = 6


def train(name):
    other = RANK == 1
    torch.manual_seed(1)
    model = fully_shard(nn.Sequential(nn.Linear(8, 7), nn.Linear(7, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = OUT / f"{name}.config{RANK}"
    config.write_text(json.dumps({"output_dir": str(OUT / name), "reduce_shards": True}))
    monitor = None if name == "absent" and other else ColossalAIMonitor(config)
    if monitor is not None:
        monitor.monitor(model)
    seen = []
    generator = torch.Generator().manual_seed(RANK)
    for step in range(STEPS):
        model(torch.randn(2, 8, generator=generator)).square().sum().backward()
        for key, parameter in model.named_parameters():
            part, whole = parameter.grad.to_local().clone(), parameter.grad.full_tensor().clone()
            seen.append((step, key, part, whole))
        optimizer.step()
        optimizer.zero_grad()
        if monitor is None or (name == "skips" and other and step == 2):
            continue
        if name == "behind" and other and step >= 2:
            continue
        monitor.step_end(model)
        if name == "stops" and other and step == 2:
            monitor.stop()
            monitor = None
    torch.save(seen, OUT / f"{name}.{RANK}.pt")
    if monitor is not None and not (name == "behind" and other):
        monitor.stop()
    return monitor


def main():
    rank_tables.MEETING = datetime.timedelta(seconds=3)
    launch.join()
    alive = (OUT / "rank0 is alive").open("w")
    if RANK == 0:
        fcntl.flock(alive, fcntl.LOCK_EX)
    left = {}
    for name in ("together", "skips", "stops", "behind", "absent"):
        left[name] = train(name)
        dist.barrier()
    dist.destroy_process_group()
    if RANK == 1:
        fcntl.flock(alive, fcntl.LOCK_EX)  # until rank 0 has ended
        left["behind"].stop()


if __name__ == "__main__":
    main()
