# What watch() was given as optimizers, and those of torch inside. Everything here raises TypeError.
from __future__ import annotations

from collections import OrderedDict

import torch

from trainmon.base.names import attribute_of
from trainmon.base.optimizers import by_name


def torch_optimizers(given, roots: list | None = None) -> dict:
    """torch optimizers by name, in the order given. Where Megatron has none on this rank, with `roots`
    one that never steps."""
    bare: dict = {}
    for name, optimizer in by_name(given).items():
        inner = _bare(optimizer, roots)
        for index, one in enumerate(inner):
            bare[name if len(inner) == 1 else f"{name}.{index}"] = one
    return bare


def whole_chain(given) -> tuple:
    """What was given as optimizers, what that wraps, and so on, down to those of torch: wrappers of
    models are judged by them, too."""
    values = given.values() if isinstance(given, dict) else given
    values = values if isinstance(given, (dict, list, tuple)) else [given]
    found: list = []
    for value in values:
        _inside(value, found)
    return tuple(found)


def class_names(bare, everything: tuple) -> list[str]:
    """The names of the classes of what wraps a bare optimizer, and of its own."""
    return [type(one).__name__ for one in (*filter(lambda o: is_around(o, bare), everything), bare)]


def has_stages(optimizer) -> bool:
    """Whether a step of it is two, with a backward of its own before each, as of SAM."""
    stages = (attribute_of(optimizer, name) for name in ("first_step", "second_step"))
    return all(map(callable, stages))


def grad_scaler(given, optimizers=()):
    """The GradScaler, None if there is none or it does nothing. Accelerate's optimizers have theirs."""
    if given is None:
        theirs = (attribute_of(optimizer, "scaler") for optimizer in whole_chain(optimizers))
        given = next(filter(_is_scaler, theirs), None)
    if given is None:
        return None
    if not _is_scaler(given):
        raise TypeError(f"scaler must be a torch.amp.GradScaler, not {type(given).__name__}")
    return given if given.is_enabled() else None


def _is_scaler(given) -> bool:
    return hasattr(given, "is_enabled") and hasattr(given, "get_scale")


def hooked_around(bare, everything: tuple) -> list:
    """The optimizers with step hooks around a bare one, among all that whole_chain() gave: what steps it,
    from the outermost on. Fabric's share their hooks with it, and only one of them is stepped."""
    found = [one for one in everything if _has_step_hooks(one) and is_around(one, bare)]
    hooks = {id(bare._optimizer_step_pre_hooks)}
    return [o for o in found if _is_new(id(o._optimizer_step_pre_hooks), hooks)]


def _bare(optimizer, roots) -> list:
    """The torch optimizers inside wrappers such as accelerate's: several in a chain of Megatron's."""
    found = [one for one in _inside(optimizer, []) if _is_torchs(one)]
    if found:
        return found
    if roots and attribute_of(optimizer, "is_stub_optimizer", False):
        return [NoOptimizer(roots)]
    raise TypeError(
        "optimizer must be a torch.optim.Optimizer, a list or a dict of them, not "
        f"{type(optimizer).__name__}: no torch optimizer is in its attributes. Without one call "
        "watch(model) and, after each update, step() of what it gives"
    )


def _inside(optimizer, found: list) -> list:
    """Adds the optimizer and what it wraps, itself first, and nothing that a torch optimizer wraps."""
    if any(optimizer is one for one in found) or len(found) > 100:
        return found
    found.append(optimizer)
    for one in _wrapped(optimizer):
        _inside(one, found)
    return found


def _wrapped(optimizer) -> list:
    """What steps when the optimizer does. One with step hooks wraps nothing but what steps all of
    its tensors. Others are its own, or have a part of them (ZeroRedundancyOptimizer)."""
    hooked = _has_step_hooks(optimizer)
    inner = attribute_of(optimizer, "chained_optimizers")
    if not isinstance(inner, (list, tuple)):
        inner = [attribute_of(optimizer, "optimizer") or attribute_of(optimizer, "optim")]
    inner = [one for one in inner if one is not None and one is not optimizer]
    if not inner or (hooked and not _steps_same(optimizer, inner[0])):
        values = [*attribute_of(optimizer, "__dict__", {}).values()]
        lists = [value for value in values if isinstance(value, (list, tuple))]
        values += [one for value in lists for one in value[:100]]
        inner = [v for v in values if v is not optimizer and _has_step_hooks(v) and tensors_of(v)]
    if not hooked:
        return inner
    return [one for one in inner if _steps_same(optimizer, one)][:1]


def _steps_same(outer, inner) -> bool:
    held = tensors_of(outer)
    return _has_step_hooks(inner) and bool(held) and held == tensors_of(inner)


def tensors_of(optimizer) -> set[int]:
    """Ids of what it steps; none of an object whose constructor did not get far enough."""
    try:
        return {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
    except Exception:
        return set()


def _is_torchs(optimizer) -> bool:
    """Whether its step hooks are its own, and its state: it wraps no other."""
    return _has_step_hooks(optimizer) and not _wrapped(optimizer)


def _has_step_hooks(optimizer) -> bool:
    # torch cannot put a hook into a plain dictionary.
    return isinstance(attribute_of(optimizer, "_optimizer_step_pre_hooks"), OrderedDict)


def is_around(outer, bare) -> bool:
    """Whether the step of `outer` is that of the other one, and what it adds."""
    return any(one is bare for one in _inside(outer, [])[1:])


def _is_new(key: int, seen: set[int]) -> bool:
    return key not in seen and not seen.add(key)


def _parameters_of(roots: list) -> list:
    return list({id(p): p for root in roots for p in root.parameters()}.values())


class NoOptimizer(torch.optim.Optimizer):
    """What an Adapter takes for one: it has the parameters of the model and takes no step."""

    def __init__(self, roots: list):
        tensors = _parameters_of(roots)
        if not tensors:
            raise ValueError("model has no parameters: there is nothing to watch")
        super().__init__(tensors, {"lr": 0.0})

    def model_changed(self, roots: list) -> None:
        """It has those that are there now."""
        self.param_groups[0]["params"] = _parameters_of(roots)

    def step(self, closure=None):
        raise RuntimeError("this optimizer takes no steps")
