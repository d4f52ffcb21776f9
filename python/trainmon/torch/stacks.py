# Where each module was called from, in the first step that is recorded.
from __future__ import annotations

import sys
import traceback

from trainmon.torch.backward import IDLE, current_task
from trainmon.torch.forward import compiling
from trainmon.torch.hooks import Hook


class Stacks:
    """One text per module, then the hooks do nothing any more. Sources are read once per line."""

    def __init__(self, adapter, part):
        self.adapter, self.part = adapter, part
        self.window = None

    def install(self, name: str, module, chunk: int, handles) -> None:
        handles.hook(module, "register_forward_hook", Called(self, name, chunk))

    def called(self, name: str, chunk: int) -> bool:
        """False: not yet. After the first window that had some, everything has been seen."""
        adapter = self.adapter
        frame = adapter.frame or adapter.open_frame()
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
        for found in traceback.StackSummary.extract(traceback.walk_stack(sys._getframe(2))):
            where = f"File {found.filename}, line {found.lineno}, in {found.name}"
            lines.append(f"{where}, \n {found.line} ")
        text = "\n".join(lines) + "\n"
        adapter.core.add_text(series, text, frame.window, frame.accum, 0)
        return True


class Called(Hook):
    __slots__ = ("stacks", "name", "chunk", "done")

    def __init__(self, stacks, name, chunk):
        self.stacks, self.name, self.chunk, self.done = stacks, name, chunk, False

    def __call__(self, module, args, output):
        if compiling():
            return
        stacks = self.stacks
        if self.done or not stacks.part.on or not module.training:
            return
        try:
            if current_task() == IDLE:
                self.done = stacks.called(self.name, self.chunk)
        except Exception as error:
            stacks.part.failed(error)
