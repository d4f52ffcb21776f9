"""An omniscient look at a training: every bit of every tensor at every point of every step.

It shares no code with trainmon. The clean twin of a fault gives the truth: the first place where the
two differ is where the fault happened.
"""

from __future__ import annotations

import hashlib

import torch
from training import Training, local

# What is looked at, at the point where it is whole.
LOOKS = {
    "input": ("input",),
    "weights": ("weights",),
    "reduced": ("grad_reduced",),
    "update": ("moments", "update"),
}


def digest(tensor: torch.Tensor) -> bytes:
    data = local(tensor.detach()).contiguous().numpy().tobytes()
    return hashlib.blake2b(data, digest_size=8).digest()


class Witness:
    """Hangs at a training's points; `seen` is by step, stage and tensor, which is "" of a batch and of
    what is logged."""

    def __init__(self):
        self.seen: dict[tuple[int, str, str], bytes] = {}

    def __call__(self, training: Training, point: str) -> None:
        for stage in LOOKS.get(point, ()):
            if stage == "input":
                key = (training.step, stage, "")
                self.seen[key] = self.seen.get(key, b"") + digest(training.given)
                continue
            for name, parameter in training.parameters.items():
                for tensor in self._tensors(training, parameter, stage):
                    key = (training.step, stage, name)
                    self.seen[key] = self.seen.get(key, b"") + digest(tensor)

    def logs(self, step: int, value: float) -> None:
        self.seen[step, "logged", ""] = digest(torch.tensor(value))

    @staticmethod
    def _tensors(training: Training, parameter: torch.Tensor, stage: str) -> list[torch.Tensor]:
        if stage in ("weights", "update"):
            return [parameter]
        if stage == "grad_reduced":
            return [] if parameter.grad is None else [parameter.grad]
        state = training.inner.state.get(parameter, {})
        return [value for _, value in sorted(state.items()) if torch.is_tensor(value)]


ORDER = ("input", "weights", "grad_reduced", "moments", "update", "logged")


def first_difference(clean: list[dict], faulty: list[dict]) -> dict | None:
    """Of all ranks: the earliest step and stage, which tensors differ there, and on which ranks."""
    places: dict[tuple[int, int], set[tuple[int, str]]] = {}
    for rank, (one, other) in enumerate(zip(clean, faulty, strict=True)):
        for (step, stage, name), bits in one.items():
            if other.get((step, stage, name)) != bits:
                places.setdefault((step, ORDER.index(stage)), set()).add((rank, name))
    if not places:
        return None
    (step, stage), where = min(places.items())
    return {
        "step": step,
        "stage": ORDER[stage],
        "ranks": sorted({rank for rank, _ in where}),
        "tensors": sorted({name for _, name in where if name}),
    }
