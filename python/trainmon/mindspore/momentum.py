# What gradient and optimizer state say together: do they point the same way, how large is a step.
from __future__ import annotations

import math

from mindspore import nn

from trainmon.base.rows import ELSEWHERE
from trainmon.mindspore.parameters import steps_taken

MOMENTA = ("exp_avg", "moments", "accum")
# Those whose step is Adam's with corrected moments; nn.AdamWeightDecay does not correct them.
CORRECTED = (nn.Adam, nn.AdamOffload, nn.LazyAdam, nn.Lamb)


class Directions:
    """mg_direction: the share of elements in which a gradient and its momentum have equal signs."""

    def __init__(self, adapter, steps):
        self.adapter, self.steps = adapter, steps

    def read(self, gradients) -> None:
        """Before the step: the momentum is that of the steps before."""
        adapter, states = self.adapter, self.steps.states
        momenta = next((states[key] for key in MOMENTA if key in states), None)
        if momenta is None:
            adapter.coverage.not_covered("mg_direction", "the optimizer keeps no momentum")
            return
        if steps_taken(self.steps.optimizer) == 0 and self.steps.window == 0:
            return  # there is no momentum yet
        for parameter, gradient, momentum in zip(self.steps.parameters, gradients, momenta):
            if parameter is None or not parameter.selected or gradient.shape != momentum.shape:
                continue
            series = adapter.series_of(parameter, "mg_direction", None)
            if adapter.is_elsewhere or (
                adapter.core.observe_direction(series, gradient, momentum) == ELSEWHERE
            ):
                adapter.late.add_direction(series, gradient, momentum, self.steps)


class Updates:
    """update_ratio: histograms of what Adam adds to each parameter."""

    def __init__(self, adapter, steps):
        self.adapter, self.steps = adapter, steps

    def read(self) -> None:
        adapter, steps = self.adapter, self.steps
        moments, squares = steps.states.get("exp_avg"), steps.states.get("exp_avg_sq")
        optimizer = steps.optimizer
        is_plain = isinstance(optimizer, nn.AdamWeightDecay)
        if moments is None or squares is None or not (is_plain or isinstance(optimizer, CORRECTED)):
            adapter.coverage.not_covered("update_ratio", "the optimizer is no Adam of mindspore.nn")
            return
        taken = steps_taken(optimizer)
        if taken < 1:
            return
        number = math.inf if is_plain else float(taken)  # of the step: corrections are 1 at last
        settings = _adam(optimizer)
        for parameter, moment, square in zip(steps.parameters, moments, squares):
            if parameter is None or not parameter.selected:
                continue
            series = [self._series(parameter, element) for element in ("update", "ratio")]
            done = adapter.core.add_adam_histograms(*series, moment, square, number, *settings)
            if done == ELSEWHERE:
                adapter.coverage.not_covered("update_ratio", "measured on the CPU only")

    def _series(self, parameter, element: str) -> int:
        key = f"update_ratio.{element}"
        if key not in parameter.series:
            parameter.series[key] = self.adapter.add_series(
                kind="update_ratio",
                name=parameter.label,
                element=element,
                chunk=parameter.chunk,
                optimizer=parameter.optimizer,
            )
        return parameter.series[key]


def _adam(optimizer) -> list[float]:
    """beta1, beta2 and eps, which optimizers keep as numbers or one-element tensors."""
    return [float(getattr(optimizer, key)) for key in ("beta1", "beta2", "eps")]
