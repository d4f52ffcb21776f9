# A small training whose values become NaN where it is told, and the questions that tests ask of its run.
import math
import os
import subprocess

import numpy as np
import torch
from torch import nn

import trainmon
from launch import command_line as program


def call(*arguments):
    done = subprocess.run(
        [program(), *map(os.fspath, arguments)], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


BAD = np.array([1.0, math.nan], np.float32)
GOOD = np.ones(2, np.float32)


class Broken(nn.Module):
    """Passes its input on; in the steps given its output is NaN."""

    def __init__(self, steps):
        super().__init__()
        self.steps, self.calls = steps, 0

    def forward(self, x):
        self.calls += 1
        return x * math.nan if self.calls - 1 in self.steps else x


class BrokenBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * math.nan


class Blocks(nn.Module):
    def __init__(self, broken=(), poison=None):
        super().__init__()
        torch.manual_seed(0)
        self.wte = nn.Linear(4, 8)
        self.h = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])
        self.broken = Broken(broken)
        self.head = nn.Linear(8, 2)
        self.poison = poison

    def forward(self, x):
        x = self.wte(x)
        for i, block in enumerate(self.h):
            x = torch.tanh(block(x))
            if i == 1:
                x = self.broken(x)
                if self.poison:
                    x = BrokenBackward.apply(x)
        return self.head(x)


def train(out, broken=(), steps=3, kinds=None, poison=None, log=True, **keys):
    model = Blocks(broken, poison)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, optimizer, kinds=kinds, out=out, **keys)
    for _ in range(steps):
        loss = model(torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if log:
            monitor.log(loss=loss)
    monitor.stop()


def live_line(err):
    """The last one said is what holds."""
    return [line for line in err.splitlines() if "first non-finite value" in line][-1]
