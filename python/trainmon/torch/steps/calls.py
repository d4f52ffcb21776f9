# What can be told of one call of an optimizer's step(): its closure, who calls it, what scales its losses.
from __future__ import annotations

import gc
import sys

import torch
from torch import Tensor
from torch.optim import Optimizer

from trainmon import _core
from trainmon.base.names import attribute_of

MOST_STEPS = 2**53  # a float64 counts no further
# What torch puts around step().
_STEP = Optimizer.profile_hook_step(lambda optimizer: None).__code__


def closure_of(args: tuple, kwargs: dict):
    """What step() was given for one, None if nothing."""
    return kwargs.get("closure", args[1] if len(args) > 1 else None)


def is_inside(caller, step: int) -> bool:
    """Whether the step under way, run by the frame of that id, runs `caller`; else it raised and
    never ended."""
    above = caller.f_back
    while above is not None:
        if id(above) == step:
            return True
        above = above.f_back
    return False


def walkers(hooks: dict) -> dict[int, int]:
    """The threads that go through these hooks of optimizers, in a step, each with the identity of the one
    that it is at. torch raises where somebody takes one off meanwhile, or adds one behind that."""
    ids = set(map(id, list(hooks.values())))
    found = {}
    for thread, frame in _frames().items():
        while frame is not None:
            if frame.f_code is _STEP:
                names = frame.f_locals
                at = id(names.get("post_hook", names.get("pre_hook")))
                if at in ids:
                    found[thread] = at
            frame = frame.f_back
    return found


def _frames() -> dict:
    """The frame that each thread is in. CPython before 3.12 hangs for ever where its collector of
    garbage begins meanwhile and frees a threading.local: both take one lock."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if was_enabled:
            gc.enable()


def is_walked(hooks: dict) -> bool:
    """Whether any thread goes through them."""
    return bool(walkers(hooks))


def steps_of(state) -> int:
    """How many steps that state of a parameter has seen, 0 if it does not count. What no optimizer can
    have counted (inf, NaN, 2^53 and more, of a damaged checkpoint) counts as 0."""
    step = state.get("step") if isinstance(state, dict) else None
    if isinstance(step, Tensor):
        is_number = step.numel() == 1 and not step.is_complex() and not step.is_meta
        step = step.item() if is_number else None
    is_count = isinstance(step, (int, float)) and 0 < step < MOST_STEPS
    return int(step) if is_count else 0


def begins_anew(state) -> bool:
    """Whether that state of a parameter is as before the first step, so far as it says so at once."""
    if not isinstance(state, dict):
        return state is None
    step = state.get("step")
    is_elsewhere = isinstance(step, Tensor) and step.device.type != "cpu"
    tensors = [one for one in state.values() if isinstance(one, Tensor) and one.dim()]
    are_zero = bool(tensors) and all(map(_core.first_row_is_zero, tensors))
    return not state or are_zero or (step is not None and not is_elsewhere and steps_of(state) == 0)


def step_in_state(optimizer) -> int:
    """How many steps the optimizer has taken according to its own state."""
    return max(map(steps_of, optimizer.state.values()), default=0)


def initialises_state(optimizer, frame) -> bool:
    """Whether torch.distributed.checkpoint is calling step(), with lr 0 and zero gradients, to
    make the state that it is about to load. Or DeepSpeed does, before training, to have it
    made."""
    for _ in range(6):  # decorators of step() lie between
        if frame is None:
            return False
        name = frame.f_code.co_name
        if name == "initialize_optimizer_states":
            return True
        if name == "_init_optim_state":
            return all(_is_zero(group.get("lr", 0)) for group in optimizer.param_groups)
        frame = frame.f_back
    return False


def _is_zero(lr) -> bool:
    return (not isinstance(lr, Tensor) or lr.is_cpu) and lr == 0


def scaler_of(frame):
    """The GradScaler whose step() calls that of an optimizer, which `frame` runs."""
    for _ in range(6):  # decorators of step() lie between
        if frame is None:
            return None
        if frame.f_code is _SCALER_STEP:
            return frame.f_locals.get("self")
        frame = frame.f_back
    return None


_SCALER_STEP = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler).step.__code__


def fused_scaling(optimizer) -> tuple | None:
    """(grad_scale, found_inf) while GradScaler leaves both to the optimizer's own kernel."""
    found_inf = attribute_of(optimizer, "found_inf")
    if not isinstance(found_inf, Tensor):
        return None
    scale = attribute_of(optimizer, "grad_scale")
    return scale if isinstance(scale, Tensor) else None, found_inf
