# What every hook shares: being harmless when it fails, when it is copied and when it is taken off.
from __future__ import annotations

import logging
import traceback
from contextlib import nullcontext

log = logging.getLogger("trainmon")


class Hook:
    """A callable that torch keeps. Copies and pickles of it do nothing, wherever they are loaded."""

    __slots__ = ()
    __torch_unserializable__ = True  # torch warns about hooks on a saved tensor without this

    def __reduce__(self):
        return getattr, (nullcontext(), "__exit__")  # takes any arguments, returns None


class Part:
    """A piece of the adapter that fails alone: its first error is told, then it is off for good."""

    __slots__ = ("core", "name", "on")

    def __init__(self, core, name: str):
        self.core, self.name, self.on = core, name, True

    def failed(self, error: Exception) -> None:
        if not self.on:
            return
        self.on = False
        where = traceback.extract_tb(error.__traceback__)
        place = f" at {where[-1].filename}:{where[-1].lineno}" if where else ""
        self.core.part_failed(self.name, f"{type(error).__name__}: {error}{place}")


class Handles:
    """Hooks to take off again, leaving every object as it was found."""

    def __init__(self):
        self._handles = []

    def add(self, handle) -> None:
        self._handles.append(handle)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class AfterAccumulation:
    """A post-accumulate-grad hook on one tensor. Holds it: with a weak reference to it, torch would
    refuse to swap it in model.to() and the like. `called` is `hook`, or calls it."""

    __slots__ = ("tensor", "hook", "_content", "_handle", "_bare")

    def __init__(self, tensor, hook, called):
        self.tensor, self.hook = tensor, hook
        self._content = tensor._cdata
        self._bare = tensor._post_accumulate_grad_hooks is None  # torch makes a dictionary for it
        self._handle = tensor.register_post_accumulate_grad_hook(called)

    def is_lost(self) -> bool:
        """torch swapped the tensor's content for another, and the hook left with the old one."""
        return self.tensor._cdata != self._content

    def remove(self) -> None:
        self._handle.remove()
        if self._bare and not self.tensor._post_accumulate_grad_hooks:
            self.tensor._post_accumulate_grad_hooks = None
