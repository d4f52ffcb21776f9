# The statistics of a tensor, slowly and exactly: every sum by math.fsum over Python floats.
import math
import sys

import torch

EPS = 1e-8
NAMES = (
    "norm",
    "min",
    "max",
    "mean",
    "zeros",
    "nans",
    "infs",
    "subnormals",
    "absmax",
    "std",
    "count",
)


def of(tensor):
    """Statistic by name, and `scale`: the mean of the absolute values."""
    smallest = torch.finfo(tensor.dtype).tiny if tensor.is_floating_point() else 0.0
    x = [float(v) for v in tensor.reshape(-1).tolist()]
    finite = [v for v in x if math.isfinite(v)]
    n, nans = len(x), sum(math.isnan(v) for v in x)
    infs = n - len(finite) - nans
    found = {
        "count": n,
        "nans": nans,
        "infs": infs,
        "zeros": sum(abs(v) < EPS for v in x) / n if n else math.nan,
        "subnormals": sum(0 < abs(v) < smallest for v in x),
        "absmax": max(map(abs, finite), default=math.nan),
        "scale": math.fsum(map(abs, finite)) / n if n else 0.0,
        "norm": math.sqrt(math.fsum(v * v for v in x)),
        "mean": math.fsum(x) / n if n else math.nan,
        "min": min(x, default=math.nan),
        "max": max(x, default=math.nan),
    }
    assert not infs and not nans, "the oracle's training is finite"
    spread = math.fsum((v - found["mean"]) ** 2 for v in x) if n else math.nan
    found["std"] = math.sqrt(spread / n) if n else math.nan
    return found


def close(name, expected, got):
    """1e-6 relative; for the mean 1e-6 of the mean absolute value; counts exactly."""
    want, value = expected[name], float(got)
    if math.isnan(want):
        return math.isnan(value)
    if name in ("count", "nans", "infs", "subnormals"):
        return value == want
    if name == "zeros":
        return abs(value - want) <= 4 * sys.float_info.epsilon
    if name == "mean":
        return abs(value - want) <= 1e-6 * expected["scale"]
    if name == "std":  # as a root of a difference it may cancel against the mean
        return abs(value - want) <= 1e-6 * max(want, abs(expected["mean"]) * 1e-6)
    return abs(value - want) <= 1e-6 * abs(want)
