# What our hooks do is hidden from function modes and from classes of tensors of the user.
from __future__ import annotations

import contextlib

import torch

_depth = getattr(torch._C, "_len_torch_function_stack", lambda: 0)
_nothing = contextlib.nullcontext()


def unseen(from_tensors: bool = False):
    """A block whose calls no function mode sees: one may draw random numbers at every call. Nor do tensors of
    a class with a __torch_function__, where it has any. Hooks in C++ do the same (python/bindings/unseen.h)."""
    return torch._C.DisableTorchFunction() if from_tensors or _depth() else _nothing
