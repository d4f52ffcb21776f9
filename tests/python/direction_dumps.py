# Dumps of gradient directions as grad_probe lays them out, written by NumPy, and what NumPy makes of
# two of them.
from __future__ import annotations

import collections
import csv
import io
import pathlib
import struct
import warnings

import numpy as np

import trainmon

Pair = collections.namedtuple("Pair", "a b out first second")


def write_summary(rank_dir, step, names, head="param_name"):
    lines = [[head, "max", "min", "norm", "shape"]]
    lines += [[name, 1.0, -1.0, 1.0, "[2, 2]"] for name in names]
    text = io.StringIO()
    csv.writer(text).writerows(lines)
    rank_dir.mkdir(parents=True, exist_ok=True)
    path = rank_dir / f"grad_summary_{step}.csv"
    path.write_bytes(text.getvalue().encode("utf-8-sig"))


def write_dump(root, ranks, ending=".npy", names=None, summaries=True):
    """ranks: {rank or None: {step: {name: float array}}}; None: no level of ranks."""
    root = pathlib.Path(root)
    for rank, steps in ranks.items():
        rank_dir = root if rank is None else root / f"rank{rank}"
        for step, gradients in steps.items():
            folder = rank_dir / f"step{step}"
            folder.mkdir(parents=True, exist_ok=True)
            if summaries:
                write_summary(rank_dir, step, names or list(gradients))
            for name, gradient in gradients.items():
                if ending == ".npy":
                    np.save(folder / f"{name}.npy", gradient > 0)
                else:
                    planes = [gradient > 0] if ending == ".sign" else [gradient > 0, gradient < 0]
                    (folder / f"{name}.sign").write_bytes(sign_bytes(planes))
    return str(root)


def crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


CRC_TABLE = [crc_of_byte(byte) for byte in range(256)]


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def sign_bytes(planes) -> bytes:
    """A .sign file of bool arrays, by numpy.packbits."""
    sizes = planes[0].shape
    data = b"TMSIGN\0\1" + struct.pack("<II", len(planes), len(sizes))
    data += struct.pack(f"<{len(sizes)}q", *sizes)
    for plane in planes:
        data += np.packbits(plane.ravel(), bitorder="little").tobytes()
    return data + struct.pack("<I", crc32c(data))


def random_gradients(seed, steps=3, shapes=None, drift=0.0):
    """{step: {name: float32 array}}; `drift` of the elements have the other sign than with 0."""
    shapes = shapes or {"fc1.weight": (5, 7), "fc1.bias": (5,), "fc2.weight": (3, 5), "scale": ()}
    random = np.random.default_rng(seed)
    other = np.random.default_rng(seed + 1000)
    out = {}
    for step in range(steps):
        out[step] = {}
        for name, shape in shapes.items():
            gradient = np.asarray(random.standard_normal(shape), dtype=np.float32)
            flip = np.asarray(other.random(shape) < drift)
            out[step][name] = np.where(flip, -gradient, gradient)
    return out


def oracle_rows(first, second, steps, names):
    """similarities.csv's rows by NumPy; None where one lacks the parameter."""
    rows = [["step", *map(str, steps)]]
    equal = dict.fromkeys(steps, 0)
    total = dict.fromkeys(steps, 0)
    for name in names:
        row = [name]
        for step in steps:
            if name not in first[step] or name not in second[step]:
                row.append(None)
                continue
            a, b = first[step][name] > 0, second[step][name] > 0
            same = (a == b).sum()
            equal[step] += same
            total[step] += a.size
            row.append(same / a.size if a.size else 0)
        rows.append(row)
    rows.append(["summary", *(equal[s] / total[s] if total[s] else 0 for s in steps)])
    return rows


def csv_bytes(rows) -> bytes:
    """As the peer writes them: by Python's csv, BOM, CRLF."""
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8-sig")


def write_pair(folder):
    """Two dumps of two ranks, three steps; a fifth of the signs differs in rank 1."""
    first = {rank: random_gradients(rank) for rank in range(2)}
    second = {0: random_gradients(0), 1: random_gradients(1, drift=0.2)}
    write_dump(folder / "a", first)
    write_dump(folder / "b", second)
    return Pair(folder / "a", folder / "b", folder / "out", first, second)


def compared(*dumps_and_out, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return trainmon.compare_directions(*dumps_and_out, pictures=False, **options)
