# The files of ColossalAIMonitor read back as bytes and rows, and what they should hold by NumPy.
import csv
import math

import numpy as np

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
