"""Trainings of two processes that hold shards: OUT/<name> is a run.

shards_run.py OUT NAME...: words of a name, between "_", say how it trains and what goes wrong in step
FAULT_AT. The first is fsdp1, fsdp2 or tensor; "flat" is without the user's parameters.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

import launch
import trainmon

STEPS, FAULT_AT, MICRO_STEPS = 14, 9, 3
TENSOR = "2.weight"
# What torch.distributed calls the operation, newest first.
REDUCE_SCATTER = ("reduce_scatter_single", "reduce_scatter_tensor")


def model_of(words: set[str]) -> torch.nn.Module:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(11, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 90)]
    model = torch.nn.Sequential(*layers, torch.nn.Tanh(), torch.nn.Linear(90, 1))
    if "tensor" in words:
        return tensor_parallel(model)
    low, full = torch.bfloat16, torch.float32
    dtypes = {}
    if "bf16" in words:
        dtypes = {"param_dtype": low}
    if "wide" in words:  # reduced in more than they are computed in
        dtypes = {"param_dtype": low, "reduce_dtype": full}
    if "narrow" in words:
        dtypes = {"reduce_dtype": low}
    if "fsdp2" in words:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(**dtypes)
        fully_shard(model[2], mp_policy=policy)
        return fully_shard(model, mp_policy=policy)
    settings = {
        "use_orig_params": "flat" not in words,
        "mixed_precision": MixedPrecision(**dtypes) if dtypes else None,
        "device_id": torch.device("cpu"),
    }
    model[2] = FullyShardedDataParallel(model[2], **settings)
    return FullyShardedDataParallel(model, **settings)


def tensor_parallel(model: torch.nn.Module) -> torch.nn.Module:
    """The LayerNorm has a part of the samples on each rank, so its gradients are summands that the optimizer adds."""
    from torch.distributed.tensor import Replicate, Shard, init_device_mesh, parallel

    plan = {
        "0": parallel.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
        "1": parallel.SequenceParallel(sequence_dim=0),
        "2": parallel.ColwiseParallel(input_layouts=Shard(0)),
        "4": parallel.RowwiseParallel(),
    }
    return parallel.parallelize_module(model, init_device_mesh("cpu", (2,)), plan)


class Training:
    def __init__(self, name: str):
        self.words = set(name.split("_"))
        self.rank = dist.get_rank()
        self.model = model_of(self.words)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.random = torch.Generator().manual_seed(0 if "tensor" in self.words else self.rank)
        self.step = 0

    def fails(self, word: str) -> bool:
        return word in self.words and self.rank == 1 and self.step == FAULT_AT

    def lose_tensor(self) -> None:
        """What this rank computed for one tensor never gets into the reduction."""

        def before_forward(module, args):
            tensor = module._parameters["weight"]  # the whole one
            if not self.has_hook:
                tensor.register_post_accumulate_grad_hook(drop)
            self.has_hook = True

        def drop(tensor):
            if self.fails("lost"):
                tensor.grad.zero_()

        self.has_hook = False
        self.model[2].register_forward_pre_hook(before_forward)

    def lose_transfers(self) -> None:
        """What this rank sends in reduce-scatters arrives as zeros."""
        (name, *_) = [one for one in REDUCE_SCATTER if hasattr(dist, one)]
        send = getattr(dist, name)

        def sent(*args, **kwargs):
            given = kwargs.get("input", args[1] if len(args) > 1 else None)
            if self.fails("dropped"):
                given.zero_()
            return send(*args, **kwargs)

        setattr(dist, name, sent)

    def run(self, out: Path) -> None:
        words = self.words
        with trainmon.watch(self.model, self.optimizer, checks=True, every=1, out=out):
            if "lost" in words:
                self.lose_tensor()
            if "dropped" in words:
                self.lose_transfers()
            for self.step in range(STEPS):
                self.backward()
                if "clip" in words:
                    clip = getattr(self.model, "clip_grad_norm_", None)
                    if clip is not None:
                        clip(0.1)
                    else:
                        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
                if self.fails("bit"):
                    gradient = self.model.get_parameter(TENSOR).grad.to_local()
                    gradient.view(-1).view(torch.int32)[5] ^= 1 << 24
                self.optimizer.step()

    def backward(self) -> None:
        """Micro steps are reduced one by one, or with "sync" all at the end; with "late" only from a step
        on are there several."""
        words = self.words
        several = "micro" in words and ("late" not in words or self.step > 4)
        count = MICRO_STEPS if several else 1
        self.optimizer.zero_grad()
        for micro in range(count):
            waits = "once" in words and micro < count - 1
            if "pairs" in words:
                waits = micro % 2 == 0 and micro < count - 1
            if "fsdp2" in words:
                self.model.set_requires_gradient_sync(not waits)
                waits = False
            with self.model.no_sync() if waits else nullcontext():
                x = torch.randn(6, 11, generator=self.random)
                (self.model(x).float() - x.sum(1, keepdim=True)).square().mean().backward()


def main() -> None:
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    launch.join()
    patched = {name: getattr(dist, name) for name in REDUCE_SCATTER if hasattr(dist, name)}
    for name in sys.argv[2:]:
        Training(name).run(out / name)
        for operation, function in patched.items():
            setattr(dist, operation, function)
        dist.barrier()
    if dist.get_rank() == 0:
        (out / "done.json").write_text(json.dumps(sys.argv[2:]))
    dist.destroy_process_group()


main()
