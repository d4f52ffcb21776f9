# FSDP2 (fully_shard) on two processes, with bfloat16 computation and accumulation over two batches.
"""python examples/fsdp2.py [--out DIR] [--steps N]; or start it with torchrun yourself."""

import sys

import torch
import torch.distributed as dist
from small_text import batches, build_gpt, loss_of, show, start
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import trainmon

MICRO_STEPS = 2


def train(out, steps):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = dist.init_device_mesh("cpu", (ranks,))
    torch.manual_seed(0)
    model = build_gpt(width=96, heads=4, depth=3)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    kinds = ["grads", "weights", "moments"]
    monitor = trainmon.watch(model, optimizer, kinds=kinds, out=out, grad_acc_steps=MICRO_STEPS)
    text = batches(rank, ranks, 8, 64, steps * MICRO_STEPS)
    for step in range(steps):
        for micro in range(MICRO_STEPS):
            inputs, targets = next(text)
            model.set_requires_gradient_sync(micro == MICRO_STEPS - 1)
            loss = loss_of(model(inputs).float(), targets)
            (loss / MICRO_STEPS).backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.log(loss=loss)
        show(rank, step, loss.item())
    monitor.stop()

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(start(train, __doc__, steps=30))
