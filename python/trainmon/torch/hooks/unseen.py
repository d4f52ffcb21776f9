# What our hooks do is hidden from function modes of the user.
from __future__ import annotations

import contextlib

import torch

_depth = getattr(torch._C, "_len_torch_function_stack", lambda: 0)
_nothing = contextlib.nullcontext()


def unseen():
    """A block whose calls no function mode sees: one may draw random numbers at every call. Hooks in
    C++ do the same (python/bindings/unseen.h)."""
    return torch._C.DisableTorchFunction() if _depth() else _nothing
