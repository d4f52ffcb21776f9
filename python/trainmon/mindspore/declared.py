# What an optimizer of MindSpore says of its groups: learning rate, weight decay and its other numbers.
"""Optimizers of mindspore.nn have attributes and, where parameters are grouped, one learning rate and weight
decay for each parameter; those of mindspore.mint.optim have dicts. Numbers are told when they change. On a
device a tensor is not read: training would wait for it.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn

from trainmon import _core
from trainmon.mindspore.parameters import steps_taken

# Of the optimizers of mindspore.nn, as attributes.
NUMBERS = (
    "momentum", "dampening", "nesterov", "use_nesterov", "beta1", "beta2", "eps", "decay", "rho", "centered",
    "use_amsgrad", "loss_scale",
)  # fmt: skip


class Declared:
    def __init__(self, core, index: int, optimizer, coverage):
        self.optimizer, self.coverage = optimizer, coverage
        self.groups = _core.DeclaredGroups(core, index)
        self.on_host = ms.get_context("device_target") == "CPU"
        self.group_of: list[int] = []  # by place of the parameter; empty: groups are dicts

    def read(self) -> None:
        """Before the step that uses them."""
        dicts = getattr(self.optimizer, "param_groups", None)
        if isinstance(dicts, list):
            self.groups.read([self._numbers(group) for group in dicts if isinstance(group, dict)])
        elif isinstance(self.optimizer, nn.Optimizer):
            self.groups.read(self._of_attributes())

    def _of_attributes(self) -> list[dict]:
        optimizer = self.optimizer
        rates, decays = optimizer.learning_rate, optimizer.weight_decay
        count = len(optimizer.parameters)
        rates = list(rates) if optimizer.is_group_lr else [rates] * count
        decays = list(optimizer.group_weight_decay) if optimizer.is_group else [decays] * count
        flags = getattr(optimizer, "decay_flags", ())
        if len(flags) == count:  # none of names with gamma or beta, unless somebody chose
            decays = [decay if flag else 0.0 for decay, flag in zip(decays, flags)]
        own = self._numbers({name: getattr(optimizer, name, None) for name in NUMBERS})
        if isinstance(optimizer, nn.AdamWeightDecay):
            own["decoupled_weight_decay"] = True
        found: dict[tuple, dict] = {}  # in the order of parameters
        numbers: dict[tuple, int] = {}
        self.group_of.clear()
        for rate, decay in zip(rates, decays):
            key = id(rate), decay if isinstance(decay, float) else id(decay)
            self.group_of.append(numbers.setdefault(key, len(numbers)))
            if key not in found:
                found[key] = {**self._numbers({"lr": rate, "weight_decay": decay}), **own}
        return list(found.values())

    def _numbers(self, group: dict) -> dict:
        """Without what is no number, or cannot be read here."""
        numbers = {}
        for key, value in group.items():
            if isinstance(value, (Tensor, nn.Cell)):
                value = self._value(key, value)
            if value is not None:
                numbers[key] = value
        return numbers

    def _value(self, key: str, value) -> float | None:
        if not self.on_host:
            why = "on a device, where training would wait for it"
            self.coverage.not_covered(f"declared values: {key}", why)
            return None
        if isinstance(value, nn.Cell):
            value = self._of_schedule(value)
        if isinstance(value, Tensor):
            value = value.asnumpy()
        return float(value.reshape(())) if value is not None and value.size == 1 else None

    def _of_schedule(self, cell):
        """What a schedule gives for the step to come."""
        listed = getattr(cell, "learning_rate", None)  # _IteratorLearningRate
        if not isinstance(listed, Tensor) or listed.ndim != 1:
            return cell(self.optimizer.global_step)
        step = steps_taken(self.optimizer)
        return listed.asnumpy()[step] if step < len(listed) else None  # the step will fail
