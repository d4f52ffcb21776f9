# Which backward a hook runs in: one answer for all of its threads and nested runs, and when it ends.
from __future__ import annotations

import torch

from trainmon import _core
from trainmon.base.locks import fork_safe_lock
from trainmon.torch.hooks.unseen import unseen

IDLE = -1
# Inside a backward the id of the run that called the hook, else -1. (Private, there since 1.13.)
current_task = getattr(torch._C, "_current_graph_task_id", lambda: IDLE)
_engine = torch.autograd.Variable._execution_engine


class Backward(_core.Backward):
    """Follows the engine's runs. `task` is the id of the outermost one, IDLE outside. Hooks call follow(),
    which calls enter() when the run, `now`, is another than the last one.

    Reentrant checkpointing runs a backward inside a backward. A run first seen while another is
    active is such an inner one. When the inner one is seen first, the outer betrays itself later:
    ids grow, so its id is the smaller.
    """

    __slots__ = ("last", "inner", "at_end", "part", "lock")

    def __init__(self, part, at_end):
        super().__init__(current_task)
        self.part = part
        self.at_end = at_end
        self.last = IDLE
        self.inner: set[int] = set()
        self.lock = fork_safe_lock()

    def enter(self, now: int) -> None:
        if now == IDLE:
            return
        with self.lock:
            if now not in self.inner:
                self.inner.add(now)
                if self.task == IDLE:
                    self.task = self.last if now < self.last else now
                    _engine.queue_callback(self._end)
            self.now = now

    def settle(self) -> None:
        """Forgets a backward that never ended, because something raised in it."""
        if self.task != IDLE and current_task() == IDLE:
            self._end()

    def _end(self) -> None:
        try:
            if self.task != IDLE and self.part.on:
                with unseen():
                    self.at_end()
        except Exception as error:
            self.part.failed(error)
        finally:
            with self.lock:
                if self.task != IDLE:
                    self.last, self.task, self.now = self.task, IDLE, IDLE
                    self.inner.clear()
