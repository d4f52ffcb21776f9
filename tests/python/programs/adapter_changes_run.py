# Trains on each rank while users do what they do to spread models, and saves what came of it.
"""adapter_changes_run.py OUT CASE: OUT/<rank>.pt holds the case's report."""

import logging
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn

import launch
import trainmon


def build(spread):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    spread(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def fsdp2(**options):
    from torch.distributed.fsdp import fully_shard

    def spread(model):
        fully_shard(model[0], **options)
        fully_shard(model, **options)

    return spread


def train(model, optimizer, steps=2, micros=1):
    for step in range(steps):
        optimizer.zero_grad()
        for micro in range(micros):
            torch.manual_seed(10 * step + micro + dist.get_rank())
            model(torch.randn(3, 4)).pow(2).sum().backward()
        optimizer.step()


def weights(model):
    return [p.to_local().detach().clone() for p in model.parameters()]


def moved(out):
    """model.cpu() between steps, as who puts a model aside for another one does."""
    results = []
    for watched in (False, True):
        model, optimizer = build(fsdp2())
        monitor = trainmon.watch(model, optimizer, out=out / "run") if watched else None
        train(model, optimizer)
        model.cpu()
        train(model, optimizer)
        results.append(weights(model))
    monitor.stop()
    return {"same": all(map(torch.equal, *results)), "health": monitor.health()}


def toggled(out):
    """Parameters frozen and thawed many times."""
    model, optimizer = build(fsdp2())
    before = len(model[0]._forward_pre_hooks)
    with trainmon.watch(model, optimizer, out=out / "run"):
        for round in range(10):
            model[0].bias.requires_grad_(round % 2 == 1)
            train(model, optimizer, 1)
        during = len(model[0]._forward_pre_hooks)
    return {"hooks": [before, during, len(model[0]._forward_pre_hooks)]}


def apart(out):
    """FSDP2 that adds gradients up in another dtype."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    model, optimizer = build(fsdp2(mp_policy=policy))
    with trainmon.watch(model, optimizer, out=out / "run"):
        train(model, optimizer, 1, micros=2)
    return {}


def early(out):
    """watch() before DistributedDataParallel."""
    model, optimizer = build(lambda model: None)
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("trainmon").addHandler(handler)
    with trainmon.watch(model, optimizer, out=out / "run"):
        train(nn.parallel.DistributedDataParallel(model), optimizer)
    return {"said": said}


def main():
    out, case = pathlib.Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    rank, _ = launch.join()
    report = {"moved": moved, "toggled": toggled, "apart": apart, "early": early}[case](out)
    torch.save(report, out / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
