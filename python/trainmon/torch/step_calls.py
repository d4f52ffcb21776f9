# Calls of step() of every torch optimizer, or of given ones: the outermost call of each, and no others.
from __future__ import annotations

import gc
import sys
import weakref

from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from trainmon.torch.hooks import Handles, Hook
from trainmon.torch.steps import initialises_state, is_inside


class StepCalls:
    """`begins(optimizer)` is called when the gradients of a step are there: at its start, or when
    its closure has run for the first time. What it raises goes to `failed(error)`."""

    def __init__(self, optimizers, begins, failed):
        """`optimizers` None: all there are, and those to come."""
        self.begins, self.failed = begins, failed
        self.on = True
        self._under_way = weakref.WeakKeyDictionary()  # optimizer -> [frame that runs it, inner]
        self._handles = Handles()
        before, after = Before(self), After(self)
        if optimizers is None:
            self._handles.add(register_optimizer_step_pre_hook(before))
            self._handles.add(register_optimizer_step_post_hook(after))
        for optimizer in optimizers or ():
            self._handles.add(optimizer.register_step_pre_hook(before))
            self._handles.add(optimizer.register_step_post_hook(after))

    def remove(self) -> None:
        self.on = False
        self._handles.remove()

    def enter(self, optimizer, args, kwargs, caller):
        under_way = self._under_way.get(optimizer)
        if under_way is not None and is_inside(caller, under_way[0]):
            under_way[1] += 1  # a step() that calls super().step()
            return None
        if initialises_state(optimizer, caller):
            return None
        self._under_way[optimizer] = [id(caller), 0]
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            self.begins(optimizer)
            return None
        watched = self._watched(optimizer, closure)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    def _watched(self, optimizer, closure):
        ran = False

        def watched(*args, **kwargs):
            nonlocal ran
            result = closure(*args, **kwargs)
            if not ran and self.on:
                ran = True
                try:
                    self.begins(optimizer)
                except Exception as error:
                    self.failed(error)
            return result

        return watched

    def leave(self, optimizer) -> None:
        under_way = self._under_way.get(optimizer)
        if under_way is None:
            return
        if under_way[1]:
            under_way[1] -= 1
        else:
            del self._under_way[optimizer]


class Before(Hook):
    __slots__ = ("calls",)

    def __init__(self, calls):
        self.calls = calls

    def __call__(self, optimizer, args, kwargs):
        if not self.calls.on:
            return None
        try:
            return self.calls.enter(optimizer, args, kwargs, sys._getframe(1))
        except Exception as error:
            self.calls.failed(error)


class After(Before):
    __slots__ = ()

    def __call__(self, optimizer, args, kwargs):
        try:
            self.calls.leave(optimizer)
        except Exception as error:
            self.calls.failed(error)


class Owners:
    """Which optimizer has which parameters of a model, by the names that it gives them."""

    def __init__(self, optimizers):
        """`optimizers` None: they are looked for when the first one steps."""
        self._known = [weakref.ref(one) for one in optimizers or ()]
        self._searched = self._given = optimizers is not None
        self._first = None  # the first one that stepped, it takes what nobody has

    def of(self, optimizer, named: dict) -> list[str]:
        """The names of those that step with this optimizer: those it has. Where no optimizer was
        given, what nobody has steps with the first one. None of them if it has nothing to do with
        the model, unless nobody has: then it keeps copies of them, as for mixed precision."""
        if not self._searched:
            self._searched = True
            everyone = (one for one in gc.get_objects() if issubclass(type(one), Optimizer))
            self._known = [weakref.ref(one) for one in everyone]
        alive = [one for one in (ref() for ref in self._known) if one is not None]
        if all(one is not optimizer for one in alive):
            self._known.append(weakref.ref(optimizer))
            alive.append(optimizer)
        held = {id(one): _ids(one) for one in alive}
        mine, anybody = held[id(optimizer)], set().union(*held.values())
        ids = {id(parameter) for parameter in named.values()}
        if not ids & mine and ids & anybody:
            return []
        first = self._first and self._first()
        if first is None:
            self._first, first = weakref.ref(optimizer), optimizer
        if first is optimizer and not (self._given and ids & anybody):
            mine = mine | (ids - anybody)
        return [name for name, parameter in named.items() if id(parameter) in mine]


def _ids(optimizer) -> set[int]:
    return {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
