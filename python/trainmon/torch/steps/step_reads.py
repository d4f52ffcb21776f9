# What is read when an optimizer's step begins and ends, and in which order.
from __future__ import annotations

from trainmon.base.names import attribute_of
from trainmon.torch.hooks.unseen import unseen


class StepReads:
    """The part of Steps that reads; what it needs is set there."""

    __slots__ = ()

    def _read_groups(self) -> None:
        """When nothing but the step itself is still to come: a closure may set the rate, too."""
        if self.recording and self.groups is not None:
            self.groups.read(attribute_of(self.optimizer, "param_groups"))

    def _read_gradients(self) -> None:
        # What the optimizer's kernel will divide by.
        scale = None if self.fused is None else self.fused[0]
        self._read(self.sweeps.read, "grad_reduced", "grad", scale)
        if self.directions is not None:
            self._read(self.directions.read)

    def read_before(self, gradients: bool = True, weights: bool = True) -> None:
        if gradients and self.recording:
            self._read_gradients()
        if weights and self.recording:
            self._read(self.sweeps.read, "param_origin")
            if self.adapter.state_before:
                self._read_state()
        self.adapter.seal("before_step")

    def _announce_others(self) -> None:
        """Weights in shared memory may be written by other processes at any time, as by those of Hogwild."""
        if self.adapter.registry is not None and self.adapter.registry.are_shared:
            self.adapter.announce_edit()

    def _read_behind(self, gradients: bool) -> None:
        """Behind all pre-hooks of this step."""
        steppers = [*self.around, self.optimizer]
        self._hooks.call_behind(steppers, lambda: self._read_what_begins(gradients))

    def _read_what_begins(self, gradients: bool) -> None:
        """What fails here must not reach the hooks of others."""
        try:
            with unseen():
                if gradients:
                    self._read_groups()
                self.read_before(gradients=gradients)
        except Exception as error:
            self.failed(error)

    def _read_state(self) -> None:
        self._read(self.sweeps.read_state)
        if self.updates is not None:
            self._read(self.updates.read)

    def read_after(self) -> None:
        self._read(self.sweeps.read, "param_updated")
        if not self.adapter.state_before:
            self._read_state()
        if self.formulas is not None:
            self._read(self.formulas.read)
