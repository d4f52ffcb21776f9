# A compiled model under DistributedDataParallel on two processes, bare and watched: test_compile.py.
import pathlib
import sys

import torch
import torch.distributed as dist
from torch._dynamo.utils import counters

import launch
import trainmon
from models import Around, squares

STEPS = 3


def train(rank, out=None):
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = Around()
    spread = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(spread.parameters(), lr=0.1)
    keys = {"kinds": ["activations"], "inside_compiled": True, "out": out}
    monitor = trainmon.watch(spread, optimizer, **keys) if out else None
    run = torch.compile(spread, backend="aot_eager")
    outputs = []
    losses = []
    for step in range(STEPS):
        torch.manual_seed(10 * step + rank)
        data = torch.randn(6, 8)
        outputs.append(second_call(model, data))
        optimizer.zero_grad()
        loss = squares(run, data)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    health = monitor.stop() if monitor else None
    return losses, outputs, counters["stats"]["unique_graphs"], health


def second_call(model, x):
    """What block.twice returns when it is called the second time, from the formulas of torch."""
    f, block = torch.nn.functional, model.block
    with torch.no_grad():
        h = f.relu(f.linear(f.linear(x, *pair(model.first)), *pair(block.up)))
        inner = f.gelu(f.linear(h, *pair(block.twice)))
        h = h + f.layer_norm(inner, (16,), *pair(block.norm))
        return f.linear(h, *pair(block.twice))


def pair(layer):
    return layer.weight, layer.bias


def main():
    out = pathlib.Path(sys.argv[1])
    rank, _ = launch.join()
    bare, _, graphs, _ = train(rank)
    watched, outputs, more, health = train(rank, out / "run")
    report = {"bare": bare, "watched": watched, "outputs": outputs, "graphs": (graphs, more)}
    torch.save({**report, "health": health}, out / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
