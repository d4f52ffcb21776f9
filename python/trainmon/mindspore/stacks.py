# Where each cell was called from, in the first step that is recorded.
from __future__ import annotations

import functools
import sys
import traceback

from trainmon.mindspore import hooks


class Stacks:
    """One text per cell, then the hooks do nothing any more."""

    def __init__(self, adapter, part):
        self.adapter, self.part = adapter, part
        self.window = None
        self.done: set[tuple] = set()

    def install(self, name: str, cell, chunk: int, handles) -> None:
        act = hooks.harmless(self.part, functools.partial(self._left, name, chunk))
        handles.add(cell.register_forward_hook(hooks.forward(act)))

    def _left(self, name: str, chunk: int, cell, *_) -> None:
        adapter = self.adapter
        is_root = any(cell is root for root in adapter.roots)
        if not cell.training or adapter.is_recomputing(is_root) or (name, chunk) in self.done:
            return
        if self.called(name, chunk):
            self.done.add((name, chunk))

    def called(self, name: str, chunk: int) -> bool:
        """False: not yet. After the first window that had some, everything has been seen."""
        adapter = self.adapter
        frame = adapter.forward_of_cell()
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
        for found in traceback.StackSummary.extract(traceback.walk_stack(sys._getframe(4))):
            where = f"File {found.filename}, line {found.lineno}, in {found.name}"
            lines.append(f"{where}, \n {found.line} ")
        adapter.core.add_text(series, "\n".join(lines) + "\n", frame.window, frame.accum, 0)
        return True
