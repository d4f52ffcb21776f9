# The training of the equality table under torch's own wrappers, watched or bare.
"""equality_torch_run.py OUT ROW[,ROW...] watched|bare|both [FAULT ...]: one row after the other; losses and
local weights go to OUT/ROW/<how>.<rank>.pt, health to OUT/ROW/health.<rank>.json; of both, bare comes
first. FAULT is what rank 1 alone has; each has a watched training of its own, in OUT/ROW/FAULT.
"""

import contextlib
import functools
import json
import pathlib
import resource
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn

import equality_gpt as gpt
import trainmon


def plain(model):
    return model, None, None


def ddp(model):
    model = nn.parallel.DistributedDataParallel(model)
    return model, None, lambda last: contextlib.nullcontext() if last else model.no_sync()


def fsdp2(model, mesh=None, **options):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = mesh or dist.init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(**options)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)

    @contextlib.contextmanager
    def micro_step(last):
        model.set_requires_gradient_sync(last)
        yield

    return model, None, micro_step


def fsdp2_tensor_parallel(model):
    mesh = dist.init_device_mesh(
        "cpu", (gpt.RANKS, TENSOR_RANKS), mesh_dim_names=("data", "tensor")
    )
    tensor_parallel(model, mesh=mesh["tensor"])
    return fsdp2(model, mesh["data"])


def fsdp2_hybrid(model):
    """Sharded over two ranks, replicated over two."""
    return fsdp2(model, dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards")))


def fsdp2_bf16(model):
    return fsdp2(model, param_dtype=torch.bfloat16)


def fsdp1(model, strategy="FULL_SHARD", original=True, mesh=None, **precision):
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy

    def wrap(module):
        return FullyShardedDataParallel(
            module,
            device_id=torch.device("cpu"),
            use_orig_params=original,
            sharding_strategy=ShardingStrategy[strategy],
            device_mesh=mesh,
            mixed_precision=MixedPrecision(**precision) if precision else None,
        )

    for index, block in enumerate(model.blocks):
        model.blocks[index] = wrap(block)
    model = wrap(model)
    return model, None, lambda last: contextlib.nullcontext() if last else model.no_sync()


def fsdp1_hybrid(model, original=True):
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
    return fsdp1(model, "HYBRID_SHARD", original, mesh)


def zero_redundancy(model):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model, _, micro_step = ddp(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **gpt.ADAMW)
    return model, optimizer, micro_step


def tensor_parallel(model, sequence=False, mesh=None):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    here = Shard(1) if sequence else Replicate()  # of what goes from one module to the next
    column, row = ColwiseParallel(input_layouts=here), RowwiseParallel(output_layouts=here)
    places = ColwiseParallel(output_layouts=Shard(0) if sequence else Replicate())
    plan = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=here),
        "places": places,
        "head": ColwiseParallel(input_layouts=here, output_layouts=Replicate()),
    }
    for key, style in {"qkv": column, "out": row, "up": column, "down": row}.items():
        plan[f"blocks.*.{key}"] = style
    if sequence:
        plan |= {key: SequenceParallel() for key in ("blocks.*.norm1", "blocks.*.norm2", "norm")}
    mesh = mesh or dist.init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(model, mesh, plan), None, None


MAKERS = {
    "zero_redundancy": zero_redundancy,
    "tensor_parallel": tensor_parallel,
    "sequence_parallel": functools.partial(tensor_parallel, sequence=True),
    "plain": plain,
    "ddp": ddp,
    "fsdp2": fsdp2,
    "fsdp2_bf16": fsdp2_bf16,
    "fsdp1": fsdp1,
    "fsdp1_flat": functools.partial(fsdp1, original=False),
    "fsdp1_grad_op": functools.partial(fsdp1, strategy="SHARD_GRAD_OP"),
    "fsdp1_grad_op_flat": functools.partial(fsdp1, strategy="SHARD_GRAD_OP", original=False),
    "fsdp1_no_shard": functools.partial(fsdp1, strategy="NO_SHARD"),
    "fsdp1_no_shard_flat": functools.partial(fsdp1, strategy="NO_SHARD", original=False),
    "fsdp2_tensor_parallel": fsdp2_tensor_parallel,
    "fsdp2_hybrid": fsdp2_hybrid,
    "fsdp1_hybrid": fsdp1_hybrid,
    "fsdp1_hybrid_flat": functools.partial(fsdp1_hybrid, original=False),
    "fsdp1_bf16": functools.partial(fsdp1, param_dtype=torch.bfloat16),
    "fsdp1_bf16_flat": functools.partial(fsdp1, original=False, param_dtype=torch.bfloat16),
}
TENSOR_RANKS = 2  # of fsdp2_tensor_parallel
SAME_DATA = ("tensor_parallel", "sequence_parallel")  # on all ranks


def raising():
    """From now on, what reads gradients and weights at a step raises, and what slices gradients."""
    from trainmon.torch.parameters import registry, sweeps

    def fail(*args):
        raise ZeroDivisionError("planted")

    sweeps.Sweeps.read = registry.Registry.report = registry.Registry.series_of = fail


def train(out, row, how, rank, fault):
    model, optimizer, micro_step = MAKERS[row](gpt.make())
    if optimizer is None:
        optimizer = torch.optim.AdamW(model.parameters(), **gpt.ADAMW)
    monitor, limit = None, None
    if how == "watched" and fault != "unwatched":
        monitor = trainmon.watch(
            model,
            optimizer,
            kinds=["grad_unreduced", "grad_reduced", "weights", "moments"],
            every=1,
            out=str(out / "run"),
            grad_acc_steps=gpt.MICRO_STEPS,
        )
    if fault == "raising":
        raising()
    if fault == "sink":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, limit[1]))
    data_rank = 0 if row in SAME_DATA else rank
    if row == "fsdp2_tensor_parallel":
        data_rank = rank // TENSOR_RANKS
    losses = gpt.train(model, optimizer, data_rank, micro_step)
    if monitor is not None:
        monitor.stop()
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        (out / f"health.{rank}.json").write_text(json.dumps(monitor.health(), default=str))
    final = [p.detach() for p in model.parameters()]
    final = [p.to_local() if hasattr(p, "to_local") else p for p in final]
    torch.save({"losses": losses, "final": final}, out / f"{how}.{rank}.pt")


def main():
    rows, how, faults = sys.argv[2].split(","), sys.argv[3], sys.argv[4:]
    rank = gpt.begin()
    for row in rows:
        out = pathlib.Path(sys.argv[1], row)
        out.mkdir(exist_ok=True)
        if how != "watched":
            train(out, row, "bare", rank, "")
        if how != "bare" and not faults:
            train(out, row, "watched", rank, "")
        for fault in faults:
            (out / fault).mkdir(exist_ok=True)
            train(out / fault, row, "watched", rank, fault if rank == 1 else "")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
