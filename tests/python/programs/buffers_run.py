"""DDP over a model with buffers: OUT/clean, and OUT/changed, where rank 1 changes a table in step BEGIN.

buffers_run.py OUT BEGIN STEPS: DDP sends no buffers, so ranks keep their own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import launch
import trainmon


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
        self.register_buffer("table", torch.linspace(0.5, 2.0, 8))

    def forward(self, x):
        return self.body(x * self.table)


def train(out: Path, begin: int, steps: int, changes: bool) -> None:
    rank, model = dist.get_rank(), Model()
    around = DistributedDataParallel(model, broadcast_buffers=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(rank)
    with trainmon.watch(around, optimizer, checks=True, every=1, out=str(out)):
        for step in range(steps):
            if changes and rank == 1 and step == begin:
                model.table[2] += 0.5
            optimizer.zero_grad()
            around(torch.randn(32, 8, generator=random)).square().mean().backward()
            optimizer.step()


def main() -> None:
    out, begin, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    launch.join()
    for name in ("clean", "changed"):
        train(out / name, begin, steps, name == "changed")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
