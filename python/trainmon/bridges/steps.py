# What a bridge is given, and what it must do with it.
from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, NamedTuple


class Series(NamedTuple):
    """One curve. All texts are printable; no two curves of a run have the same path."""

    family: str  # own, logged, norm, layer_norm, tensor_norm
    kind: str  # of norms: grad_reduced, ...
    name: str  # of the value, the layer or the tensor
    rank: int  # -1: of the run, or its only rank
    path: str  # all of this as one name: loss, trainmon/norm/grad_reduced/rank1


class Step(NamedTuple):
    start: str  # 16 hex digits that stand for this start of the run
    restart: int
    number: int
    seconds: float  # since 1970, ascending from step to step of a start
    values: list[tuple[Series, float]]


class Asked(NamedTuple):
    run: str  # name of its folder
    project: str
    port: int

    def name_of(self, step: Step) -> str:
        return self.run if step.restart == 0 else f"{self.run} restart {step.restart}"


class Target:
    """Takes the steps of a run, those of one start after those of another. What a member raises
    is said, and the call is made again with the same arguments later. What was taken before must
    not be taken twice, as far as the library allows."""

    newest_only = False  # serves the newest values: wants no more, and keeps no position
    settle_seconds = 0.0  # between two calls of settle(), but for one at the end
    forgets = False  # where a call raises, what was not settled may be lost: it is all sent again

    def send(self, steps: list[Step]) -> None:
        raise NotImplementedError

    def settle(self) -> None:
        """Returns when what was sent outlives a kill of this process; until then it is sent again
        after one."""

    def say_verdict(self, text: str, step: Step) -> None:
        """What diagnose says of the run, once for each text; `step` is the last that was sent."""

    def close(self, is_over: bool) -> None:
        """`is_over`: the run has ended, and all of it was sent."""


class RunTarget(Target):
    """Has a run of the tracker for each start: the run of one is finished before that of the next
    begins. A run that is finished is settled."""

    def __init__(self, asked: Asked):
        self.asked = asked
        self.run: Any = None
        self.start = ""

    def begin(self, named: dict[str, str]) -> Any:
        """A run of the tracker, new or gone on with, of these names."""
        raise NotImplementedError

    def open(self, step: Step) -> None:
        if self.start == step.start:
            return
        self.settle()
        named = {
            "project": self.asked.project,
            "id": step.start,
            "name": self.asked.name_of(step),
            "group": self.asked.run,
            "resume": "allow",
        }
        self.run = self.begin(named)
        self.start = step.start

    def settle(self) -> None:
        if self.run is not None:
            self.run.finish()
        self.run, self.start = None, ""

    def close(self, is_over: bool) -> None:
        self.settle()


def library(name: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not name.startswith(str(error.name)):
            raise  # the library is there, and lacks something of its own
        raise ModuleNotFoundError(
            f"{name} is not installed: pip install {package}", name=name
        ) from None
