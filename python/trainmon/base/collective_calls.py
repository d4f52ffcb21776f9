# Calls of collectives, whatever the framework: who made one, with which arguments, and what was called.
from __future__ import annotations

import inspect
import os
import re
import sys

from trainmon.base.locks import fork_safe_lock

RECEIVERS = frozenset(("recv", "irecv", "scatter", "recv_", "recv_any_source_"))
RECEIVED = ("tensor_list", "gather_list", "out")  # and all whose names begin with output
MOST_SEEN = 1000  # distinct calls of one function that are noted
NO_EXPRESSION = (re.error, TypeError, OverflowError, RecursionError)  # of re.compile()
_OURS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


def compiled(patterns) -> list[re.Pattern]:
    """The regular expressions of `collective_callers`; ValueError names one that is none."""
    found = []
    for pattern in patterns:
        try:
            found.append(re.compile(pattern))
        except NO_EXPRESSION as error:
            what = f"{pattern!r} is not a regular expression: {error}"
            raise ValueError(f"collective_callers: {what}") from None
    return found


def callers_outside(framework: str, *inner: str) -> list[str]:
    """path[line] function of every frame that led here, innermost first. Frames of trainmon are
    left out. So are those in the folders and files `inner` of the framework that is the folder of
    that file."""
    folder = os.path.dirname(framework)
    folders = (_OURS, *(os.path.join(folder, name) for name in inner))
    lines, frame = [], sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(folders):
            lines.append(f"{code.co_filename}[{frame.f_lineno}] {code.co_name}")
        frame = frame.f_back
    return lines


def match(patterns: list[re.Pattern], stack: list[str]) -> bool:
    texts = [*stack, ";".join(stack)]
    return any(pattern.search(text) for pattern in patterns for text in texts)


def parameters(function) -> tuple:
    """Names of the parameters, in order."""
    return tuple(inspect.signature(function).parameters)


def arguments(names: tuple, args: tuple, kwargs: dict) -> dict:
    """All arguments by name, in the order of the parameters."""
    found = dict(zip(names, args))
    found.update((name, kwargs[name]) for name in names if name in kwargs)
    return found


def captured(kind: type, name: str, given: dict) -> list[tuple]:
    """(index among the arguments that are tensors or lists of them, tensor, whether the call only
    writes to it). `kind` is the class of tensors."""
    found, index = [], 0
    for key, value in given.items():
        output = key in RECEIVED or key.startswith("output")
        output = output or (name in RECEIVERS and key in ("tensor", "tensors"))
        tensors = list(tensors_of(kind, value, output))
        if tensors or (isinstance(value, (list, tuple)) and not value):
            found += [(index, *tensor) for tensor in tensors]
            index += 1
    return found


def tensors_of(kind: type, value, output: bool):
    """(tensor, whether it is only written to) of an argument; `output` of what is not said to be."""
    if isinstance(value, kind):
        yield value, output
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(kind, item, output)
    elif isinstance(getattr(value, "tensor", None), kind):  # a P2POp
        op = getattr(value, "op", None)
        yield value.tensor, getattr(op, "__name__", op) == "irecv"


class Seen:
    """Distinct calls, and how often there was each."""

    def __init__(self):
        self.lock = fork_safe_lock()
        self.counts: dict[str, dict] = {}  # function -> {(stack, dtypes, group, shapes): count}

    def add(self, name: str, stack: list[str], group: str, tensors: list) -> None:
        dtypes = tuple(dict.fromkeys(str(tensor.dtype) for tensor in tensors))
        shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        key = tuple(stack), dtypes, group, shapes
        with self.lock:
            counts = self.counts.setdefault(name, {})
            if key in counts or len(counts) < MOST_SEEN:
                counts[key] = counts.get(key, 0) + 1

    def table(self) -> dict[str, list[dict]]:
        with self.lock:
            return {name: [_line(*item) for item in c.items()] for name, c in self.counts.items()}


def _line(key: tuple, count: int) -> dict:
    stack, dtypes, group, shapes = key
    return {
        "stack": list(stack),
        "dtype": list(dtypes),
        "group": group,
        "shape": [list(shape) for shape in shapes],
        "count": count,
    }
