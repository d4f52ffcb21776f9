# One rank of a DDP run under PrecisionDebugger, the gradients that it saw kept beside its files.
"""compat_grad_probe_run.py CONFIG OUT WRAPPER, ddp or fsdp2"""

import os
import sys

import torch
from torch import nn

import launch
from trainmon.compat.msprobe.pytorch import PrecisionDebugger

STEPS = 3


def local(gradient):
    """What this rank holds of it."""
    return (gradient.to_local() if hasattr(gradient, "to_local") else gradient).clone()


if __name__ == "__main__":
    config, out, wrapper = sys.argv[1:4]
    rank, ranks = launch.join()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    if wrapper == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    optimizer = torch.optim.AdamW(model.parameters())
    debugger = PrecisionDebugger(config)
    debugger.monitor(model)
    torch.manual_seed(rank)
    seen = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(3, 6)).square().mean().backward()
        seen.append({name: local(p.grad) for name, p in model.named_parameters()})
        optimizer.step()
    debugger.stop()
    torch.save(seen, os.path.join(out, f"seen{rank}.pt"))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
