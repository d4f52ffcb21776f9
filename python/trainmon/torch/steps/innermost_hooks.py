# Hooks on optimizers next to the step: behind the pre-hooks of the user and before the post-hooks.
from __future__ import annotations

import threading
import time
import weakref

from trainmon.torch.hooks.hook import is_followed, keep_out_of_graphs
from trainmon.torch.steps.calls import is_walked, walkers
from trainmon.torch.steps.restored_hooks import Restored

PATIENCE = 1.0  # seconds, with a thread that steps


class StepHook:
    """The handle of a hook on an optimizer. While torch goes through its hooks it stays, and does
    nothing more; it is taken off when one is put on again."""

    _left: list = []

    def __init__(self, handle):
        self.handle = handle
        left, StepHook._left = StepHook._left, []
        for one in left:
            one.remove()

    def remove(self) -> None:
        if not is_walked(self.handle.hooks_dict_ref() or {}):
            self.handle.remove()
        elif self not in self._left:
            self._left.append(self)


def _wait_until_free(hooks: dict) -> None:
    """Until no other thread goes through them, but not for long."""
    due = time.monotonic() + PATIENCE
    while walked := walkers(hooks):
        at = walked.pop(threading.get_ident(), None)
        if at is not None and at != id(next(reversed(hooks.values()))):
            raise RuntimeError(
                "an optimizer cannot be watched from one of its own step hooks that others follow, for torch "
                "goes through them: call watch() after its step()"
            )
        if not walked or time.monotonic() > due:
            return
        time.sleep(0.0005)


class BehindLast:
    """Stands for the last pre-hook of an optimizer in the step under way, and then has `read()` called.
    A hook that came later runs behind ours, and may change what the step begins with. torch goes through
    the hooks, so their order must stay."""

    def __init__(self, hooks: dict, read):
        self.hooks, self.read = hooks, read
        self.key, self.hook = next(reversed(hooks.items()))
        hooks[self.key] = self

    def __call__(self, *given):
        try:
            result = self.hook(*given)
            self.read()
            return result
        finally:
            self.put_back()

    def put_back(self) -> None:
        if self.hooks.get(self.key) is self:
            self.hooks[self.key] = self.hook


class InnermostHooks:
    """The user's own pre-hooks may change gradients; the post-hooks may clear them, change weights
    or raise. Whoever came first does not matter. Optimizers are kept weakly."""

    def __init__(self):
        self._behind: BehindLast | None = None  # of the last step that had one
        self._held: dict[int, tuple] = {}  # key of our pre-hook -> (its optimizer, handles)

    def put_on(self, optimizer, before, after) -> tuple:
        """The handles of both. RuntimeError in a step hook of the user that others follow."""
        for hooks in (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks):
            _wait_until_free(hooks)
        for one in (before, after):
            keep_out_of_graphs(type(one))
        restored, handle = Restored(optimizer), optimizer.register_step_pre_hook(before)
        ends = optimizer.register_step_post_hook(after)
        optimizer._optimizer_step_post_hooks.move_to_end(ends.id, last=False)
        held = restored, StepHook(handle), StepHook(ends)
        self._held[handle.id] = weakref.ref(optimizer), held
        return held

    def forget_gone(self) -> list:
        """The handles of optimizers that are no more: a training may make one for each step."""
        gone = [key for key, (optimizer, _) in self._held.items() if optimizer() is None]
        return [one for key in gone for one in self._held.pop(key)[1]]

    def are_on(self, optimizer) -> bool:
        return any(key in self._held for key in optimizer._optimizer_step_pre_hooks)

    def _followed(self) -> list[tuple]:
        """(optimizer, its pre-hooks, the key of ours), of each where some of the user come later."""
        held = [(one(), key) for key, (one, _) in self._held.items()]
        tables = [(one, one._optimizer_step_pre_hooks, key) for one, key in held if one is not None]
        return [one for one in tables if one[2] in one[1] and is_followed(one[1], one[2])]

    def call_behind(self, optimizers: list, read) -> None:
        """Calls read() behind the last pre-hook of the step of these: now, but where some come later. One
        calls the step of the next."""
        followed = {id(optimizer): hooks for optimizer, hooks, _ in self._followed()}
        innermost = next((one for one in reversed(optimizers) if id(one) in followed), None)
        if innermost is None:
            read()
        else:
            self._behind = BehindLast(followed[id(innermost)], read)

    def move_last(self) -> None:
        """Not while torch runs these hooks."""
        if self._behind is not None:
            self._behind.put_back()  # the step of an inner one may have been left out
            self._behind = None
        for _, hooks, key in self._followed():
            hooks.move_to_end(key)
