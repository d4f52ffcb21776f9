# What generate_wgrad_metrics() and generate_xy_metrics() give: {tag: {statistic: tensor, ...}}.
from __future__ import annotations

import numbers

import torch

from trainmon.stats import tensor_stats


def of_rows(rows, ops: list[str]) -> dict:
    """Of (tag, statistics, shape, dtype)."""
    found = {}
    for tag, values, shape, dtype in rows:
        metrics = {name: _scalar(values[name]) for name in ops}
        metrics["shape"], metrics["dtype"] = torch.Size(shape), getattr(torch, dtype)
        found[tag] = metrics
    return found


def of_gradients(adapter, config: dict, rank: int) -> dict:
    """Of the parameters as they are now: the optimizer has not stepped yet."""
    selection, ops = adapter.selection, config["ops"]
    wanted = [
        p for p in adapter.parameters if p.selected and selection.takes_parameter(p, "grad_reduced")
    ]
    pairs = [(p, adapter.wrappers[p.chunk].gradient_now(p)) for p in wanted]
    pairs = [(p, gradient) for p, gradient in pairs if gradient is not None]
    locals_ = [adapter.wrappers[p.chunk].locals([g])[0][0] for p, g in pairs]
    stats = tensor_stats(locals_, ops, eps=float(config["eps"]))
    found = {}
    for i, ((p, _), local) in enumerate(zip(pairs, locals_)):
        metrics = {name: _scalar(stats[name][i]) for name in ops}
        metrics["shape"], metrics["dtype"] = local.shape, local.dtype
        found[f"{p.chunk}:{p.label}/rank{rank}/post_grad"] = metrics
    return found


def _scalar(value) -> torch.Tensor:
    is_count = isinstance(value, numbers.Integral)
    return torch.tensor(value, dtype=torch.int64 if is_count else torch.float64, device="cpu")
