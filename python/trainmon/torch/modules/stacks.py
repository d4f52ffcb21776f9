# Where each module was called from, in the first step that is recorded.
from __future__ import annotations

import weakref

from trainmon.base.stacks import StacksBase
from trainmon.torch.hooks.backward import IDLE, current_task
from trainmon.torch.hooks.dynamo import compiling
from trainmon.torch.hooks.hook import Hook


class Stacks(StacksBase):
    """Hooks that do nothing any more once their module has its text."""

    def __init__(self, adapter, part):
        super().__init__(adapter, part)
        self.watched: dict[int, tuple] = {}  # id of module -> (reference to it, its hook)

    def install(self, name: str, module, chunk: int, handles) -> None:
        """Also again, when modules were put in or moved."""
        known, hook = self.watched.get(id(module), (None, None))
        if known is not None and known() is module:
            hook.name, hook.chunk = name, chunk
            return
        hook = Called(self, name, chunk)
        self.watched[id(module)] = weakref.ref(module), hook
        handles.hook(module, "register_forward_hook", hook)

    def _frame(self):
        return self.adapter.clock.frame or self.adapter.open_frame()


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
