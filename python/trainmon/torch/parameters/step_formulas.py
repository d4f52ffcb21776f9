# The steps that the formulas of torch's optimizers take from the state after a step (kind update).
from __future__ import annotations

import inspect

import torch

from trainmon import _core
from trainmon.base.names import attribute_of
from trainmon.torch.parameters.momentum import locals_of

# From the more to the less special: AdamW is an Adam in newer versions of torch.
KNOWN = ("AdamW", "Adam", "NAdam", "RAdam", "RMSprop", "Adagrad", "SGD")
GRADIENT = "grad"  # in the place of a key of the state


class StepFormulas:
    """A row for each parameter that has just been stepped: the step that the formula of its optimizer
    takes. Its series names class and group. Where there is no formula, it is said, by name."""

    def __init__(self, adapter, registry, steps, parameters):
        self.adapter, self.registry, self.steps = adapter, registry, steps
        self.parameters = [p for p in parameters if p.selected and p.owned]
        self.known = formula_of(steps)
        self.name = type(steps.outer or _that_steps(steps.optimizer)).__name__
        self.held: list[tuple] = []  # ids of the tensors of each group when they were sorted
        self.sorted: list[tuple[int, int, list]] = []  # (group, chunk, its parameters)
        if self.known is None and self.parameters:
            self._not_covered(self.name, "its formula is not known")

    def of_other_class(self) -> StepFormulas:
        """Of what steps now."""
        return StepFormulas(self.adapter, self.registry, self.steps, self.parameters)

    def read(self) -> None:
        """After the step."""
        if self.known is None:
            return
        groups = self.steps.optimizer.param_groups
        held = [tuple(map(id, group["params"])) for group in groups]
        if held != self.held:
            self.held, self.sorted = held, self._sorted(groups)
        for number, chunk, parameters in self.sorted:
            self._read_group(groups[number], number, self.adapter.wrappers[chunk], parameters)

    def _sorted(self, groups) -> list:
        group_of = {id(p): i for i, group in enumerate(groups) for p in group["params"]}
        found: dict[tuple, list] = {}
        for parameter in self.parameters:
            number = group_of.get(id(parameter.stepped))
            if number is not None:
                found.setdefault((number, parameter.chunk), []).append(parameter)
        return [(*key, parameters) for key, parameters in found.items()]

    def _read_group(self, group: dict, number: int, wrapper, parameters: list) -> None:
        formula, *keys = self._formula(group)
        if formula is None:
            return
        optimizer = self.steps.optimizer
        if GRADIENT in keys and (wrapper.main_grad or self.steps.fused is not None):
            why = "its formula has the gradient, which is in main_grad or has a loss scale in it"
            self._not_covered(self.name, why)
            return
        parameters = [p for p in parameters if wrapper.has_gradient(p)]
        states = [wrapper.state(p, optimizer) or {} for p in parameters]
        tensors = [self._tensors(key, wrapper, parameters, states) for key in keys]
        is_negative = GRADIENT in keys and group.get("maximize", False)
        left = _core.observe_updates(
            self.adapter.core,
            formula,
            group,
            -1.0 if is_negative else 1.0,
            [
                self._series(parameter, number, wrapper, keys[0], state)
                for parameter, state in zip(parameters, states, strict=True)
            ],
            *tensors,
            [state.get("step") for state in states],
            [state.get("mu_product") for state in states],
        )
        if left:
            names = ", ".join(parameters[i].name for i in left[:3])
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            why = "a tensor of their state is missing, not dense, not on the CPU, or a divisor of float16"
            self._not_covered(f"{names}{more}", why)

    def _formula(self, group: dict) -> tuple:
        """(name in C++, where x, y and s of it are); (None,) where there is none, which is said."""
        name = self.known
        has_momentum = group.get("momentum", 0) != 0
        if name == "SGD":
            return "plain", "momentum_buffer" if has_momentum else GRADIENT, None, None
        if name == "RMSprop" and has_momentum:
            return "plain", "momentum_buffer", None, None
        if name in ("Adam", "AdamW"):
            key = "max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"
            return "adam", "exp_avg", None, key
        if name == "RAdam":
            return "radam", "exp_avg", None, "exp_avg_sq"
        if group.get("weight_decay", 0) != 0 and not group.get("decoupled_weight_decay"):
            self._not_covered(f"{self.name} with weight_decay", "its gradient has the decay in it")
        elif group.get("centered"):
            self._not_covered(f"{self.name} with centered", "rounding has no bound in its variance")
        elif name == "NAdam":
            return "nadam", GRADIENT, "exp_avg", "exp_avg_sq"
        elif name == "RMSprop":
            return "rmsprop", GRADIENT, None, "square_avg"
        else:
            return "adagrad", GRADIENT, None, "sum"
        return (None,)

    def _tensors(self, key: str | None, wrapper, parameters: list, states: list) -> list:
        if key is None:
            return []
        if key != GRADIENT:
            return locals_of(wrapper, [state.get(key) for state in states])
        found = wrapper.values("grad_reduced", parameters, self.steps.optimizer)
        if found is not None:
            return found
        return locals_of(wrapper, [parameter.stepped for parameter in parameters], "grad")

    def _series(self, parameter, number: int, wrapper, made_of: str, state: dict) -> int:
        key = f"update.{number}"
        known = parameter.series.get(key)
        if known is None:
            tensor = parameter.stepped.grad if made_of == GRADIENT else state.get(made_of)
            if tensor is not None:
                wrapper.lies_as(parameter, "update", tensor)
            element = f"{self.known}.{number}"
            known = parameter.series[key] = self.registry.new_series(
                parameter, "update", parameter.stepped, element
            )
        return known

    def _not_covered(self, what: str, why: str) -> None:
        self.adapter.coverage.not_covered(f"update of {what}", why)


def formula_of(steps) -> str | None:
    """The class of torch whose step() an optimizer takes. None: it takes one of its own."""
    optimizer = _that_steps(steps.optimizer)
    for name in KNOWN:
        of_torch = getattr(torch.optim, name)
        # torch wraps step() of each class for its profiler.
        if (
            steps.outer is None
            and isinstance(optimizer, of_torch)
            and inspect.unwrap(type(optimizer).step) is inspect.unwrap(of_torch.step)
        ):
            return name
    return None


def _that_steps(optimizer):
    inner = attribute_of(optimizer, "optim")  # of ZeroRedundancyOptimizer
    return inner if isinstance(inner, torch.optim.Optimizer) else optimizer
