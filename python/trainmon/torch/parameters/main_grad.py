# Gradients that a framework adds up in an attribute main_grad, and takes out of .grad, as Megatron does.
from __future__ import annotations

from trainmon.base.rows import NO_SERIES
from trainmon.torch.parameters.accumulated import Accumulated


class InMainGrad(Accumulated):
    """The framework's own hook may run after this one. So main_grad is read when the next parameter
    has got its gradient, or the backward has ended. That .grad is gone tells nothing here."""

    def __call__(self, tensor):
        adapter = self.adapter()
        if adapter is None or not adapter.gradients.on:
            return
        try:
            steps = adapter.backward_of(self.optimizer, tensor)
            steps.attribute = "main_grad"
            steps.previous, steps.last = steps.last, tensor
            adapter.read_main_grad()
            if self.series == NO_SERIES or not steps.recording:
                return
            self.call = self.call + 1 if self.task == adapter.backward.task else 0
            self.task = adapter.backward.task
            place = steps.window, adapter.core.accum(steps.index), self.call, steps.flags
            adapter.main_grad_due = self.series, tensor, place
        except Exception as error:
            adapter.gradients.failed(error)
