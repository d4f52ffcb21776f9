# Follows RUN/control.json in PyTorch, whose steps may be inside a backward.
from __future__ import annotations

import torch

from trainmon.base.control import ControlBase
from trainmon.torch.hooks.backward import IDLE, current_task
from trainmon.torch.wrappers.contract import parameters_under

_engine = torch.autograd.Variable._execution_engine


class Control(ControlBase):
    def when_idle(self, act) -> None:
        if current_task() != IDLE:  # a step inside a backward, whose hooks are at work
            _engine.queue_callback(act)
        else:
            act()

    def find_parameters(self) -> None:
        self.adapter.parameters = parameters_under(self.adapter.wrappers)
