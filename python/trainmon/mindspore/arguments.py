# The arguments of watch() that only MindSpore can judge. Everything here raises TypeError.
from __future__ import annotations

from mindspore import nn

from trainmon.base.optimizers import by_name


def chunks(model) -> list[nn.Cell]:
    """The model chunks: one cell, or several in a list."""
    found = list(model) if isinstance(model, (list, tuple)) else [model]
    if not found or not all(isinstance(chunk, nn.Cell) for chunk in found):
        kinds = ", ".join(type(chunk).__name__ for chunk in found) or "an empty list"
        raise TypeError(f"model must be a mindspore.nn.Cell or a list of them, not {kinds}")
    return found


def optimizers(given) -> dict:
    """Optimizers by name, in the order given."""
    found = by_name(given)
    for optimizer in found.values():
        _check(optimizer)
    return found


def _check(optimizer) -> None:
    if hasattr(optimizer, "__wrapped_by_jit__") and not isinstance(optimizer, nn.Cell):
        inner = type(getattr(optimizer, "__self__", optimizer)).__name__
        raise TypeError(
            f"optimizer is wrapped by mindspore.jit ({inner}), where no hook of it fires: pass the "
            "optimizer itself, and call that one"
        )
    if not isinstance(optimizer, nn.Cell) or not hasattr(optimizer, "parameters"):
        raise TypeError(
            "optimizer must be a mindspore.nn.Optimizer, a list or a dict of them, not "
            + type(optimizer).__name__
        )


def scaler(given):
    """The loss scaler of mindspore.amp, if there is one."""
    if given is None:
        return None
    if not hasattr(given, "scale_value"):
        raise TypeError(f"scaler must be a mindspore.amp.LossScaler, not {type(given).__name__}")
    return given
