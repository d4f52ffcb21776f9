"""Trainings of two processes with canaries: OUT/<name> is a run. OUT/same<rank>.json: by name, whether the weights
are those of an unwatched one.

canary_run.py OUT NAME...: "changed": rank 1 computes something else from step CHANGED_AT on; "collective": the
forward calls one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import launch
import trainmon

STEPS, CHANGED_AT = 30, 21


class Model(nn.Module):
    def __init__(self, name: str):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.drop, self.slope, self.name = nn.Dropout(0.1), 0.1, name

    def forward(self, x):
        x = nn.functional.leaky_relu(self.first(x), self.slope)
        if self.name == "collective":
            mean = x.detach().mean(0)
            dist.all_reduce(mean)
            x = x - mean
        return self.second(self.drop(x))


def train(name: str, out: Path | None) -> list[torch.Tensor]:
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = Model(name)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    monitor = None
    if out is not None:
        kinds = ["actv", "canary"]
        monitor = trainmon.watch(
            wrapped, optimizer, kinds=kinds, checks=True, every=1, out=str(out)
        )
    torch.manual_seed(rank)
    for step in range(STEPS):
        if name == "changed" and step == CHANGED_AT and rank == 1:
            model.slope = 0.2
        x = torch.randn(8, 8)
        optimizer.zero_grad()
        (wrapped(x) - x[:, :4]).square().mean().backward()
        optimizer.step()
    if monitor is not None:
        monitor.stop()
    return [p.detach().clone() for p in model.parameters()]


def main() -> None:
    out, *names = sys.argv[1:]
    rank, _ = launch.join()
    are_same = {}
    for name in names:
        pairs = zip(train(name, None), train(name, Path(out) / name), strict=True)
        are_same[name] = all(torch.equal(bare, watched) for bare, watched in pairs)
        dist.barrier()
    (Path(out) / f"same{rank}.json").write_text(json.dumps(are_same))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
