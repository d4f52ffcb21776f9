# Step hooks of one optimizer that stay while monitors come and go, even from within a step.
from __future__ import annotations

import sys

from trainmon.base.console import log
from trainmon.base.signals import pass_on
from trainmon.torch.hooks.hook import Hook
from trainmon.torch.steps.calls import is_inside
from trainmon.torch.steps.hooks import AfterStep, BeforeStep
from trainmon.torch.steps.restored_hooks import Restored


class Relay:
    """torch does not let step hooks be added or removed while it runs them; what these two call
    may change at any time. `at_start` is called when a step begins and may raise; `at_end` after
    the step was taken in, for steps of training only."""

    def __init__(self, optimizer, at_start, at_end):
        self.at_start, self.at_end = at_start, at_end
        self.before = self.after = None
        self.caller = self.inner = 0
        self.in_step = False
        self.handles = [
            Restored(optimizer),
            optimizer.register_step_pre_hook(RelayBefore(self)),
            optimizer.register_step_post_hook(RelayAfter(self)),
        ]

    def follow(self, steps) -> None:
        self.before, self.after = BeforeStep(steps), AfterStep(steps)

    def forget(self) -> None:
        self.before = self.after = None

    def remove(self) -> None:
        self.forget()
        for handle in self.handles:
            handle.remove()

    def begins(self, caller) -> bool:
        """False for a step inside another: an optimizer whose step() calls super().step()."""
        if self.in_step and is_inside(caller, self.caller):
            self.inner += 1
            return False
        self.caller, self.inner, self.in_step = id(caller), 0, True
        return True

    def ends(self) -> bool:
        if self.inner:
            self.inner -= 1
            return False
        self.in_step = False
        return True


class RelayBefore(Hook):
    __slots__ = ("relay",)

    def __init__(self, relay):
        self.relay = relay

    def __call__(self, optimizer, args, kwargs):
        relay, caller = self.relay, sys._getframe(1)
        outermost = relay.begins(caller)
        changed = None
        if relay.before is not None:
            changed = relay.before.run(args, kwargs, caller)
        if outermost:
            relay.at_start()
        return changed


class RelayAfter(Hook):
    __slots__ = ("relay",)

    def __init__(self, relay):
        self.relay = relay

    def __call__(self, optimizer, args, kwargs):
        relay = self.relay
        if relay.after is not None:
            relay.after(optimizer, args, kwargs)
        if not relay.ends() or (relay.after is not None and relay.after.steps.turns_left):
            return
        try:
            relay.at_end()
        except Exception as error:
            pass_on(error)
            log.warning("trainmon: %s: %s; training is not affected", type(error).__name__, error)
