# Names of the tensors that go into and come out of a cell.
from __future__ import annotations

from collections.abc import Mapping

from mindspore import Tensor

DEEPEST = 8  # containers inside containers; deeper ones are not looked into
MOST = 1000  # items of one container that are looked at


def of_inputs(args: tuple, kwargs: dict) -> list[tuple[str, Tensor]]:
    """(element, tensor) for positional and keyword arguments: input.0, input.mask, input.1.2."""
    found: list[tuple[str, Tensor]] = []
    for key, value in [*enumerate(args), *kwargs.items()]:
        _collect(f"input.{key}", value, found, DEEPEST)
    return found


def of_output(output) -> list[tuple[str, Tensor]]:
    """(element, tensor): output for a tensor, else output.0, output.logits, output.1.0."""
    found: list[tuple[str, Tensor]] = []
    _collect("output", output, found, DEEPEST)
    return found


def _collect(name: str, value, found: list, depth: int) -> None:
    if isinstance(value, Tensor):
        found.append((name, value))
    elif depth and isinstance(value, (tuple, list)):
        for key, item in enumerate(value[:MOST]):
            _collect(f"{name}.{key}", item, found, depth - 1)
    elif depth and isinstance(value, Mapping):
        for key, item in list(value.items())[:MOST]:
            _collect(f"{name}.{key}", item, found, depth - 1)
