# What arguments of the gradient probe, the comparator and the bare measures must be. Each function
# gives the value in plain Python types; TypeError or ValueError names the argument, what is valid
# and what was given.
from __future__ import annotations

import math
import numbers
import os
from collections.abc import Callable, Collection, Iterable
from typing import Any

MOST_THREADS = 256
MOST_SECONDS = 1e9  # as good as for ever


def choice(name: str, value: Any, valid: Collection[str]) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be one of {', '.join(valid)}, not {_shown(value)}")
    if value not in valid:
        raise ValueError(f"{name} must be one of {', '.join(valid)}, not {value!r}")
    return value


def flag(name: str, value: Any) -> bool:
    if type(value).__name__ not in ("bool", "bool_"):  # Python's and NumPy's
        raise TypeError(f"{name} must be True or False, not {_shown(value)}")
    return bool(value)


def threads(value: Any) -> int:
    value = _plain(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"threads must be an int, not {type(value).__name__}")
    if not 1 <= value <= MOST_THREADS:
        raise ValueError(f"threads must be from 1 to {MOST_THREADS}, not {value}")
    return value


def eps(value: Any) -> float:
    value = _number("eps", value)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"eps must be a finite number of at least 0, not {value!r}")
    return value


def seconds(name: str, value: Any) -> float:
    value = _number(name, value)
    if not value >= 0:
        raise ValueError(f"{name} must be a number of at least 0, not {value!r}")
    return min(value, MOST_SECONDS)


def path(name: str, value: Any, *, is_utf8: bool = False) -> str:
    """With the home directory for `~`, as watch(out=) has it. `is_utf8`: it will stand in a file or a text."""
    try:
        text = os.path.expanduser(os.fsdecode(value))
    except TypeError:
        raise TypeError(f"{name} must be a path, not {type(value).__name__}") from None
    if not text:
        raise ValueError(f"{name} must be a path, not empty")
    if "\0" in text:
        raise ValueError(f"{name} must be a path without NUL, not {text!r}")
    if is_utf8 and not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{name} must be a path in UTF-8, not {text!r}") from None
    return text


def directory(name: str, value: Any) -> str:
    """A path to one that is there, else FileNotFoundError."""
    text = path(name, value)
    if not os.path.isdir(text):
        raise FileNotFoundError(f"{name}: there is no directory {text}")
    return text


def real_numbers(name: str, values: Any) -> list[int | float]:
    return [_real(name, value) for value in _elements(name, values, "numbers")]


def counts(name: str, values: Any) -> frozenset[int]:
    what = "integers from 0 on"
    found = [_plain(value) for value in _elements(name, values, what)]
    for value in found:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name} must be {what}, not {_shown(value)}")
    return frozenset(found)


def names(name: str, values: Any, what: str) -> frozenset[str]:
    """One name or several."""
    found = [values] if isinstance(values, str) else _elements(name, values, what)
    for value in found:
        if not isinstance(value, str):
            raise TypeError(f"{name} must be {what}, not {_shown(value)}")
    return frozenset(found)


def called(name: str, value: Any) -> Callable | None:
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function, not {type(value).__name__}")
    return value


def _elements(name: str, values: Any, what: str) -> list:
    if hasattr(values, "tolist"):  # an array or a tensor
        values = values.tolist()
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be an iterable of {what}, not {type(values).__name__}")
    return list(values)


def _plain(value: Any) -> Any:
    """int and float for scalars of NumPy and torch."""
    if type(value) in (int, float):
        return value
    if isinstance(value, numbers.Number):
        if isinstance(value, bool):
            return value
        if isinstance(value, numbers.Integral):
            return int(value)
        return float(value) if isinstance(value, numbers.Real) else value
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    return value


def _real(name: str, value: Any) -> int | float:
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must hold numbers, not {type(value).__name__}")
    try:
        float(value)
    except OverflowError:
        raise ValueError(f"{name} must be numbers that float64 can hold") from None
    return value


def _number(name: str, value: Any) -> float:
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must be a number that float64 can hold") from None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else type(value).__name__
