# Step hooks of one optimizer that stay while monitors come and go, even from within a step.
from __future__ import annotations

from trainmon.base.console import log
from trainmon.base.signals import pass_on
from trainmon.mindspore import hooks


class Relay:
    """`at_start` is called when a step begins and may raise; `at_end` after the step was taken in."""

    def __init__(self, optimizer, at_start, at_end):
        self.at_start, self.at_end = at_start, at_end
        self.steps = None
        before, after = hooks.forward_pre(self._begins), hooks.forward(self._ends)
        self.handles = [
            optimizer.register_forward_pre_hook(before, with_kwargs=True),
            optimizer.register_forward_hook(after),
        ]

    def follow(self, steps) -> None:
        self.steps = steps

    def forget(self) -> None:
        self.steps = None

    def remove(self) -> None:
        self.forget()
        for handle in self.handles:
            handle.remove()

    def _begins(self, cell, args, kwargs) -> None:
        if self.steps is not None:
            self.steps.before(cell, args, kwargs)
        self.at_start()

    def _ends(self, *arguments) -> None:
        if self.steps is not None:
            self.steps.after(*arguments)
        try:
            self.at_end()
        except Exception as error:
            pass_on(error)
            log.warning("trainmon: %s: %s; training is not affected", type(error).__name__, error)
