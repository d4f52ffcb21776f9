# One call of a collective: which tensors it takes, who called it, and what was called altogether.
from __future__ import annotations

import os

import torch
from torch import Tensor

from trainmon.base.collective_calls import callers_outside
from trainmon.base.collective_calls import captured as captured_by

_FOLDER = os.path.dirname(torch.__file__)
_NOT_CALLERS = (
    os.path.join(os.path.dirname(os.path.dirname(__file__)), ""),  # trainmon
    os.path.join(_FOLDER, "distributed", ""),
    os.path.join(_FOLDER, "nn", "modules", "module.py"),
)


def callers() -> list[str]:
    """Without the frames of trainmon and of torch.distributed."""
    return callers_outside(_NOT_CALLERS)


def captured(name: str, given: dict) -> list[tuple]:
    return captured_by(tensors_of, name, given)


def tensors_of(value, output: bool):
    if isinstance(value, Tensor):
        yield value, output
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item, output)
    elif isinstance(value, torch.distributed.P2POp):
        yield value.tensor, value.op.__name__ == "irecv"


def described(group) -> str:
    ranks = " ".join(map(str, torch.distributed.get_process_group_ranks(group)))
    return f"{torch.distributed.get_backend(group)}, ranks {ranks}"
