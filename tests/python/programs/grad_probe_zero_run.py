# One rank of a run whose optimizer, ZeroRedundancyOptimizer, steps another one inside its own step().
"""grad_probe_zero_run.py OUT"""

import sys

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

import launch
import trainmon

if __name__ == "__main__":
    launch.join()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    model = nn.parallel.DistributedDataParallel(model)
    with trainmon.GradProbe(model, out=sys.argv[1]):
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(3, 6)).square().mean().backward()
            optimizer.step()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
