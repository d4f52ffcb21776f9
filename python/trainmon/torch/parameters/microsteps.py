# grad_micro: what one backward contributes to a gradient, before it is added to what was there.
from __future__ import annotations

import weakref

from torch import Tensor

from trainmon.base.rows import ELSEWHERE
from trainmon.torch.hooks.dynamo import in_graphs, is_traced
from trainmon.torch.hooks.hook import Hook
from trainmon.torch.hooks.unseen import unseen
from trainmon.torch.wrappers.dtensors import local_of


class Contribution(Hook):
    """Tensor hook of a parameter: called once in a backward, with the sum over all its uses."""

    __slots__ = ("adapter", "optimizer", "series")

    def __init__(self, adapter, optimizer: int, series: int):
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
            gradient = local_of(gradient)
        if adapter.observe(adapter.handle, self.series, gradient, steps.flags) == ELSEWHERE:
            accum = adapter.core.accum(steps.index)
            adapter.late.add(self.series, gradient, steps.window, accum, 0, steps.flags)


class OnGradient:
    """The tensor hook on one parameter, taken off without a trace. `called` is `hook`, or calls it."""

    __slots__ = ("tensor", "hook", "called", "_handle", "_bare")

    def __init__(self, tensor: Tensor, hook: Contribution, called):
        self.tensor, self.hook, self.called = tensor, hook, called
        in_graphs.add(called)
        self._bare = tensor._backward_hooks is None  # torch makes a dictionary for it
        self._handle = tensor.register_hook(called)

    def remove(self) -> None:
        self._handle.remove()
        in_graphs.remove(self.called)
        if self._bare and not self.tensor._backward_hooks:
            self.tensor._backward_hooks = None
