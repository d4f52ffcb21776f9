# TrainerMon on PyTorch.
from __future__ import annotations

import torch

from trainmon.base.console import log
from trainmon.compat.msprobe import metrics
from trainmon.compat.msprobe.names import Targets
from trainmon.compat.msprobe.trainer_mon import Face
from trainmon.torch.adapter import Adapter
from trainmon.torch.steps.optimizers import torch_optimizers
from trainmon.torch.steps.relay import Relay
from trainmon.torch.wrappers.chunks import chunks_of


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
        return chunks_of(model)

    def _inner_optimizers(self, optimizer):
        inner = list(torch_optimizers(optimizer).values())
        if len(inner) > 1 and not hasattr(optimizer, "chained_optimizers"):
            raise TypeError("set_monitor() takes one optimizer; make a TrainerMon for each")
        return inner[-1:] + inner[:-1]  # of Megatron's chain the last one to step ends the step

    def _new_relay(self):
        return Relay(self._optimizer, self._step_begins, self._step_ended)

    def _new_adapter(self):
        selection = Targets(self.config, self._model, self._dp_group, self._tp_group)
        adapter = Adapter(self._model, self._optimizers, None, selection, self._relay)
        selection.hides_reduced &= not _is_sharded(adapter)
        for wrapper in adapter.wrappers:
            wrapper.main_grad |= bool(self.params_have_main_grad)
        return adapter

    def _reduced(self):
        adapter = self._watch._adapter
        if adapter.clock.pending and "grad_reduced" in adapter.kinds:
            return metrics.of_gradients(adapter, self.config, self.rank)
        return self._metrics("grad_reduced")

    def _as_metrics(self, rows, ops):
        return metrics.of_rows(rows, ops)


def _is_sharded(adapter) -> bool:
    """Whether ranks have different parts of reduced gradients, as under a distributed optimizer."""
    places = (adapter.wrappers[p.chunk].placement("grad_reduced", p) for p in adapter.parameters)
    return any(place.replication == "union" for place in places)
