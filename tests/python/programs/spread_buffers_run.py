# Trains a model with buffers, spread over ranks in one way, and keeps what torch says of them and of the ids.
"""spread_buffers_run.py OUT HOW: HOW is ddp, fsdp1, fsdp1_flat, fsdp2, or zero1, zero2, zero3 (DeepSpeed). The run is
OUT/HOW; OUT/HOW.<rank>.json has the norm of each buffer and the least and largest id, by step."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn

import equality_gpt as gpt
import trainmon

OUT, HOW = pathlib.Path(sys.argv[1]), sys.argv[2]
STEPS = 8


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.ids = nn.Embedding(32, 8)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 1)
        self.register_buffer("table", torch.linspace(0.5, 2.0, 16))

    def forward(self, ids):
        return self.head(self.body(self.ids(ids).mean(1)) * self.table)


def spread(model):
    """The model, its optimizer, and backward() and step() of a loss."""
    kind, rates = torch.optim.AdamW, {"lr": 1e-3}
    if HOW.startswith("zero"):
        import deepspeed

        deepspeed.init_distributed("gloo")
        config = {
            "train_micro_batch_size_per_gpu": 8,
            "gradient_accumulation_steps": 1,
            "zero_optimization": {"stage": int(HOW.removeprefix("zero"))},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        }
        inner = kind(model.parameters(), **rates)
        engine, optimizer, *_ = deepspeed.initialize(model=model, optimizer=inner, config=config)
        return engine, optimizer, engine.backward, engine.step
    if HOW == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif HOW == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for module in (model.body[0], model):
            fully_shard(module, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
    else:
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        model = FullyShardedDataParallel(
            model,
            use_orig_params=HOW == "fsdp1",
            auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
            device_id=torch.device("cpu"),
        )
    optimizer = kind(model.parameters(), **rates)

    def step():
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, torch.Tensor.backward, step


def main():
    rank = gpt.begin()
    model, optimizer, backward, step_of = spread(Model())
    seen = []
    with trainmon.watch(model, optimizer, checks=True, every=1, out=OUT / HOW):
        for step in range(STEPS):
            seed = torch.Generator().manual_seed(100 * step + rank)
            ids = torch.randint(32, (8, 5), generator=seed)
            backward(model(ids).square().mean())
            step_of()
            buffers = {
                name.replace("_fsdp_wrapped_module.", "").removeprefix("module."): float(b.norm())
                for name, b in ((n, b.double()) for n, b in model.named_buffers())
            }
            seen.append({"buffers": buffers, "ids": [int(ids.min()), int(ids.max())]})
    (OUT / f"{HOW}.{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
