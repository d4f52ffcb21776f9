# One rank of a DDP run under PrecisionDebugger, the gradients that it saw kept beside its files.
"""compat_grad_probe_run.py CONFIG OUT"""

import os
import sys

import torch
from torch import nn

from trainmon.compat.msprobe.pytorch import PrecisionDebugger

STEPS = 3

if __name__ == "__main__":
    config, out = sys.argv[1:3]
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group(
        "gloo", init_method=os.environ["MEETING_POINT"], rank=rank, world_size=ranks
    )
    torch.manual_seed(3)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)))
    optimizer = torch.optim.AdamW(model.parameters())
    debugger = PrecisionDebugger(config)
    debugger.monitor(model)
    torch.manual_seed(rank)
    seen = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(3, 6)).square().mean().backward()
        seen.append({name: p.grad.clone() for name, p in model.named_parameters()})
        optimizer.step()
    debugger.stop()
    torch.save(seen, os.path.join(out, f"seen{rank}.pt"))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
