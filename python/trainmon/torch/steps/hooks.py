# The hooks on a watched optimizer, before and after its step.
from __future__ import annotations

import sys

from trainmon.torch.hooks.hook import Hook
from trainmon.torch.hooks.unseen import unseen
from trainmon.torch.measuring import own_time
from trainmon.torch.steps.calls import closure_of


class BeforeStep(Hook):
    __slots__ = ("steps",)

    def __init__(self, steps):
        self.steps = steps

    def __call__(self, optimizer, args, kwargs):
        steps = self.steps
        if optimizer is not steps.optimizer and steps.part.on:
            try:
                if not steps.follow(optimizer, callable(closure_of(args, kwargs))):
                    steps.ignored = True
                    return None
            except Exception as error:
                steps.failed(error)
        return self.run(args, kwargs, sys._getframe(1))

    def run(self, args, kwargs, caller):
        steps = self.steps
        if not steps.part.on:
            return None
        try:
            with unseen():
                return steps.before_step(args, kwargs, caller)
        except Exception as error:
            steps.failed(error)


class AfterStep(Hook):
    __slots__ = ("steps",)

    def __init__(self, steps):
        self.steps = steps

    def __call__(self, optimizer, args, kwargs):
        steps = self.steps
        if not steps.part.on:
            return
        try:
            with unseen():
                steps.after_step()
        except Exception as error:
            steps.failed(error)


class TimedBeforeStep(BeforeStep):
    """Step hooks stay while a budget comes and goes: without one these are plain."""

    __slots__ = ()

    def run(self, args, kwargs, caller):
        own = self.steps.adapter.own_time
        if own is None:
            return super().run(args, kwargs, caller)
        began = own_time.now()
        result = super().run(args, kwargs, caller)
        own.seconds += own_time.now() - began
        return result


class TimedAfterStep(AfterStep):
    __slots__ = ()

    def __call__(self, optimizer, args, kwargs):
        own = self.steps.adapter.own_time
        if own is None:
            return super().__call__(optimizer, args, kwargs)
        own.since = own_time.now()  # moved on by step_over()
        super().__call__(optimizer, args, kwargs)
        own.seconds += own_time.now() - own.since
        own.since = None
