# The arguments of watch() that only PyTorch can judge. Everything here raises TypeError.
from __future__ import annotations

from torch import nn


def chunks(model) -> list[nn.Module]:
    """The model chunks: one module, or several in a list."""
    found = list(model) if isinstance(model, (list, tuple)) else [model]
    if not found or not all(isinstance(chunk, nn.Module) for chunk in found):
        kinds = ", ".join(type(chunk).__name__ for chunk in found) or "an empty list"
        raise TypeError(f"model must be a torch.nn.Module or a list of them, not {kinds}")
    return found


def optimizers(given) -> dict:
    """torch optimizers by name, in the order given."""
    if isinstance(given, dict):
        found = {str(name): optimizer for name, optimizer in given.items()}
    elif isinstance(given, (list, tuple)):
        found = {str(index): optimizer for index, optimizer in enumerate(given)}
    else:
        found = {"0": given}
    if not found:
        raise TypeError("optimizer must be an optimizer, a list or a dict of them, not empty")
    return {name: _bare(optimizer) for name, optimizer in found.items()}


def scaler(given):
    """The GradScaler, None if there is none or it does nothing."""
    if given is None:
        return None
    if not (hasattr(given, "is_enabled") and hasattr(given, "get_scale")):
        raise TypeError(f"scaler must be a torch.amp.GradScaler, not {type(given).__name__}")
    return given if given.is_enabled() else None


def _bare(optimizer):
    """The torch optimizer inside wrappers such as accelerate's."""
    inner = optimizer
    for _ in range(8):
        if hasattr(inner, "_optimizer_step_pre_hooks"):
            return inner
        inner = getattr(inner, "optimizer", None) or getattr(inner, "optim", None)
        if inner is None:
            break
    raise TypeError(
        "optimizer must be a torch.optim.Optimizer, a list or a dict of them, not "
        + type(optimizer).__name__
    )
