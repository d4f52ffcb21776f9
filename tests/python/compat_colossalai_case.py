# A small training run under ColossalAIMonitor, its files read back, and what they should hold by
# NumPy.
import csv
import json
import math
import pathlib

import numpy as np
import torch
from torch import nn

from trainmon.compat.colossalai import ColossalAIMonitor

KEYS = ["step", "rank", "param_name"]
STATS = ["norm", "mean", "max", "min"]


def rows(path, stats=STATS):
    """(step, rank, name, {statistic: value}) in the order of the file, whose form is checked."""
    content = path.read_bytes()
    assert content.endswith(b"\r\n")
    assert content.count(b"\n") == content.count(b"\r") == content.count(b"\r\n")
    lines = content.decode().split("\r\n")[:-1]
    assert lines[0] == ",".join([*KEYS, *stats])
    assert lines[0] not in lines[1:]
    table = list(csv.reader(lines[1:]))
    assert all(len(fields) == len(KEYS) + len(stats) for fields in table)
    return [
        (int(f[0]), int(f[1]), f[2], dict(zip(stats, map(float, f[3:]), strict=True)))
        for f in table
    ]


def expected(tensor):
    """In float64; an infinity or a NaN among the elements as numpy has it."""
    x = tensor.detach().double().numpy().ravel()
    if x.size == 0:
        return {"norm": 0.0, "mean": math.nan, "max": math.nan, "min": math.nan}
    with np.errstate(invalid="ignore"):
        scale = np.abs(x).max()
        norm = np.linalg.norm(x / scale) * scale if 0 < scale < math.inf else np.linalg.norm(x)
        return {"norm": norm, "mean": x.mean(), "max": x.max(), "min": x.min()}


def assert_is(found, tensor, rtol=1e-12):
    wanted = expected(tensor)
    scale = wanted["norm"] if math.isfinite(wanted["norm"]) else 1.0
    for stat, value in found.items():
        # A mean may be far smaller than what it is the mean of.
        np.testing.assert_allclose(value, wanted[stat], rtol=rtol, atol=rtol * scale, err_msg=stat)
    return True


def assert_rows(found, seen, rank=0, rtol=1e-12):
    """Exactly these tensors, (step, name, tensor), each key in its order."""
    left = {}
    for step, name, tensor in seen:
        left.setdefault((step, name), []).append(tensor)
    mine = [row for row in found if row[1] == rank]
    assert len(mine) == sum(map(len, left.values()))
    for step, _, name, values in mine:
        assert_is(values, left[step, name].pop(0), rtol)
    assert not any(left.values())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.spare = nn.Linear(4, 3), nn.Linear(3, 2), nn.Linear(2, 2)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))) * self.frozen


def net():
    torch.manual_seed(3)
    return Net()


def loss_of(model, index=0):
    return model(torch.randn(5, 4, generator=torch.Generator().manual_seed(index))).square().mean()


def made(**config):
    """With this configuration in the working folder."""
    with open("monitor_config.json", "w") as file:
        json.dump(config, file)
    return ColossalAIMonitor("monitor_config.json")


class Seen:
    """What torch itself shows, by hooks of the test's own."""

    def __init__(self, model):
        self.model, self.step, self.local, self.reduced = model, 0, [], []
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.register_hook(self._hook(name))

    def _hook(self, name):
        return lambda gradient: self.local.append((self.step, name, gradient.clone()))

    def note(self):
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                self.reduced.append((self.step, name, parameter.grad.clone()))

    def next(self):
        self.step += 1


def train(monitor, model, steps=3, micro=1, clear="end", set_to_none=True, optimizer=None):
    """What was seen; `clear` says when gradients are: at the beginning of a step, at its end before
    step_end(), or never."""
    seen = Seen(model)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    monitor.monitor(model)
    for step in range(steps):
        if clear == "begin":
            optimizer.zero_grad(set_to_none)
        for index in range(micro):
            loss_of(model, 10 * step + index).backward()
        seen.note()
        optimizer.step()
        if clear == "end":
            optimizer.zero_grad(set_to_none)
        monitor.step_end(model)
        seen.next()
    return seen


def read(folder, stats=STATS):
    paths = [pathlib.Path(folder, f"grad_stats_{which}.csv") for which in ("local", "global")]
    return [rows(path, stats) for path in paths]


def assert_files(folder, seen, stats=STATS):
    local, reduced = read(folder, stats)
    assert_rows(local, seen.local)
    assert_rows(reduced, seen.reduced)
