# Where each module was called from, in the first step that is recorded.
from __future__ import annotations

import sys
import traceback


class StacksBase:
    """One text per module. Sources are read once per line."""

    inner = 2  # frames of ours when called() runs

    def __init__(self, adapter, part):
        self.adapter, self.part = adapter, part
        self.window = None

    def _frame(self):
        """Where rows of the forward under way belong."""
        raise NotImplementedError

    def called(self, name: str, chunk: int) -> bool:
        """False: not yet. After the first window that had some, everything has been seen."""
        adapter, frame = self.adapter, self._frame()
        if not frame.recording:
            return False
        if self.window is None:
            self.window = frame.window
        if frame.window != self.window:
            return True
        series = adapter.add_series(
            kind="stack", name=name, chunk=chunk, optimizer=adapter.clock.index
        )
        lines = []
        for found in traceback.StackSummary.extract(
            traceback.walk_stack(sys._getframe(self.inner))
        ):
            where = f"File {found.filename}, line {found.lineno}, in {found.name}"
            lines.append(f"{where}, \n {found.line} ")
        text = "\n".join(lines) + "\n"
        adapter.core.add_text(series, text, frame.window, frame.accum, 0)
        return True
