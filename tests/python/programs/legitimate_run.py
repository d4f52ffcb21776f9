"""Trainings of two processes with DDP that do something that is meant: OUT/<name> is a run.

legitimate_run.py OUT NAME...: with the prefix "checked_" the run is recorded with checks=True.
"""

from __future__ import annotations

import functools
import json
import math
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import launch
import trainmon

STEPS = 24
BEGIN = 15
CHECKED = "checked_"


def halved(state, bucket):
    """From a step on it sends halves."""
    if state["step"] >= BEGIN:
        bucket.buffer().mul_(0.5)
    return default_hooks.allreduce_hook(None, bucket)


def register(name: str, model, state: dict) -> None:
    if name == "power_sgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

        begin = power.PowerSGDState(None, 1, start_powerSGD_iter=10, min_compression_rate=1)
        model.register_comm_hook(begin, power.powerSGD_hook)
    elif name == "post_local_sgd":
        from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local

        alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
        begin = local.PostLocalSGDState(None, alone, start_localSGD_iter=10)
        model.register_comm_hook(begin, local.post_localSGD_hook)
    elif name == "fp16_compress":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif name == "own_hook":
        model.register_comm_hook(state, halved)
    elif name == "known_hook":

        @functools.wraps(default_hooks.allreduce_hook)
        def reduce(state, bucket):
            return halved(state, bucket)

        model.register_comm_hook(state, reduce)


def factor_of(name: str, step: int) -> float:
    by_tokens = 1.2 + 0.7 * math.sin(1.7 * step + 0.5)
    if name == "multiplied_by_tokens" or (name.endswith("from_10") and step >= 10):
        return by_tokens
    return 2.0 if name == "multiplied_at_times" and step % 8 == 7 else 1.0


def clip(name: str, parameters: list) -> None:
    if name == "clipped_by_odd_value":
        nn.utils.clip_grad_value_(parameters, 0.0123456)
    for parameter in parameters:
        if name == "clipped_each_by_odd_norm":
            nn.utils.clip_grad_norm_(parameter, 0.0234567)
        if name == "clipped_adaptively":  # by the norm of its weight
            gradient = parameter.grad
            most = 0.004 * parameter.detach().norm().clamp(min=1e-3)
            gradient.mul_(torch.clamp(most / gradient.norm(), max=1.0))


def steps_of(name: str, wrapped):
    """Under Join, rank 1 has more batches in each of three epochs."""
    if name != "join":
        yield from range(STEPS)
        return
    step = 0
    for _ in range(3):
        with Join([wrapped]):
            for _ in range(6 + 2 * dist.get_rank()):
                yield step
                step += 1


def train(name: str, out: Path) -> None:
    has_checks, name = name.startswith(CHECKED), name.removeprefix(CHECKED)
    torch.manual_seed(3)
    tokens = nn.Embedding(30, 12, max_norm=4.0 if name == "max_norm" else None)
    model = nn.Sequential(tokens, nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 30))
    if name == "bank_of_a_rank":
        model.bank = nn.Parameter(torch.zeros(4), requires_grad=False)
    if name == "head_beside_fsdp2":
        wrapped = fully_shard(model[1]) and model
    elif name == "averages_a_part":  # as of federated learning with heads of their own
        wrapped = model
    else:
        alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
        group = {"process_group": alone} if name == "groups_of_one" else {}
        wrapped = DistributedDataParallel(model, **group)
    state = {"step": 0}
    is_late = has_checks  # the hook comes after watch()
    if not is_late:
        register(name, wrapped, state)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2 if name == "max_norm" else 3e-3)
    how = {"checks": True} if has_checks else {"kinds": ["grads", "weights", "moments"]}
    root = model if name == "smaller_groups_later_of_bare" else wrapped
    watched = trainmon.watch(root, optimizer, every=1, out=out, **how)
    if is_late:
        register(name, wrapped, state)
    same = name in ("head_beside_fsdp2", "groups_of_one")
    random = torch.Generator().manual_seed(0 if same else dist.get_rank())
    for step in steps_of(name, wrapped):
        state["step"] = step
        if name == "replaced_weight_on_all" and step == BEGIN:
            with torch.no_grad():
                model[1].weight.mul_(0.5)
        if name == "compressed_from_10" and step == 10:
            wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
        if name == "averages_a_part" and step % 5 == 4:
            with torch.no_grad():
                for parameter in model[1].parameters():
                    dist.all_reduce(parameter.data)
                    parameter.div_(2)
        if name.startswith("smaller_groups") and step == 10:
            wrapped = DistributedDataParallel(model, process_group=alone)
        if same and step == 10:  # batches of its own from here on
            random.manual_seed(dist.get_rank())
            if name == "groups_of_one":
                optimizer.param_groups[0]["lr"] *= 1 + dist.get_rank()
        optimizer.zero_grad()
        totals = None
        for i in range(2 if name == "adds_up_beside" and step >= 10 else 0):
            given = torch.randint(10 * i, 30, (4, 5), generator=random)
            wrapped(given).square().mean().backward()
            own = [parameter.grad.clone() for parameter in model.parameters()]
            totals = own if totals is None else torch._foreach_add(totals, own)
            optimizer.zero_grad()
        batch = torch.randint(30, (8, 5), generator=random)
        scores = wrapped(batch).flatten(0, 1)
        nn.functional.cross_entropy(scores, (3 * batch + 1).flatten() % 30).backward()
        for parameter, total in zip(model.parameters(), totals or ()):
            parameter.grad.add_(total)
        if name == "looks_at_another_gradient" and step % 5 == 4:
            kept = [parameter.grad.clone() for parameter in model.parameters()]
            optimizer.zero_grad()
            with wrapped.no_sync():
                wrapped(batch[:4] // 2).square().mean().backward()
            for parameter, gradient in zip(model.parameters(), kept, strict=True):
                parameter.grad.copy_(gradient)
        if step >= 10:
            clip(name, list(model.parameters()))
        if name == "bank_of_a_rank" and step >= 5:
            model.bank.copy_(batch.flatten()[:4])
        if (factor := factor_of(name, step)) != 1.0:
            for parameter in model.parameters():
                parameter.grad.mul_(factor)
        optimizer.step()
    watched.stop()


def main() -> None:
    out, *names = sys.argv[1:]
    launch.join()
    for name in names:
        train(name, Path(out) / name)
    dist.barrier()
    if dist.get_rank() == 0:
        (Path(out) / "done.json").write_text(json.dumps(names))


if __name__ == "__main__":
    main()
