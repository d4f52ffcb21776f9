# A small training run under TrainerMon of the compatible face, and its files read back.
import contextlib
import json
import os
import pathlib

import pandas
import torch
from torch import nn

from trainmon.compat.msprobe.pytorch import TrainerMon


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    """Names that are squashed: encoder.layers.0.up -> layers.0.up."""

    def __init__(self, layers=2):
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        for layer in self.encoder.layers:
            x = layer(x)
        return self.head(x)


def net(seed=0, layers=2):
    torch.manual_seed(seed)
    return Net(layers)


def adam(model, lr=0.01):
    return torch.optim.Adam(model.parameters(), lr=lr, foreach=False)


def batch(index, rows=5, columns=4):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1000 + index))


def loss_of(model, index):
    out = model(batch(index))
    return (out if isinstance(out, torch.Tensor) else out[0]).square().mean()


@contextlib.contextmanager
def output(folder, dynamic=False):
    """MONITOR_OUTPUT_DIR for what is inside."""
    names = {"MONITOR_OUTPUT_DIR": str(folder), "DYNAMIC_MONITOR": str(dynamic)}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def config_file(folder, config):
    path = pathlib.Path(folder, "monitor_config.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return str(path)


def trainer_mon(folder, config, main_grad=False, **keys):
    return TrainerMon(config_file(folder, config), params_have_main_grad=main_grad, **keys)


def steps(model, optimizer, count, micro=1, first=0, each=None, loss=loss_of):
    """`count` steps of `micro` micro-batches; `each(step)` is called before the optimizer."""
    for step in range(first, first + count):
        optimizer.zero_grad()
        for m in range(micro):
            (loss(model, step * micro + m) / micro).backward()
        if each is not None:
            each(step)
        optimizer.step()


def run(folder, config, count=1, micro=1, model=None, optimizer=None, each=None, **keys):
    """Trains `count` steps under the configuration; gives the run directory, or None."""
    model = net() if model is None else model
    optimizer = adam(model) if optimizer is None else optimizer
    main_grad = keys.pop("main_grad", False)
    loss = keys.pop("loss", loss_of)
    with output(folder):
        monitor = trainer_mon(folder, config, main_grad)
        monitor.set_monitor(model, optimizer=optimizer, grad_acc_steps=micro, **keys)
        roots = model if isinstance(model, list) else [model]
        steps(roots[0], optimizer, count, micro, each=each, loss=loss)
        monitor.stop()
    found = folders(folder)
    return found[0] if found else None


def folders(base, rank=None):
    """The run directories under MONITOR_OUTPUT_DIR, by name."""
    found = [p for p in pathlib.Path(base).iterdir() if p.is_dir() and "-rank" in p.name]
    return sorted(p for p in found if rank is None or f"-rank{rank}-" in p.name)


def csvs(folder):
    """Names of the CSV files of a run directory."""
    return sorted(p.name for p in pathlib.Path(folder).iterdir() if p.suffix == ".csv")


def rows(folder, prefix, step=None, **options):
    """A table of one kind, all of its files or that of one step."""
    pattern = f"{prefix}_{step}-{step}.csv" if step is not None else f"{prefix}_[0-9]*-*.csv"
    paths = sorted(
        pathlib.Path(folder).glob(pattern), key=lambda p: int(p.stem.split("_")[-1].split("-")[0])
    )
    assert paths, f"no {pattern} in {folder}: {csvs(folder)}"
    tables = [
        pandas.read_csv(p, keep_default_na=False, na_values=["nan"], **options) for p in paths
    ]
    return pandas.concat(tables, ignore_index=True)


def names(table):
    return list(table["name"])


def oracle(tensor, op, eps=1e-8):
    """A statistic of the manual, in double precision."""
    wide = tensor.detach().double()
    if op == "norm":
        return wide.norm().item()
    if op == "zeros":
        return (tensor.detach().abs() < eps).double().mean().item()
    if op == "nans":
        return int(tensor.isnan().sum())
    return getattr(wide, op)().item()


def assert_row(row, tensor, ops, digits=6, eps=1e-8):
    """A row of a table holds the statistics of this tensor, rounded to `digits` decimals."""
    for op in ops:
        value = oracle(tensor, op, eps)
        assert abs(float(row[op]) - value) <= 0.6 * 10**-digits + 1e-5 * abs(value), (
            op,
            row,
            value,
        )
    assert row["shape"] == str(list(tensor.shape))
    assert row["dtype"] == str(tensor.dtype)
