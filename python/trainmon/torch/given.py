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


def optimizers(given, roots: list | None = None) -> dict:
    """torch optimizers by name, in the order given. Where Megatron has none on this rank, with `roots`
    one that never steps."""
    if isinstance(given, dict):
        found = {str(name): optimizer for name, optimizer in given.items()}
    elif isinstance(given, (list, tuple)):
        found = {str(index): optimizer for index, optimizer in enumerate(given)}
    else:
        found = {"0": given}
    if not found:
        raise TypeError("optimizer must be an optimizer, a list or a dict of them, not empty")
    bare: dict = {}
    for name, optimizer in found.items():
        inner = _bare(optimizer, roots)
        for index, one in enumerate(inner):
            bare[name if len(inner) == 1 else f"{name}.{index}"] = one
    return bare


def around(given) -> tuple:
    """What was given as optimizers, what that wraps, and so on, down to those of torch: wrappers of
    models are judged by them, too."""
    values = given.values() if isinstance(given, dict) else given
    values = values if isinstance(given, (dict, list, tuple)) else [given]
    found: list = []
    for value in values:
        _inside(value, found)
    return tuple(found)


def scaler(given, optimizers=()):
    """The GradScaler, None if there is none or it does nothing. Accelerate's optimizers have theirs."""
    if given is None:
        theirs = (getattr(optimizer, "scaler", None) for optimizer in around(optimizers))
        given = next(filter(_is_scaler, theirs), None)
    if given is None:
        return None
    if not _is_scaler(given):
        raise TypeError(f"scaler must be a torch.amp.GradScaler, not {type(given).__name__}")
    return given if given.is_enabled() else None


def _is_scaler(given) -> bool:
    return hasattr(given, "is_enabled") and hasattr(given, "get_scale")


def _bare(optimizer, roots) -> list:
    """The torch optimizers inside wrappers such as accelerate's: several in a chain of Megatron's."""
    found = [one for one in _inside(optimizer, []) if _is_torchs(one)]
    if found:
        return found
    if roots and getattr(optimizer, "is_stub_optimizer", False):
        from trainmon.torch.declared_steps import NoOptimizer

        return [NoOptimizer(roots)]
    raise TypeError(
        "optimizer must be a torch.optim.Optimizer, a list or a dict of them, not "
        + type(optimizer).__name__
    )


def _inside(optimizer, found: list) -> list:
    """Adds the optimizer and what it wraps, itself first, and nothing that a torch optimizer wraps."""
    if any(optimizer is one for one in found) or len(found) > 100:
        return found
    found.append(optimizer)
    if _is_torchs(optimizer):
        return found
    inner = getattr(optimizer, "chained_optimizers", None)
    if not isinstance(inner, (list, tuple)):
        inner = [getattr(optimizer, "optimizer", None) or getattr(optimizer, "optim", None)]
    for one in inner:
        if one is not None:
            _inside(one, found)
    return found


def _is_torchs(optimizer) -> bool:
    """Whether its step hooks are its own: Fabric's optimizers forward all they have to another."""
    if not _has_step_hooks(optimizer):
        return False
    inner = getattr(optimizer, "optimizer", None)
    return not _has_step_hooks(inner) or inner.param_groups is not optimizer.param_groups


def _has_step_hooks(optimizer) -> bool:
    return hasattr(optimizer, "_optimizer_step_pre_hooks")
