# Hooks on tensors into which gradients accumulate: rows before reduction, and that a backward runs.
from __future__ import annotations

import weakref

import torch

from trainmon import _core
from trainmon.base.rows import NO_SERIES
from trainmon.torch.hooks.dynamo import is_traced
from trainmon.torch.hooks.hook import Hook
from trainmon.torch.hooks.unseen import unseen
from trainmon.torch.wrappers.dtensors import local_of


class Accumulated(_core.Accumulated):
    """Post-accumulate-grad hook: the gradient before any reduction, and the sign that a backward of
    this optimizer's parameters is under way (series NO_SERIES: only that). `keeps`: whether its .grad
    stays there until the step. The call is in C++; what is here is rare. `steps` are held weakly,
    for the garbage collector does not see through torch's reference to this hook. The hooks of
    modules and optimizers keep them, as they keep the adapter."""

    __slots__ = ("__weakref__",)
    __name__ = "hook"  # of a node of a graph

    def __init__(self, adapter, optimizer: int, series: int, keeps: bool):
        super().__init__(
            steps=adapter.steps[optimizer],
            part=adapter.gradients,
            core=adapter.core,
            series=series,
            keeps=keeps,
            has_dtensors=adapter.has_dtensors,
            elsewhere=adapter.is_elsewhere,
        )

    local_of = staticmethod(local_of)

    def found_none(self, steps) -> None:
        """A hook before ours took the gradient, or an autograd.Function gave none."""
        if self.series != NO_SERIES:
            why = "an earlier hook takes gradients away as they arrive, or there is none"
            steps.adapter.coverage.not_covered("grad_unreduced", why)

    def is_traced(self, steps) -> None:
        if self.series != NO_SERIES:
            why = "compiled autograd: its graph leaves hooks out"
            steps.adapter.coverage.not_covered("grad_unreduced", why)

    def is_elsewhere(self, steps, gradient) -> None:
        accum = steps.core.accum(steps.index)
        steps.adapter.late.add(self.series, gradient, steps.window, accum, 0, steps.flags)

    def again(self, steps, gradient, call: int) -> None:
        place = steps.window, steps.core.accum(steps.index), call
        steps.adapter.row(self.series, gradient, *place, steps.flags)


class OfDTensor(Accumulated):
    """Of a parameter that is a DTensor: how its gradient lies is known when there is one."""

    __slots__ = ("parameter",)  # the registry sets it

    def local_of(self, gradient):
        adapter, parameter = self.steps.adapter, self.parameter
        wrapper = adapter.wrappers[parameter.chunk]
        if wrapper.placed_as(parameter, "grad_unreduced", gradient):
            self.series = adapter.registry.series_of(parameter, "grad_unreduced", gradient)
        return local_of(gradient)


class CallAfter(Hook):
    """Post-accumulate-grad hook of a tensor that is not read itself. For one backward find()
    gives (parameter, local value) of each gradient before reduction that is complete now."""

    __slots__ = ("adapter", "optimizer", "find", "task", "call")

    def __init__(self, adapter, optimizer: int, find):
        self.adapter, self.optimizer = weakref.ref(adapter), optimizer  # weak, as above
        self.find, self.task, self.call = find, None, 0

    def __call__(self, tensor):
        adapter = self.adapter()
        if adapter is None or not adapter.gradients.on or is_traced(tensor):
            return
        try:
            adapter.steps[self.optimizer].enter_backward()
            task = adapter.backward.task
            self.call = self.call + 1 if self.task == task else 0
            self.task = task
            if any(each.recording for each in adapter.steps):
                with torch.no_grad(), unseen():
                    for parameter, value in self.find():
                        adapter.registry.report(parameter, value, self.call)
        except Exception as error:
            adapter.gradients.failed(error)


class Reduced(Hook):
    """Post-accumulate-grad hook of a sharded parameter: only now does its .grad hold something."""

    __slots__ = ("adapter", "optimizer")

    def __init__(self, adapter, optimizer: int):
        self.adapter, self.optimizer = weakref.ref(adapter), optimizer  # weak, as above

    def __call__(self, tensor):
        adapter = self.adapter()
        if adapter is None or not adapter.gradients.on or is_traced(tensor):
            return
        try:
            steps = adapter.steps[self.optimizer]
            if steps.first is None:
                steps.first = tensor
            with unseen():
                steps.got_gradient(tensor)
        except Exception as error:
            adapter.gradients.failed(error)
