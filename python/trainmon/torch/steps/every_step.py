# Steps of all optimizers of the process, for whoever wants to hear of them.
from __future__ import annotations

import sys

from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from trainmon.base.locks import fork_safe_lock
from trainmon.torch.hooks.hook import Hook, keep_out_of_graphs
from trainmon.torch.steps.calls import is_walked


class EveryStep:
    """Until remove(), begins() and ends() of `listener` are called with (optimizer, args, kwargs,
    frame that runs the step). They must not raise. Any thread may make and remove one.

    torch walks its dictionary of such hooks in each step. That step raises when somebody has
    changed the dictionary meanwhile, unless the walk was at its end. So all of ours are one, which
    stays while a walk is under way."""

    _lock = fork_safe_lock()  # a garbage collection in here may remove one
    _listeners: dict[int, object] = {}
    _handles: list = []  # of the one hook before and the one after a step

    def __init__(self, listener):
        self._listeners[id(self)] = listener
        self._hook()

    def remove(self) -> None:
        if self._listeners.pop(id(self), None) is not None:
            self._hook()

    @classmethod
    def _hook(cls) -> None:
        with cls._lock:
            while bool(cls._listeners) != bool(cls._handles):
                if any(is_walked(one.hooks_dict_ref() or {}) for one in cls._handles):
                    return
                handles, cls._handles = cls._handles, []
                for handle in handles:
                    handle.remove()
                if not handles:
                    for kind in (Begins, Ends):
                        keep_out_of_graphs(kind)
                    before = register_optimizer_step_pre_hook(Begins())
                    cls._handles = [before, register_optimizer_step_post_hook(Ends())]


class Begins(Hook):
    __slots__ = ()

    def __call__(self, optimizer, args, kwargs):
        for listener in list(EveryStep._listeners.values()):
            listener.begins(optimizer, args, kwargs, sys._getframe(1))


class Ends(Hook):
    __slots__ = ()

    def __call__(self, optimizer, args, kwargs):
        for listener in list(EveryStep._listeners.values()):
            listener.ends(optimizer, args, kwargs, sys._getframe(1))
