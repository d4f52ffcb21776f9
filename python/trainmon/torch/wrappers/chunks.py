# The model that watch() was given, as chunks. Raises TypeError.
from __future__ import annotations

from torch import nn


def chunks_of(model) -> list[nn.Module]:
    """The model chunks: one module, several in a list, or in a dict by their names."""
    model = list(model.values()) if isinstance(model, dict) else model
    found = list(model) if isinstance(model, (list, tuple)) else [model]
    if not found or not all(isinstance(chunk, nn.Module) for chunk in found):
        kinds = ", ".join(type(chunk).__name__ for chunk in found) or "an empty list"
        raise TypeError(f"model must be a torch.nn.Module, a list or a dict of them, not {kinds}")
    return found


def names_of(model) -> list[str]:
    """Of the chunks, if they came with names: what the names of all that is in them begin with."""
    return [str(name) for name in model] if isinstance(model, dict) else []
