# One call of a collective: which tensors it takes, who called it, and what was called altogether.
from __future__ import annotations

import inspect
import os
import re
import sys
import threading

import torch
from torch import Tensor

RECEIVERS = frozenset(("recv", "irecv", "scatter", "recv_", "recv_any_source_"))
RECEIVED = ("tensor_list", "gather_list", "out")  # and all whose names begin with output
MOST_SEEN = 1000  # distinct calls of one function that are noted

_FOLDER = os.path.dirname(torch.__file__)
_NOT_CALLERS = (
    os.path.join(os.path.dirname(os.path.dirname(__file__)), ""),  # trainmon
    os.path.join(_FOLDER, "distributed", ""),
    os.path.join(_FOLDER, "nn", "modules", "module.py"),
)


def compiled(patterns) -> list[re.Pattern]:
    """The regular expressions of `collective_callers`; ValueError names one that is none."""
    found = []
    for pattern in patterns:
        try:
            found.append(re.compile(pattern))
        except re.error as error:
            what = f"{pattern!r} is not a regular expression: {error}"
            raise ValueError(f"collective_callers: {what}") from None
    return found


def callers() -> list[str]:
    """path[line] function of every frame that led here, innermost first, without those of trainmon
    and of torch.distributed."""
    lines, frame = [], sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_NOT_CALLERS):
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


def captured(name: str, given: dict) -> list[tuple]:
    """(index among the arguments that are tensors or lists of them, tensor, whether the call only
    writes to it)."""
    found, index = [], 0
    for key, value in given.items():
        output = key in RECEIVED or key.startswith("output")
        output = output or (name in RECEIVERS and key in ("tensor", "tensors"))
        tensors = list(_tensors(value, output))
        if tensors or (isinstance(value, (list, tuple)) and not value):
            found += [(index, *tensor) for tensor in tensors]
            index += 1
    return found


def _tensors(value, output: bool):
    if isinstance(value, Tensor):
        yield value, output
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item, output)
    elif isinstance(value, torch.distributed.P2POp):
        yield value.tensor, value.op.__name__ == "irecv"


class Seen:
    """Distinct calls, and how often there was each."""

    def __init__(self):
        self.lock = threading.Lock()
        self.counts: dict[str, dict] = {}  # function -> {(stack, dtypes, group, shapes): count}

    def add(self, name: str, stack: list[str], group, tensors: list) -> None:
        dtypes = tuple(dict.fromkeys(str(tensor.dtype) for tensor in tensors))
        shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        ranks = " ".join(map(str, torch.distributed.get_process_group_ranks(group)))
        text = f"{torch.distributed.get_backend(group)}, ranks {ranks}"
        key = tuple(stack), dtypes, text, shapes
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
