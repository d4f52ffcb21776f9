# What gradient and optimizer state say together: do they point the same way, how large is a step.
from __future__ import annotations

import torch
from torch import Tensor

from trainmon.base.rows import ELSEWHERE
from trainmon.torch.measuring.ops import dtype_name

MOMENTA = ("exp_avg", "momentum_buffer")


class Directions:
    """mg_direction: the share of elements in which a gradient and its momentum have equal signs."""

    def __init__(self, adapter, registry, steps, parameters):
        self.adapter, self.registry, self.steps = adapter, registry, steps
        self.parameters = [p for p in parameters if p.selected and p.owned]
        self.share = torch.empty(0, device="cpu")  # of the dtype that shares have

    def read(self) -> None:
        """Before the step: the momentum is that of the steps before."""
        adapter, optimizer = self.adapter, self.steps.optimizer
        for parameter in self.parameters:
            wrapper = adapter.wrappers[parameter.chunk]
            found = wrapper.values("grad_reduced", [parameter], optimizer)
            if found is None:
                gradient = wrapper.gradient_now(parameter)
            else:
                gradient = found[0]
            known = wrapper.state(parameter, optimizer)
            if gradient is None or not known:
                continue
            momentum = next((known[key] for key in MOMENTA if key in known), None)
            if not isinstance(momentum, Tensor):
                continue
            one, two = locals_of(wrapper, [gradient, momentum])
            if one is None or two is None or one.shape != two.shape:
                continue
            if one.is_complex():  # its sign is none
                adapter.core.refuse(dtype_name(one))
                continue
            series = self.registry.series_of(parameter, "mg_direction", self.share)
            if adapter.is_elsewhere or (
                adapter.core.observe_direction(series, one, two) == ELSEWHERE
            ):
                steps = self.steps
                accum = adapter.core.accum(steps.index)
                adapter.late.add(series, _agreement(one, two), steps.window, accum, 0, 0)


class Updates:
    """update_ratio: histograms of what Adam adds to each parameter."""

    def __init__(self, adapter, registry, steps, parameters):
        self.adapter, self.registry, self.steps = adapter, registry, steps
        self.parameters = [p for p in parameters if p.selected and p.owned]
        self.share = torch.empty(0, device="cpu")  # of the dtype that shares have

    def read(self) -> None:
        adapter, optimizer = self.adapter, self.steps.optimizer
        groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        for parameter in self.parameters:
            wrapper = adapter.wrappers[parameter.chunk]
            state = wrapper.state(parameter, optimizer)
            group = groups.get(id(parameter.stepped))
            if not state or "exp_avg" not in state or "exp_avg_sq" not in state or group is None:
                continue
            step = state.get("step", group.get("step"))
            if step is None or (isinstance(step, Tensor) and not step.is_cpu) or float(step) < 1:
                adapter.coverage.not_covered("update_ratio", "the step count is not on the host")
                continue
            pair = locals_of(wrapper, [state["exp_avg"], state["exp_avg_sq"]])
            if any(tensor is None for tensor in pair):
                continue
            series = [self._series(parameter, element) for element in ("update", "ratio")]
            beta1, beta2 = group.get("betas", (0.9, 0.999))
            done = adapter.core.add_adam_histograms(
                *series, *pair, float(step), float(beta1), float(beta2), float(group.get("eps", 0))
            )
            if done == ELSEWHERE:
                adapter.coverage.not_covered("update_ratio", "measured on the CPU only")

    def _series(self, parameter, element: str) -> int:
        key = f"update_ratio.{element}"
        known = parameter.series.get(key)
        if known is None:
            known = parameter.series[key] = self.adapter.add_series(
                kind="update_ratio",
                name=parameter.label,
                element=element,
                chunk=parameter.chunk,
                optimizer=parameter.optimizer,
            )
        return known


def locals_of(wrapper, tensors: list, attribute: str | None = None) -> list:
    tensors, attribute = wrapper.locals(tensors, attribute)
    return tensors if attribute is None else [getattr(tensor, attribute) for tensor in tensors]


def _agreement(one: Tensor, two: Tensor) -> Tensor:
    with torch.no_grad():
        if one.numel() == 0:
            return torch.ones((), device=one.device)
        # sign(NaN) is NaN here and 0 in the definition.
        agree = (one.sign().to(torch.float32) * two.sign().to(torch.float32)).nan_to_num(0.0).sum()
        return (agree / one.numel() + 1) / 2
