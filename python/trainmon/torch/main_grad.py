# Gradients that a framework adds up in an attribute main_grad, and takes out of .grad, as Megatron does.
from __future__ import annotations

from trainmon.torch.backward import current_task
from trainmon.torch.parameters import ELSEWHERE, NO_SERIES, Accumulated


class InMainGrad(Accumulated):
    """The framework's own hook may run after this one. So main_grad is read when the next parameter
    has got its gradient, or the backward has ended. That .grad is gone tells nothing here."""

    __slots__ = ()

    def __call__(self, tensor):
        adapter = self.adapter()
        if adapter is None or not adapter.gradients.on:
            return
        try:
            backward, steps = adapter.backward, adapter.steps[self.optimizer]
            now = current_task()
            if backward.now != now:
                backward.enter(now)
            if steps.task != backward.task:
                steps.backward_begins(None)
            read_due(adapter)
            if self.series == NO_SERIES or not steps.recording:
                return
            self.call = self.call + 1 if self.task == backward.task else 0
            self.task = backward.task
            place = steps.window, adapter.core.accum(steps.index), self.call, steps.flags
            adapter.main_grad_due = self.series, tensor, place
        except Exception as error:
            adapter.gradients.failed(error)


def read_due(adapter) -> None:
    due, adapter.main_grad_due = adapter.main_grad_due, None
    if due is None:
        return
    series, tensor, place = due
    gradient = tensor.main_grad
    if adapter.observe_at(adapter.handle, series, gradient, *place) == ELSEWHERE:
        adapter.late.add(series, gradient, *place)
