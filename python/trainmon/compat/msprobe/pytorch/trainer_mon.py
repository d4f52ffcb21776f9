# TrainerMon on PyTorch.
from __future__ import annotations

import torch

from trainmon.base.parts import log
from trainmon.compat.msprobe import metrics
from trainmon.compat.msprobe.names import Targets
from trainmon.compat.msprobe.trainer_mon import Face
from trainmon.torch import given
from trainmon.torch.adapter import Adapter
from trainmon.torch.relay import Relay


class TrainerMon(Face):
    __doc__ = Face.__doc__

    def _distributed(self):
        return torch.distributed.is_available() and torch.distributed.is_initialized()

    def _ranks(self):
        distributed, group = torch.distributed, self._group
        if group is not None and not isinstance(group, distributed.ProcessGroup):
            log.warning("trainmon: process_group is no ProcessGroup: all ranks are taken")
            group = None
        rank, stage = distributed.get_rank(), distributed.get_rank(group)
        return rank, stage, distributed.get_process_group_ranks(group)

    def _chunks(self, model):
        return given.chunks(model)

    def _optimizers(self, optimizer):
        return given.optimizers(optimizer).values()

    def _new_relay(self):
        return Relay(self._optimizer, self._step_begins, self._step_ended)

    def _new_adapter(self):
        selection = Targets(self.config, self._model, self._dp_group, self._tp_group)
        adapter = Adapter(self._model, self._optimizer, None, selection, self._relay)
        adapter.main_grad = bool(self.params_have_main_grad)
        return adapter

    def _reduced(self):
        adapter = self._watch._adapter
        if adapter.clock.pending and "grad_reduced" in adapter.kinds:
            attribute = "main_grad" if self.params_have_main_grad else "grad"
            return metrics.of_gradients(adapter, attribute, self.config, self.rank)
        return self._metrics("grad_reduced")

    def _as_metrics(self, rows, ops):
        return metrics.of_rows(rows, ops)
