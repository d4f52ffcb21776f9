# Runs our own operations beside the user's: no graph, nothing seen by modes, no autocast.
from __future__ import annotations

import contextlib

import torch

# Guards without a trace: leaving torch.autocast(enabled=False) may empty the user's weight cache.
_no_autocast = getattr(torch._C, "_DisableAutocast", None)
if not hasattr(_no_autocast, "__enter__"):
    _no_autocast = contextlib.nullcontext
_no_functions = torch._C.DisableTorchFunction


@contextlib.contextmanager
def isolated():
    with torch.no_grad(), _no_functions(), _no_autocast(), no_modes():
        yield


def no_modes():
    """Modes of the user (operation counters, selective checkpointing) must not see these."""
    from torch.utils import _python_dispatch

    active = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)()
    return _python_dispatch._disable_current_modes() if active else contextlib.nullcontext()
