"""Trainings of two processes whose batches are as a name says: OUT/<name> is a run with checks.

input_run.py OUT NAME...: what changes does so in step FAULT_AT.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import launch
import trainmon

STEPS, FAULT_AT, MICROS = 24, 12, 2


def train(name: str, out: Path) -> None:
    rank = dist.get_rank()
    torch.manual_seed(3)
    is_of_floats = name.startswith("floats")
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8) if is_of_floats else torch.nn.Embedding(50, 8),
        torch.nn.Flatten(),
        torch.nn.Linear(8 if is_of_floats else 64, 5),
    )
    if name == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        wrapped = fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    elif name == "tensor_parallel":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

        plan = {"2": RowwiseParallel(input_layouts=Replicate())}
        wrapped = parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
    else:
        wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    own = torch.Generator().manual_seed(rank)
    common = torch.Generator().manual_seed(9)
    shares_from = {"same_from_start": 0, "tensor_parallel": 0, "same_later": FAULT_AT}
    mon = trainmon.watch(wrapped, optimizer, kinds="grads", checks=True, every=1, out=out)
    for step in range(STEPS):
        optimizer.zero_grad()
        for _ in range(MICROS):
            batch = torch.randint(50, (4, 8), generator=own)
            other = torch.randint(50, (4, 8), generator=common)
            if step >= shares_from.get(name, STEPS):
                batch = other
            if is_of_floats:
                batch = torch.randn(4, 8, generator=own)
                if name == "floats_of_another_scale" and rank == 1:
                    batch = 0.25 * batch
            wrapped(batch).pow(2).mean().backward()
        optimizer.step()
        if name == "evaluation":  # the same batches on all ranks, again and again
            with torch.no_grad():
                wrapped(torch.arange(32).view(4, 8))
            wrapped.eval()
            wrapped(torch.arange(32).view(4, 8))
            wrapped.train()
    mon.stop()


def main() -> None:
    out, *names = sys.argv[1:]
    rank, _ = launch.join()
    for name in names:
        train(name, Path(out) / name)
        dist.barrier()
    if rank == 0:
        (Path(out) / "done.json").write_text(json.dumps(names))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
