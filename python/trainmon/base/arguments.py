# What a model is given beside the tensors that have rows.
from __future__ import annotations

import dataclasses
import enum
import numbers

DEEPEST = 8  # containers inside containers
MOST = 1000  # items that are looked at
MOST_NUMBERS = 16  # in containers, as sizes and shapes; more may be a batch
_PLAIN = (str, bytes, numbers.Number, enum.Enum, type(None))


def unread(args: tuple, kwargs: dict, tensor: type, framework: str) -> str | None:
    """The first argument with something that may be a part of the batch and is no `tensor`, as "input.0".
    It may be an object of a class, an array, a set, or a list of numbers or texts. None if there is none. Values of
    `framework` itself, as dtypes and devices, are no part of a batch. Nor is what can be called."""
    looked_at = counted = 0
    for name, value in (*enumerate(args), *kwargs.items()):
        left = [(value, DEEPEST)]
        while left:
            one, depth = left.pop()
            if isinstance(one, tensor):
                continue
            if isinstance(one, _PLAIN):
                counted += depth < DEEPEST and isinstance(one, numbers.Number)
                continue
            items = _items(one)
            if items is None:
                if callable(one) or type(one).__module__.partition(".")[0] == framework:
                    continue
                return f"input.{name}"
            looked_at += len(items)
            are_texts = not isinstance(one, dict) and any(
                isinstance(i, (str, bytes)) for i in items
            )
            if are_texts or depth == 0 or looked_at > MOST:
                return f"input.{name}"
            left += [(item, depth - 1) for item in items]
        if counted > MOST_NUMBERS:
            return f"input.{name}"
    return None


def _items(value) -> list | None:
    """None where it is no container. What a class makes of its own items is its code, which is not run."""
    if isinstance(value, (tuple, list)):
        kind = tuple if isinstance(value, tuple) else list
        return list(kind.__getitem__(value, slice(MOST + 1)))
    if isinstance(value, dict):
        return list(dict.values(value))[: MOST + 1]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return None
