# What every hook shares: being harmless when it fails, when it is copied and when it is taken off.
from __future__ import annotations

import logging
import traceback
import weakref
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
        self._restore = []

    def add(self, handle) -> None:
        self._handles.append(handle)

    def on_tensor(self, tensor, hook) -> None:
        """A tensor hook; torch creates the tensor's dictionary of hooks for the first one."""
        if tensor._backward_hooks is None:
            self._restore.append((weakref.ref(tensor), "_backward_hooks"))
        self.add(tensor.register_hook(hook))

    def after_accumulation(self, parameter, hook) -> None:
        if parameter._post_accumulate_grad_hooks is None:
            self._restore.append((weakref.ref(parameter), "_post_accumulate_grad_hooks"))
        self.add(parameter.register_post_accumulate_grad_hook(hook))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        for reference, attribute in self._restore:
            tensor = reference()
            if tensor is not None and not getattr(tensor, attribute):
                setattr(tensor, attribute, None)
        self._handles.clear()
        self._restore.clear()
