# Names of the tensors that go into and come out of a module.
from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor

DEEPEST = 8  # containers inside containers; deeper ones are not looked into
_POSITIONAL = tuple(f"input.{index}" for index in range(256))


def of_inputs(args: tuple, kwargs: dict) -> list[tuple[str, Tensor]]:
    """(element, tensor) for positional and keyword arguments: input.0, input.mask, input.1.2."""
    found: list[tuple[str, Tensor]] = []
    for name, value in zip(_POSITIONAL, args):
        if isinstance(value, Tensor):
            found.append((name, value))
        elif value is not None:
            _collect(name, value, found, DEEPEST)
    for key, value in kwargs.items():
        _collect(f"input.{key}", value, found, DEEPEST)
    return found


def of_output(output) -> list[tuple[str, Tensor]]:
    """(element, tensor): output for a tensor, else output.0, output.logits, output.1.0."""
    if isinstance(output, Tensor):
        return [("output", output)]
    found: list[tuple[str, Tensor]] = []
    _collect("output", output, found, DEEPEST)
    return found


def _collect(name: str, value, found: list, depth: int) -> None:
    if isinstance(value, Tensor):
        found.append((name, value))
    elif value is None or depth == 0 or isinstance(value, (str, bytes)):
        return
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            _collect(f"{name}.{index}", item, found, depth - 1)
    elif isinstance(value, Mapping):  # ModelOutput of transformers is one
        for key, item in value.items():
            _collect(f"{name}.{key}", item, found, depth - 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _collect(f"{name}.{field.name}", getattr(value, field.name, None), found, depth - 1)
