# FSDP1 (FullyShardedDataParallel) on two processes: one flat parameter per block and rank.
"""python examples/fsdp1.py [--out DIR] [--steps N]; or start it with torchrun yourself."""

import functools
import sys

import torch
import torch.distributed as dist
from small_text import batches, build_gpt, loss_of, show, start
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import trainmon


def train(out, steps):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = build_gpt(width=96, heads=4, depth=3)
    wrap = functools.partial(
        FullyShardedDataParallel,
        auto_wrap_policy=ModuleWrapPolicy({type(model.blocks[0])}),
        use_orig_params=True,
        device_id=torch.device("cpu"),  # FSDP1 looks for a GPU otherwise
    )
    model = wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    monitor = trainmon.watch(model, optimizer, kinds=["grads", "weights", "moments"], out=out)
    for step, (inputs, targets) in enumerate(batches(rank, ranks, 8, 64, steps)):
        loss = loss_of(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        monitor.log(loss=loss)
        show(rank, step, loss.item())
    monitor.stop()

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(start(train, __doc__, steps=40))
