# Runs our own operations beside the user's: no graph, nothing seen by modes, no autocast.
from __future__ import annotations

import contextlib

import torch

# Guards without a trace: leaving torch.autocast(enabled=False) may empty the user's weight cache.
_no_autocast = getattr(torch._C, "_DisableAutocast", None)
if not hasattr(_no_autocast, "__enter__"):
    _no_autocast = contextlib.nullcontext
_no_functions = torch._C.DisableTorchFunction


# Inside vmap(), grad(), ... of torch.func it gives the innermost.
_innermost_transform = getattr(
    getattr(torch._C, "_functorch", None), "peek_interpreter_stack", lambda: None
)
# How many modes see operations before autograd does, as of make_fx(pre_dispatch=True): no_modes() leaves them.
_modes_before_autograd = getattr(torch._ops, "_len_torch_dispatch_stack_pre_dispatch", lambda: 0)


def why_not() -> str | None:
    """Why our operations would not be ours alone now, as a short stable word."""
    if torch.jit.is_tracing() or _modes_before_autograd():
        return "traced"
    return None if _innermost_transform() is None else "transformed"


@contextlib.contextmanager
def isolated():
    with torch.no_grad(), _no_functions(), _no_autocast(), no_modes():
        yield


def no_modes():
    """Modes of the user (operation counters, selective checkpointing) must not see these."""
    from torch.utils import _python_dispatch

    active = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)()
    return _python_dispatch._disable_current_modes() if active else contextlib.nullcontext()
