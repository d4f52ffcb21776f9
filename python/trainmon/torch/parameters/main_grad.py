# Gradients that a framework adds up in an attribute main_grad, and takes out of .grad, as Megatron does.
from __future__ import annotations

from trainmon.base.rows import NO_SERIES
from trainmon.torch.hooks.dynamo import is_traced
from trainmon.torch.hooks.unseen import unseen
from trainmon.torch.parameters.accumulated import Accumulated


class InMainGrad(Accumulated):
    """The framework's own hook may run after this one. So main_grad is read when the next parameter
    has got its gradient, or the backward has ended. That .grad is gone tells nothing here."""

    __slots__ = ()

    def __call__(self, tensor):
        steps, part = self.steps, self.part
        if steps is None or not part.on or is_traced(tensor):
            return
        try:
            with unseen():
                self._follow(steps, tensor)
        except Exception as error:
            part.failed(error)

    def _follow(self, steps, tensor) -> None:
        adapter = steps.adapter
        steps.enter_backward(tensor)
        steps.attribute = "main_grad"
        steps.got_gradient(tensor)
        adapter.read_main_grad()
        if self.series == NO_SERIES or not steps.recording:
            return
        self.call = self.call + 1 if self.task == steps.task else 0
        self.task = steps.task
        place = steps.window, adapter.core.accum(steps.index), self.call, steps.flags
        adapter.main_grad_due = self.series, tensor, place
