# grad_micro: what one backward contributes to a gradient, before it is added to what was there.
from __future__ import annotations

import weakref

from trainmon.base.rows import ELSEWHERE
from trainmon.torch.hooks.dynamo import is_traced
from trainmon.torch.hooks.hook import Hook, TensorHook
from trainmon.torch.hooks.unseen import unseen
from trainmon.torch.wrappers.dtensors import local_of


class Contribution(Hook):
    """Tensor hook of a parameter: called once in a backward, with the sum over all its uses."""

    __slots__ = ("adapter", "optimizer", "series", "placed")

    def __init__(self, adapter, optimizer: int, series: int, placed=None):
        """`placed`: the parameter, where each gradient says how it lies."""
        self.placed = placed
        # Weak, as the hooks after accumulation are: torch's references are not seen through.
        self.adapter, self.optimizer, self.series = weakref.ref(adapter), optimizer, series

    def __call__(self, gradient):
        adapter = self.adapter()
        if adapter is None or not adapter.gradients.on or is_traced(gradient):
            return
        try:
            steps = adapter.steps[self.optimizer]
            steps.enter_backward()
            if not steps.recording or gradient is None:
                return
            with unseen():
                self._read(adapter, steps, gradient)
        except Exception as error:
            adapter.gradients.failed(error)

    def _read(self, adapter, steps, gradient) -> None:
        if adapter.has_dtensors:
            of = self.placed
            if of is not None and adapter.wrappers[of.chunk].placed_as(of, "grad_micro", gradient):
                self.series = adapter.registry.series_of(of, "grad_micro", gradient)
            gradient = local_of(gradient)
        if adapter.observe(adapter.handle, self.series, gradient, steps.flags) == ELSEWHERE:
            accum = adapter.core.accum(steps.index)
            adapter.late.add(self.series, gradient, steps.window, accum, 0, steps.flags)


class OnGradient(TensorHook):
    """A hook on the gradient of one tensor, while a backward computes it."""

    __slots__ = ()
    register, kept = "register_hook", "_backward_hooks"
