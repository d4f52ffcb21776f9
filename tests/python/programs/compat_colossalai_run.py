# Trains under ColossalAIMonitor on two ranks, one case after the other in one launch.
"""compat_colossalai_run.py OUT: OUT/<case> gets the files of every case, OUT/<case>.<rank>.pt the
gradients that torch itself shows: (step, name, tensor) before and after their reduction."""

import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import launch
from trainmon.compat.colossalai import ColossalAIMonitor

OUT, RANK = pathlib.Path(sys.argv[1]), int(os.environ["RANK"])
STEPS = 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.up, self.down, self.unused = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(2, 2)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def batch(step, micro=0, rank=RANK):
    generator = torch.Generator().manual_seed(100 * step + 10 * micro + rank)
    return torch.randn(5, 6, generator=generator)


def loss_of(model, *place):
    return model(batch(*place)).square().mean()


def started(name, model, **config):
    folder = OUT / f"{name}.config{RANK}"
    folder.write_text(json.dumps({"output_dir": str(OUT / name), **config}))
    monitor = ColossalAIMonitor(str(folder))
    monitor.monitor(model)
    return monitor


def listen(model, seen):
    """Hooks of our own on the parameters: what each backward contributes."""

    def listener(name):
        return lambda gradient: seen.append((seen.step, name, _own(gradient)))

    for name, parameter in model.named_parameters():
        parameter.register_hook(listener(name))


class Seen(list):
    step = 0


def is_dtensor(gradient):
    return hasattr(gradient, "full_tensor")


def _own(gradient):
    gradient = gradient.detach()
    return (gradient.to_local() if is_dtensor(gradient) else gradient).clone()


def train(name, model, micro=1, before=None, optimizer=None, after=None, whole=None, **config):
    seen, reduced = Seen(), []
    whole = config.get("reduce_shards", False) if whole is None else whole
    if before is None:
        listen(model, seen)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = started(name, model, **config)
    for step in range(STEPS):
        seen.step = step
        if before is not None:
            seen.extend(before(model, step))
        for index in range(micro):
            quiet = index + 1 < micro and isinstance(model, DistributedDataParallel)
            with model.no_sync() if quiet else torch.enable_grad():
                loss_of(model, step, index).backward()
        if after is not None:
            after(model)
        for key, parameter in model.named_parameters():
            if parameter.grad is not None:
                reduced.append((step, key, _kept(parameter.grad, whole)))
        optimizer.step()
        optimizer.zero_grad()
        monitor.step_end(model)
    monitor.stop()
    torch.save({"local": list(seen), "global": reduced}, OUT / f"{name}.{RANK}.pt")


def _kept(gradient, whole):
    """Asks for the full tensor only where the monitor was asked to merge, too."""
    return gradient.full_tensor().clone() if whole and is_dtensor(gradient) else _own(gradient)


def ddp():
    model = DistributedDataParallel(Net(), find_unused_parameters=True)
    train("ddp", model)


def accumulated():
    train("accumulated", DistributedDataParallel(Net(), find_unused_parameters=True), micro=3)


def zero1():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = Net()
    del net.unused
    model = DistributedDataParallel(net)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    train("zero1", model, optimizer=optimizer, parallel_mode="zero1")


def sharded(name, reshard=True, mode="zero3", **config):
    from torch.distributed.fsdp import fully_shard

    model, twin = Net(), Net()
    del model.unused, twin.unused
    fully_shard(model.up, reshard_after_forward=reshard)
    fully_shard(model, reshard_after_forward=reshard)

    def alone(model, step):
        """The same step of the same weights, by this rank alone."""
        with torch.no_grad():
            for mine, theirs in zip(twin.parameters(), model.parameters(), strict=True):
                mine.copy_(theirs.full_tensor())
        twin.zero_grad()
        loss_of(twin, step).backward()
        return [(step, key, p.grad.clone()) for key, p in twin.named_parameters()]

    train(name, model, before=alone, parallel_mode=mode, **config)


def fsdp2():
    sharded("fsdp2")


def fsdp2_zero2():
    sharded("fsdp2_zero2", reshard=False, mode="zero2")


def fsdp2_merged():
    sharded("fsdp2_merged", reduce_shards=True)


def parallel(name, after=None, whole=None, **config):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    model = Net()
    mesh = init_device_mesh("cpu", (2,))
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    # Ranks of tensor parallelism see the same batch.
    global batch
    own, batch = batch, lambda step, micro=0, rank=0: own(step, micro, 0)
    train(name, model, after=after, whole=whole, parallel_mode="tp", **config)
    batch = own


def tp():
    parallel("tp")


def tp_merged():
    parallel("tp_merged", reduce_shards=True)


def tp_absent():
    """One rank lets go of its part of a gradient: nobody waits for it for ever."""

    def let_go(model):
        if RANK == 1:
            model.up.weight.grad = None

    parallel("tp_absent", after=let_go, whole=False, reduce_shards=True)


def pp():
    """Every rank has a stage of its own, here of different sizes."""
    stage = nn.Sequential(nn.Linear(6, 2 + RANK))
    train("pp", stage, parallel_mode="pp", reduce_shards=True)


def not_reduced():
    train("not_reduced", Net(), parallel_mode="dp")


def main():
    launch.join()
    for run in (
        ddp,
        accumulated,
        zero1,
        fsdp2,
        fsdp2_zero2,
        fsdp2_merged,
        tp,
        tp_merged,
        tp_absent,
        pp,
        not_reduced,
    ):
        run()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
