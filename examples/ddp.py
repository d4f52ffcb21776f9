# DistributedDataParallel on two processes: a small GPT learns Python's standard library.
"""python examples/ddp.py [--out DIR] [--steps N]; or start it with torchrun yourself."""

import sys

import torch
import torch.distributed as dist
from small_text import batches, build_gpt, loss_of, show, start
from torch.nn.parallel import DistributedDataParallel

import trainmon


def train(out, steps):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(build_gpt(width=96, heads=4, depth=3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    monitor = trainmon.watch(model, optimizer, kinds=["grads", "weights", "moments"], out=out)
    for step, (inputs, targets) in enumerate(batches(rank, ranks, 8, 64, steps)):
        loss = loss_of(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.log(loss=loss)
        show(rank, step, loss.item())
    monitor.stop()

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(start(train, __doc__, steps=40))
