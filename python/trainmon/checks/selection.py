# What may be asked of a run: names, ranks and steps. Each function gives the value in plain Python types;
# TypeError or ValueError names the argument, what is valid and what was given.
from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable, Mapping
from typing import Any


def unknown(what: str, name: Any, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"{name!r} is no {what}{hint}; there are {', '.join(names)}"


def is_int(value: Any) -> bool:
    try:
        operator.index(value)  # arrays have __index__, and raise
    except TypeError:
        return False
    return not isinstance(value, bool)


def one_name(argument: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a name, not {type(value).__name__}")
    return value


def texts(argument: str, value: Any) -> list[str]:
    if value is None:
        return []
    values = [value] if isinstance(value, str) else value
    if isinstance(values, (bytes, Mapping)) or not isinstance(values, Iterable):
        raise TypeError(f"{argument} must be a name or names, not {type(value).__name__}")
    return [one_name(argument, name) for name in values]


def rank_numbers(ranks: Any) -> list[int]:
    if ranks is None:
        return []
    values = [ranks] if is_int(ranks) else ranks
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise TypeError(f"ranks must be an int or ints, not {type(ranks).__name__}")
    values = list(values)
    for rank in values:
        if not is_int(rank):
            raise TypeError(f"ranks must hold ints, not {type(rank).__name__}")
        if not 0 <= int(rank) < 2**31:
            raise ValueError(f"ranks: {rank} is no rank; ranks count from 0")
    return [int(rank) for rank in values]


def step_range(steps: Any) -> tuple[int | None, int | None]:
    if steps is None:
        return None, None
    if is_int(steps):
        steps = (steps, steps)
    if not isinstance(steps, (tuple, list)) or len(steps) != 2:
        raise TypeError(f"steps must be an int or a pair (first, last), not {steps!r}")
    for step in steps:
        if step is not None and not is_int(step):
            raise TypeError(f"steps must hold ints or None, not {type(step).__name__}")
        if step is not None and not -(2**63) <= int(step) < 2**63:
            raise ValueError(f"steps: {step} is no step; a step is a 64-bit integer")
    first, last = (None if step is None else int(step) for step in steps)
    if first is not None and last is not None and last < first:
        raise ValueError(f"steps: the last step {last} comes before the first {first}")
    return first, last
