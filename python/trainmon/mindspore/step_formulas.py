# The steps that the formulas of MindSpore's optimizers take from the state after a step (kind update).
from __future__ import annotations

import math

from mindspore import nn

from trainmon import _core
from trainmon.mindspore.parameters import dtype_name, replication

# Other terms of their formulas.
OTHER_TERMS = ("use_amsgrad", "use_nesterov", "use_offload")


class StepFormulas:
    """A row for each parameter that has just been stepped: the step that the formula of its optimizer
    takes. Its series names class and group. Where there is no formula, it is said, by name."""

    def __init__(self, adapter, steps):
        self.adapter, self.steps = adapter, steps
        optimizer = steps.optimizer
        self.name = type(optimizer).__name__
        self.formula = _FORMULAS.get(type(optimizer))
        odd = [term for term in OTHER_TERMS if getattr(optimizer, term, False)]
        if self.formula is None:
            self._not_covered("its formula is not known")
        elif odd:
            self.formula = None
            self._not_covered(f"its formula with {odd[0]} is not known")
        elif adapter.is_elsewhere:
            self.formula = None
            self._not_covered("measured on the CPU only")

    def read(self) -> None:
        """After the step, of whose groups the values have been read."""
        steps = self.steps
        if self.formula is None or steps.declared is None:
            return
        name, numbers, x, s = self.formula(steps.optimizer)
        groups = steps.declared.group_of
        chosen = [
            i for i, p in enumerate(steps.parameters) if p is not None and p.selected
        ]  # in the order of the optimizer's
        lists = [steps.states.get(key, []) if key else [] for key in (x, s)]
        if not all(lists[: 2 if s else 1]) or len(groups) != len(steps.parameters):
            self._not_covered("its state or its groups are not there")
            return
        first, second = ([one[i] for i in chosen] if one else [] for one in lists)
        left = _core.observe_updates(
            self.adapter.core, name, numbers, 1.0,
            [self._series(steps.parameters[i], groups[i]) for i in chosen],
            first, [], second, [1.0] * len(chosen), [None] * len(chosen),
        )  # fmt: skip
        if left:
            names = ", ".join(steps.parameters[chosen[i]].name for i in left[:3])
            self._not_covered(f"state of {names} is not on the CPU, or a divisor of float16")

    def _series(self, parameter, group: int) -> int:
        key = f"update.{group}"
        known = parameter.series.get(key)
        if known is None:
            known = parameter.series[key] = self.adapter.add_series(
                kind="update",
                name=parameter.label,
                element=f"{self.name}.{group}",
                chunk=parameter.chunk,
                optimizer=parameter.optimizer,
                dtype=dtype_name(parameter.tensor),
                full_shape=list(parameter.tensor.shape),
                replication=replication("update", parameter.tensor, self.adapter.reduces),
            )
        return known

    def _not_covered(self, why: str) -> None:
        self.adapter.coverage.not_covered(f"update of {self.name}", why)


# (name in C++, numbers of its group, where x and s of it are). `step` is 1 for all: what the C++ takes for
# beta is its power, by which the moments are corrected.
def _adam(optimizer) -> tuple:
    """Step: lr sqrt(1 - beta2^t) / (1 - beta1^t) exp_avg / (sqrt(exp_avg_sq) + eps). The optimizer
    multiplies the powers up in float32: those are its own."""
    powers = [float(getattr(optimizer, f"beta{i}_power").asnumpy().reshape(())) for i in (1, 2)]
    eps = float(optimizer.eps) / math.sqrt(1.0 - powers[1])
    return "adam", {"betas": tuple(powers), "eps": eps}, "exp_avg", "exp_avg_sq"


def _adam_weight_decay(optimizer) -> tuple:
    """Step: lr exp_avg / (sqrt(exp_avg_sq) + eps), and the decay beside it."""
    return "adam", {"betas": (0.0, 0.0), "eps": float(optimizer.eps)}, "exp_avg", "exp_avg_sq"


def _momentum(optimizer) -> tuple:
    return "plain", {}, "moments", None


_FORMULAS = {nn.Adam: _adam, nn.AdamWeightDecay: _adam_weight_decay, nn.Momentum: _momentum}
