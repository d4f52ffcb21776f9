# Names of the tensors that go into and come out of a module.
from __future__ import annotations

import dataclasses

from torch import Tensor

DEEPEST = 8  # containers inside containers; deeper ones are not looked into
MOST = 1000  # items looked at per call, about: token ids as lists must not cost a step
_PLAIN = frozenset((int, float, bool, str, bytes, type(None)))
POSITIONAL = tuple(f"input.{index}" for index in range(256))


def of_inputs(args: tuple, kwargs: dict) -> list[tuple[str, Tensor]]:
    """(element, tensor) for positional and keyword arguments: input.0, input.mask, input.1.2."""
    found: list[tuple[str, Tensor]] = []
    for name, value in zip(POSITIONAL, args):
        if isinstance(value, Tensor):
            found.append((name, value))
        elif value is not None:
            _collect(name, value, found, DEEPEST, [MOST])
    for key, value in kwargs.items():
        _collect(f"input.{key}", value, found, DEEPEST, [MOST])
    return found


def of_output(output) -> list[tuple[str, Tensor]]:
    """(element, tensor): output for a tensor, else output.0, output.logits, output.1.0."""
    if isinstance(output, Tensor):
        return [("output", output)]
    found: list[tuple[str, Tensor]] = []
    _collect("output", output, found, DEEPEST, [MOST])
    return found


def _collect(name: str, value, found: list, depth: int, budget: list[int], above=()) -> None:
    if isinstance(value, Tensor):
        found.append((name, value))
        return
    if value is None or depth == 0 or isinstance(value, (str, bytes)):
        return
    # What a class of the user makes of its own items is its code, which is not run.
    kind = next((one for one in (tuple, list, dict) if isinstance(value, one)), None)
    if kind is dict:  # ModelOutput of transformers is one
        items = dict.items(value)
        budget[0] -= dict.__len__(value)
    elif kind is not None:
        items = enumerate(kind.__getitem__(value, slice(MOST)))
        budget[0] -= kind.__len__(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        items = ((field.name, getattr(value, field.name, None)) for field in fields)
        budget[0] -= len(fields)
    else:
        return
    if budget[0] < -MOST or id(value) in above:  # a tree whose nodes know their parents
        return
    above = (*above, id(value))
    for key, item in items:
        if type(item) not in _PLAIN:
            _collect(f"{name}.{key}", item, found, depth - 1, budget, above)
