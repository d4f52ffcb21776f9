# Trains a small model under a watch, as one rank of a run: convert_run.py OUT STEPS
"""Accumulation, a step skipped by the loss scale, NaN and Inf, names with everything in them, log(),
histograms and stacks. A second start of the same rank goes through some steps again."""

import os
import sys

import torch
from torch import nn

import trainmon

KINDS = ["grads", "grad_unreduced", "weights", "moments", "activations", "update_ratio", "stack"]
ODD = 'odd, "name"\n\N{SNOWMAN}=%'


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(3, 4)
        self.blocks = nn.ModuleDict({ODD: nn.Linear(4, 4)})
        self.down = nn.Linear(4, 2)

    def forward(self, x):
        return self.down(torch.relu(self.blocks[ODD](self.up(x))))


def main():
    out, steps = sys.argv[1], int(sys.argv[2])
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    monitor = trainmon.watch(
        model,
        optimizer,
        kinds=KINDS,
        every=1,
        out=out,
        grad_acc_steps=2,
        sinks=["log", "csv", "sqlite"],
    )
    for step in range(steps):
        for micro in range(2):
            x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step * 10 + micro + rank))
            if step == 2 and micro == 0:
                x[0, 0] = float("inf") if rank else float("nan")
            model(x).square().mean().backward()
        monitor.log(loss=float("inf") if step == 3 else step * 0.25)
        if step != 2:
            optimizer.step()
        optimizer.zero_grad()
    monitor.stop()


if __name__ == "__main__":
    main()
