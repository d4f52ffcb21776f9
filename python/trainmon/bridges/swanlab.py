# To SwanLab: one of its experiments for each start, whose steps are those of the training.
from __future__ import annotations

import signal
from typing import Any

from trainmon.bridges.steps import Asked, RunTarget, Step, library


class Bridge(RunTarget):
    """SwanLab writes later, from threads of its own, and says nothing of it before its run is
    finished. So a run is finished once a minute and then resumed."""

    settle_seconds = 60.0

    def __init__(self, asked: Asked):
        super().__init__(asked)
        self.swanlab: Any = library("swanlab", "swanlab")

    def send(self, steps: list[Step]) -> None:
        for step in steps:
            self.open(step)
            values = {series.path: value for series, value in step.values}
            self.run.log(values, step=step.number)

    def begin(self, named: dict[str, str]) -> Any:
        probe = {"hardware": False, "monitor": False, "git": False, "requirements": False}
        settings = self.swanlab.Settings(
            probe=probe, interactive=False, terminal={"proxy_type": "none"}
        )
        interrupt = signal.getsignal(signal.SIGINT)
        run = self.swanlab.init(settings=settings, **named)
        signal.signal(signal.SIGINT, interrupt)  # it would call the run aborted
        return run

    def say_verdict(self, text: str, step: Step) -> None:
        self.open(step)
        self.run.log_text(key="trainmon/verdict", data=text, step=step.number)
