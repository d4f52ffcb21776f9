# A block of edits that are meant, as a training enters it.
from __future__ import annotations

from trainmon.base.signals import pass_on

LONGEST = 200  # characters of a reason that are said


class Edits:
    """Announced each time it is entered; it may be entered again. Never raises."""

    def __init__(self, adapter, why: str, is_on):
        self._adapter, self._why, self._is_on = adapter, why, is_on

    def __enter__(self) -> None:
        adapter = self._adapter
        if not self._is_on() or not adapter.attached:
            return
        adapter.announce_edit()
        try:
            text = "".join(c if c.isprintable() else " " for c in str(self._why)[:LONGEST])
            adapter.coverage.say_once(f"weights are edited: {text}")
        except Exception as error:
            pass_on(error)

    def __exit__(self, *exception) -> None:
        pass
