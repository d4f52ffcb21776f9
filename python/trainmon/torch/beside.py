# Runs our own operations beside the user's: no graph, nothing seen by modes, no autocast.
from __future__ import annotations

import contextlib

import torch

from trainmon.torch.ops import _no_modes

# Guards without a trace: leaving torch.autocast(enabled=False) may empty the user's weight cache.
_no_autocast = getattr(torch._C, "_DisableAutocast", None)
if not hasattr(_no_autocast, "__enter__"):
    _no_autocast = contextlib.nullcontext
_no_functions = torch._C.DisableTorchFunction


@contextlib.contextmanager
def beside():
    with torch.no_grad(), _no_functions(), _no_autocast(), _no_modes():
        yield
