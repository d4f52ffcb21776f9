# What tests of the gradient probe share: its files read back by other means, and NumPy as the oracle.
import csv
import hashlib
import json
import math
import pathlib
import struct
import zlib

import numpy as np
import torch
from torch import nn


def summary(folder, step):
    """The rows of a summary by parameter, as text."""
    path = pathlib.Path(folder, f"grad_summary_{step}.csv")
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    assert text.startswith("\ufeffparam_name,") and text.count("\n") == text.count("\r\n")
    table = list(csv.reader(text.removeprefix("\ufeff").splitlines()))
    assert all(len(line) == len(table[0]) for line in table), table
    return {line[0]: dict(zip(table[0], line, strict=True)) for line in table[1:]}


def steps(folder):
    names = [p.name for p in pathlib.Path(folder).glob("grad_summary_*.csv")]
    return sorted(int(name[len("grad_summary_") : -len(".csv")]) for name in names)


def packed(path):
    """The planes of a .sign file as arrays of bool."""
    data = pathlib.Path(path).read_bytes()
    assert data[:8] == b"TMSIGN\0\1"
    planes, ndim = struct.unpack_from("<II", data, 8)
    sizes = struct.unpack_from(f"<{ndim}q", data, 16)
    count = math.prod(sizes)
    size = -(-count // 8)
    found, at = [], 16 + 8 * ndim
    for _ in range(planes):
        bits = np.unpackbits(np.frombuffer(data, np.uint8, size, at), bitorder="little")
        assert not bits[count:].any()
        found.append(bits[:count].astype(bool).reshape(sizes))
        at += size
    assert at + 4 == len(data)
    return found


def wide(tensor):
    """The elements as float64, which holds every dtype of a gradient exactly."""
    return tensor.detach().double().numpy()


def narrow(tensor):
    """The elements as float32 in C order: what digests are of. (torch makes two different NaN of one
    of float16, by the place it is in.)"""
    if tensor.dtype == torch.float16:
        return tensor.detach().numpy().astype(np.float32).tobytes()
    return tensor.detach().float().contiguous().numpy().tobytes()


def md5(tensor):
    return hashlib.md5(narrow(tensor)).hexdigest()


def crc32(tensor):
    return f"{zlib.crc32(narrow(tensor)):08x}"


def shares(tensor, bounds):
    """Of the intervals and of zeros."""
    if tensor.numel() == 0:
        return [0.0] * (len(bounds) + 2)
    values = wide(tensor).ravel()
    exact = tensor.dtype in (torch.float64, torch.int64)
    edges = np.array(bounds, np.float64 if exact else np.float32).astype(np.float64)
    place = np.searchsorted(edges, values, side="left")
    place[np.isnan(values)] = len(bounds)
    counts = np.bincount(place, minlength=len(bounds) + 1)
    return [count / values.size for count in (*counts.tolist(), int((values == 0).sum()))]


def assert_numbers(line, tensor):
    """max, min, norm and shape of a line are those of the tensor."""
    values = wide(tensor)
    with np.errstate(all="ignore"):
        for name in ("max", "min"):
            true = getattr(values, name)() if values.size else math.nan
            assert float(line[name]) == np.float32(true) or math.isnan(true), (name, line)
            assert line[name] == repr(float(np.float32(true)) + 0.0), (name, line)  # -0 is 0
        norm = float(np.sqrt((values * values).sum()))
        if math.isfinite(np.float32(norm)):
            assert math.isclose(float(line["norm"]), norm, rel_tol=1e-6, abs_tol=1e-45), line
        elif np.isnan(values).any():
            assert line["norm"] == "nan"
        else:
            assert line["norm"] == "inf"
    assert line["shape"] == str(list(tensor.shape))


def assert_signs(folder, step, name, tensor, form="npy", ternary=False):
    values = wide(tensor)
    base = pathlib.Path(folder, f"step{step}")
    if form == "npy":
        array = np.load(base / f"{name}.npy", allow_pickle=False)
        true = np.sign(np.nan_to_num(values)).astype(np.int8) if ternary else values > 0
        assert array.dtype == true.dtype
        np.testing.assert_array_equal(array, true)
        return
    planes = packed(base / f"{name}.sign")
    for plane, true in zip(planes, [values > 0, values < 0][: 1 + ternary], strict=True):
        np.testing.assert_array_equal(plane, true)


class Gradients(nn.Module):
    """Parameters whose gradients are given rather than computed."""

    def __init__(self, **gradients):
        super().__init__()
        for name, gradient in gradients.items():
            shape, dtype = gradient.shape, gradient.dtype
            value = nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=True)
            self.register_parameter(name, value)
            value.grad = gradient


class Still(torch.optim.Optimizer):
    """An optimizer that changes nothing, whatever the gradients are."""

    def __init__(self, params):
        super().__init__(params, {"lr": 1.0})

    def step(self, closure=None):
        return closure() if closure is not None else None


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


def train(model, optimizer, count, first=0, micro=1):
    """`count` steps of `micro` backwards; the gradients that each saw, by name."""
    seen = []
    for step in range(first, first + count):
        optimizer.zero_grad()
        for m in range(micro):
            data = torch.randn(3, 6, generator=torch.Generator().manual_seed(17 * step + m))
            model(data).square().mean().backward()
        seen.append({n: p.grad.clone() for n, p in model.named_parameters()})
        optimizer.step()
    return seen


def config_file(folder, block=None, **fields):
    given = {"task": "grad_probe", "dump_path": str(folder / "dump"), **fields}
    if block is not None:
        given["grad_probe"] = block
    path = pathlib.Path(folder, "config.json")
    path.write_text(json.dumps(given))
    return str(path)
