# How much of each step our own hooks take, for a budget; without one nothing here is used.
from __future__ import annotations

from time import perf_counter as now

from trainmon.base.parts import Part
from trainmon.torch.hooks.dynamo import compiling
from trainmon.torch.hooks.hook import Hook

CALLS = 200  # of a hook that does nothing, to see what a call costs beyond what it sees itself


class OwnTime:
    """Seconds in our hooks since the last step of the clock ended; what it tells the core makes the
    core record fewer steps (src/collect/governor.h).

    Hooks of backwards on several threads add up without a lock: one may now and then be lost.
    A device's time is not in it, for the core adds that of launches. The writer thread's is not, either."""

    __slots__ = ("core", "part", "seconds", "since", "step_began", "per_call")

    def __init__(self, core):  # not the adapter: hooks of parameters hold this
        self.core, self.part = core, Part(core, "budget")
        self.seconds = 0.0
        self.since = None  # when the step hook under way began
        self.step_began = None
        self.per_call = 0.0
        self.per_call = self._calibrated()
        self.seconds = 0.0

    def _calibrated(self) -> float:
        hook = TimedHook(_nothing, self)
        best = float("inf")
        for _ in range(5):
            self.seconds, began = 0.0, now()
            for _ in range(CALLS):
                hook(None, None, None)
            best = min(best, now() - began - self.seconds)
        return max(best / CALLS, 0.0)

    def hook(self, hook):
        """The same hook, timed."""
        return TimedHook(hook, self)

    def step_over(self, recorded: bool) -> bool:
        """The clock's window has closed and the next one is open. True: other steps than before
        are recorded from now on."""
        if not self.part.on:
            return False
        try:
            end = now()
            if self.since is not None:
                self.seconds += end - self.since
                self.since = end
            began, own = self.step_began, self.seconds
            self.step_began, self.seconds = end, 0.0
            seconds = end - began if began is not None else 0.0  # not known of the first
            return self.core.step_timed(seconds, own, recorded)
        except Exception as error:
            self.part.failed(error)
            return False


class TimedHook(Hook):
    __slots__ = ("call", "own")

    def __init__(self, call, own: OwnTime):
        self.call, self.own = call, own

    def __call__(self, *args, **kwargs):
        if compiling():
            return self.call(*args, **kwargs)
        began = now()
        result = self.call(*args, **kwargs)
        own = self.own
        own.seconds += now() - began + own.per_call
        return result


def _nothing(*_):
    return None
