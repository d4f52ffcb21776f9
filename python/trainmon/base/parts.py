# A piece of an adapter that may fail alone.
from __future__ import annotations

import traceback

from trainmon import _core
from trainmon.base.signals import pass_on


class Part(_core.Part):
    """A piece of the adapter that fails alone: its first error is told, then it is off for good.
    What the user's signal handler raised goes on to him, and the part stays on."""

    __slots__ = ("core", "name")

    def __init__(self, core, name: str):
        super().__init__()
        self.core, self.name = core, name

    def run(self, act, *arguments) -> None:
        """Calls act(*arguments) unless it is off; what that raises switches it off."""
        if not self.on:
            return
        try:
            act(*arguments)
        except Exception as error:
            self.failed(error)

    def failed(self, error: Exception) -> None:
        pass_on(error)
        if not self.on:
            return
        self.on = False
        where = traceback.extract_tb(error.__traceback__)
        place = f" at {where[-1].filename}:{where[-1].lineno}" if where else ""
        self.core.part_failed(self.name, f"{type(error).__name__}: {error}{place}")
