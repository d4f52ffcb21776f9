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
    found = _named(given)
    if not found:
        raise TypeError("optimizer must be an optimizer, a list or a dict of them, not empty")
    return {name: _bare(optimizer) for name, optimizer in found.items()}


def _named(given) -> dict:
    if isinstance(given, dict):
        return {str(name): optimizer for name, optimizer in given.items()}
    if isinstance(given, (list, tuple)):
        return {str(index): optimizer for index, optimizer in enumerate(given)}
    return {"0": given}


def scaler(given, optimizers=()):
    """The GradScaler, None if there is none or it does nothing. Prepared optimizers have theirs."""
    if given is None:
        theirs = (getattr(optimizer, "scaler", None) for optimizer in _named(optimizers).values())
        given = next(filter(_is_scaler, theirs), None)
    if given is None:
        return None
    if not _is_scaler(given):
        raise TypeError(f"scaler must be a torch.amp.GradScaler, not {type(given).__name__}")
    return given if given.is_enabled() else None


def _is_scaler(given) -> bool:
    return hasattr(given, "is_enabled") and hasattr(given, "get_scale")


def _bare(optimizer):
    """The torch optimizer inside wrappers such as accelerate's."""
    inner = optimizer
    for _ in range(8):
        within = getattr(inner, "optimizer", None) or getattr(inner, "optim", None)
        if _has_hooks(inner) and not _merely_forwards(inner, within):
            return inner
        inner = within
        if inner is None:
            break
    raise TypeError(
        "optimizer must be a torch.optim.Optimizer, a list or a dict of them, not "
        + type(optimizer).__name__
    )


def _has_hooks(optimizer) -> bool:
    return hasattr(optimizer, "_optimizer_step_pre_hooks")


def _merely_forwards(outer, within) -> bool:
    """Whether all that `outer` has is that of the optimizer within it (Fabric's)."""
    return _has_hooks(within) and within.param_groups is outer.param_groups
