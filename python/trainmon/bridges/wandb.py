# To W&B: one of its runs for each start, whose steps are those of the training.
from __future__ import annotations

import math
from typing import Any

from trainmon.bridges.steps import Asked, RunTarget, Step, library


class Bridge(RunTarget):
    """Only a run that is finished has all of it on the disk or on the server. Its service loses
    what it holds when this process is killed, or when it dies itself. Then all that this process
    has sent is sent again, but for the steps that the server says it has."""

    settle_seconds = math.inf
    forgets = True

    def __init__(self, asked: Asked):
        super().__init__(asked)
        self.wandb: Any = library("wandb", "wandb")

    def send(self, steps: list[Step]) -> None:
        try:
            for step in steps:
                self.open(step)
                if step.number >= self.run.step:
                    values = {series.path: value for series, value in step.values}
                    self.run.log(values, step=step.number, commit=True)
        except Exception:
            self.drop()
            raise

    def settle(self) -> None:
        try:
            super().settle()
        except Exception:
            self.drop()
            raise

    def drop(self) -> None:
        """Its service may be gone: the next try opens it again."""
        self.run, self.start = None, ""

    def begin(self, named: dict[str, str]) -> Any:
        settings = self.wandb.Settings(
            console="off", disable_code=True, disable_git=True, x_disable_stats=True
        )
        return self.wandb.init(settings=settings, **named)

    def say_verdict(self, text: str, step: Step) -> None:
        self.open(step)
        self.run.summary["trainmon/verdict"] = text
        self.run.alert(title="trainmon: something is wrong", text=text, level="ERROR")
