# Reads rows of a run for the adapter's tests and compares them with tensors, in plain float64 torch.
import json
import math

import torch

import trainmon

KEY = ("kind", "name", "element", "step", "attempt", "micro_step", "call")


def rows(run, **wanted):
    """The rows of a run as dicts, in order of seq, that have these values."""
    table = trainmon.read_table(str(run))
    columns = {key: list(table[key]) for key in table}
    found = [dict(zip(columns, values)) for values in zip(*columns.values())]
    found = [row for row in found if all(row[key] == value for key, value in wanted.items())]
    return sorted(found, key=lambda row: row["seq"])


def row(run, **wanted):
    """The only row with these values."""
    (found,) = rows(run, **wanted)
    return found


def keys(run, *columns, **wanted):
    return [tuple(r[c] for c in columns) for r in rows(run, **wanted)]


def run_json(monitor):
    """What a rank says of its run."""
    with open(f"{monitor._core.directory}/run.json") as file:
        return json.load(file)


def statistics(tensor):
    x = tensor.detach().to(torch.float64).reshape(-1)
    good = x[torch.isfinite(x)]
    nans = int(torch.isnan(x).sum())
    infs = x[torch.isinf(x)]
    expected = {
        "count": x.numel(),
        "nans": nans,
        "infs": infs.numel(),
        "zeros": float((x.abs() < 1e-8).double().mean()) if x.numel() else math.nan,
    }
    if nans:
        rest = dict.fromkeys(("norm", "mean", "min", "max"), math.nan)
    elif x.numel() == 0:
        rest = {"norm": 0.0, "mean": math.nan, "min": math.nan, "max": math.nan}
    elif infs.numel():
        rest = {"norm": math.inf, "min": float(x.min()), "max": float(x.max())}
    else:
        rest = {
            "norm": float(good.norm()),
            "mean": float(good.mean()),
            "min": float(good.min()),
            "max": float(good.max()),
        }
    return {**expected, **rest}


def assert_is(found, tensor, tolerance=1e-9):
    """The row's statistics are those of the tensor, to this tolerance: relative, for means and bounds
    to the mean magnitude, as what they are made of may cancel out."""
    scale = float(tensor.detach().to(torch.float64).abs().nan_to_num(0, 0, 0).mean() or 0)
    for name, value in statistics(tensor).items():
        if math.isnan(value):
            assert math.isnan(found[name]), (name, found)
        elif name == "mean":
            assert abs(found[name] - value) <= tolerance * scale + 1e-300, (name, value, found)
        else:
            near = tolerance * scale if name in ("min", "max") else 0.0
            assert math.isclose(found[name], value, rel_tol=tolerance, abs_tol=near), (
                name,
                value,
                found,
            )


def healthy(monitor):
    health = monitor.stop()
    assert health["parts_off"] == {} and health["errors"] == 0
    return health
