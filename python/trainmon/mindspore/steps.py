# The windows of one optimizer, and what is read when it begins and ends a step.
from __future__ import annotations

import mindspore as ms

from trainmon.base.rows import BEFORE_STEP, NO_SERIES
from trainmon.mindspore.declared import Declared
from trainmon.mindspore.momentum import Directions, Updates
from trainmon.mindspore.parameters import states_of, steps_taken
from trainmon.mindspore.step_formulas import StepFormulas

STILL_SCALED = 1


class Steps:
    def __init__(self, adapter, optimizer, start_iteration: int | None):
        self.adapter, self.core, self.optimizer = adapter, adapter.core, optimizer
        start = steps_taken(optimizer) if start_iteration is None else start_iteration
        self._read = adapter.sweeps_part.run  # what fails there does not make the steps lose count
        self.index = self.core.add_optimizer(start)
        self.flags = STILL_SCALED if adapter.scaler is not None else 0
        self.pending = False  # a backward has put gradients into this window
        self.scale = 1.0
        self.parameters: list = []  # in the order of the optimizer's, None for those not watched
        self.states: dict[str, list] = {}
        self.directions = self.updates = self.formulas = None
        # The faces of other monitors have no place for what optimizers say.
        self.declared = None
        if adapter.fixed_selection is None:
            self.declared = Declared(self.core, self.index, optimizer, adapter.coverage)
        self.task = 0
        self.frame = None  # the place of the forward under way, where these are the clock's
        self.window = 0
        self.recording = False

    def attach(self, by_tensor: dict) -> None:
        """Hooks are on: `by_tensor` has the parameters by the id of their tensors."""
        adapter = self.adapter
        found = [by_tensor.get(id(tensor)) for tensor in self.optimizer.parameters]
        self.parameters = [
            p if p is not None and p.optimizer == self.index else None for p in found
        ]
        self.states = states_of(self.optimizer) if adapter.wants_state or adapter.pairs else {}
        self.directions = Directions(adapter, self) if "mg_direction" in adapter.kinds else None
        self.updates = Updates(adapter, self) if "update_ratio" in adapter.kinds else None
        self.formulas = StepFormulas(adapter, self) if "update" in adapter.kinds else None
        self.window = self.core.window(self.index)
        self.refresh()

    def advance(self) -> None:
        """A new window is open."""
        self.task = 0
        self.pending = False
        self.window = self.core.window(self.index)
        self.refresh()

    def refresh(self) -> None:
        on = self.adapter.steps_part.on and self.adapter.attached and not self.adapter.paused
        self.recording = on and self.core.recording(self.index)

    def backward_begins(self, task: int) -> None:
        self.task = task
        self.core.on_backward(self.index, task)
        self.pending = True
        self.scale = self.adapter.scale()

    def begins(self, gradients) -> None:
        self.core.begin_attempt(self.index)
        if self.recording:
            if self.declared is not None:
                self._read(self.declared.read)
            self._read(self.read_list, "grad_reduced", gradients)
            if self.directions is not None:
                self._read(self.directions.read, gradients)
            self._read(self.read_list, "param_origin", self.optimizer.parameters)
            if self.adapter.state_before:
                self._read_state()
        self.adapter.seal("before_step")

    def ends(self) -> None:
        if self.recording:
            self._read(self.read_list, "param_updated", self.optimizer.parameters)
            if not self.adapter.state_before:
                self._read_state()
            if self.formulas is not None:
                self._read(self.formulas.read)
        self.core.end_attempt(self.index, "taken", self.scale)
        self.adapter.step_ended(self)
        self.adapter.seal("after_step")
        self.advance()
        self.adapter.window_opened(self)

    def read_list(self, kind: str, tensors, flags: int = 0) -> None:
        """One tensor for each parameter of the optimizer."""
        if not self.adapter.wants(kind):
            return
        if not isinstance(tensors, (tuple, list)) or len(tensors) != len(self.parameters):
            self.adapter.coverage.not_covered(
                kind, "what was handed over is not one tensor for each parameter of the optimizer"
            )
            return
        series, values = [], []
        for parameter, tensor in zip(self.parameters, tensors):
            if parameter is None or not parameter.selected or not isinstance(tensor, ms.Tensor):
                continue
            number = self.adapter.series_of(parameter, kind, tensor)
            if number != NO_SERIES:
                series.append(number)
                values.append(tensor)
        self.adapter.sweep(series, values, self, flags)

    def _read_state(self) -> None:
        if self.adapter.wants_state:
            flags = BEFORE_STEP if self.adapter.state_before else 0
            for kind, tensors in self.states.items():
                if self.adapter.wants(kind):
                    self.adapter.coverage.cover(kind)
                    self._read(self.read_list, kind, tensors, flags)
        if self.updates is not None:
            self._read(self.updates.read)

    # Forward pre-hook and hook of the optimizer, which is a cell.
    def before(self, cell, args: tuple, kwargs: dict | None) -> None:
        given = [*args, *(kwargs or {}).values()]
        self._call(self.begins, given[0] if given else None)

    def after(self, *_) -> None:
        self._call(self.ends)

    def _call(self, what, *arguments) -> None:
        part = self.adapter.steps_part
        if not part.on:
            return
        try:
            what(*arguments)
        except Exception as error:
            part.failed(error)
            self.adapter.steps_failed()
