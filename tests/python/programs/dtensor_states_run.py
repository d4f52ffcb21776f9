"""Two ranks whose optimizer keeps some of its state otherwise than the weights lie: OUT/<case> is a run,
OUT/<case>.pt has the whole of each tensor by (step, kind, name).

dtensor_states_run.py OUT: "embedding" is a table cut by rows whose gradient is whole on each rank, and
so is its momentum; "norm" is under sequence parallelism; "whole" is FSDP2 with an optimizer that keeps
its momentum whole on each rank."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, init_device_mesh, parallel

import launch
import trainmon

STEPS = 6


class WholeMomentum(torch.optim.Optimizer):
    """As distributed Muon and Shampoo are built."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            gradient = parameter.grad.full_tensor()
            momentum = self.state[parameter].setdefault(
                "momentum_buffer", torch.zeros_like(gradient)
            )
            momentum.mul_(0.9).add_(gradient)
            parts = momentum.tensor_split(dist.get_world_size())
            parameter.to_local().sub_(0.05 * parts[dist.get_rank()])


def made(case):
    """The model, its optimizer and a batch."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2,))
    if case == "whole":
        model = torch.nn.Sequential(torch.nn.Linear(6, 8, bias=False), torch.nn.Linear(8, 4))
        fully_shard(model)
        return model, WholeMomentum(model.parameters()), lambda: torch.randn(4, 6)
    model = torch.nn.Sequential(torch.nn.Embedding(16, 8), torch.nn.LayerNorm(8))
    plan = {
        "0": parallel.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "1": parallel.SequenceParallel(),
    }
    parallel.parallelize_module(model, mesh, plan)
    kind = torch.optim.AdamW if case == "norm" else torch.optim.SGD
    options = {} if case == "norm" else {"momentum": 0.9}
    optimizer = kind(model.parameters(), lr=0.05, **options)
    return model, optimizer, lambda: torch.randint(0, 16, (2, 4))


def main() -> None:
    out = Path(sys.argv[1])
    launch.join()
    for case in ("embedding", "norm", "whole"):
        model, optimizer, batch = made(case)
        whole = {}
        kinds = ["grads", "grad_micro", "weights", "moments"]
        with trainmon.watch(model, optimizer, kinds=kinds, checks=True, every=1, out=out / case):
            torch.manual_seed(1)
            for step in range(STEPS):
                optimizer.zero_grad()
                made_of_batch = model(batch())
                if case != "whole":
                    made_of_batch = made_of_batch.full_tensor()
                made_of_batch.square().sum().backward()
                optimizer.step()
                for name, parameter in model.named_parameters():
                    for kind, tensor in optimizer.state[parameter].items():
                        if kind != "step":
                            full = (
                                tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
                            )
                            whole[step, kind, name] = full.detach().clone()
        if dist.get_rank() == 0:
            torch.save(whole, out / f"{case}.pt")
    dist.destroy_process_group()


main()
