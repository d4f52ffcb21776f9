"""A training of two processes whose parameters are shards: OUT/run is the run, OUT/full.pt what the whole
parameters were before each step, by window and name."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import launch
import trainmon


def main() -> None:
    out = Path(sys.argv[1])
    launch.join()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, 7), torch.nn.Tanh(), torch.nn.Linear(7, 400))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    full = {}
    with trainmon.watch(model, optimizer, checks=True, every=1, out=out / "run"):
        for window in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 30)).square().mean().backward()
            for name, parameter in model.named_parameters():
                full[window, name] = parameter.full_tensor().detach()
            optimizer.step()
    if dist.get_rank() == 0:
        torch.save(full, out / "full.pt")
    dist.destroy_process_group()


main()
