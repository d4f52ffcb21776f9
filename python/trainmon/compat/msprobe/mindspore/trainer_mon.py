# TrainerMon on MindSpore.
from __future__ import annotations

from mindspore.communication import get_group_size, get_rank

from trainmon.base.console import log
from trainmon.compat.msprobe.mindspore.names import Targets
from trainmon.compat.msprobe.trainer_mon import Face
from trainmon.mindspore import arguments
from trainmon.mindspore.adapter import Adapter
from trainmon.mindspore.parameters import rank_and_world
from trainmon.mindspore.relay import Relay


class TrainerMon(Face):
    __doc__ = Face.__doc__

    def _distributed(self):
        return rank_and_world()[1] > 1

    def _ranks(self):
        rank, world = rank_and_world()
        if self._group is None:
            return rank, rank, list(range(world))
        try:
            stages, stage = get_group_size(self._group), get_rank(self._group)
        except (TypeError, ValueError, RuntimeError):
            log.warning("trainmon: process_group is no group of MindSpore: all ranks are taken")
            return rank, rank, list(range(world))
        from mindspore.communication import get_world_rank_from_group_rank as world_rank

        return rank, stage, [world_rank(self._group, mate) for mate in range(stages)]

    def _chunks(self, model):
        return arguments.chunks(model)

    def _inner_optimizers(self, optimizer):
        first, *others = arguments.optimizers(optimizer).values()
        if others:
            raise TypeError("set_monitor() takes one optimizer; make a TrainerMon for each")
        return [first]

    def _new_relay(self):
        return Relay(self._optimizer, self._step_begins, self._step_ended)

    def _new_adapter(self):
        selection = Targets(self.config, self._model, self._dp_group)
        return Adapter(self._model, self._optimizer, None, selection, self._relay)

    def _as_metrics(self, rows, ops):
        """{tag: {statistic: number, "shape": ..., "dtype": ...}}"""
        return {
            tag: {**{name: values[name] for name in ops}, "shape": tuple(shape), "dtype": dtype}
            for tag, values, shape, dtype in rows
        }
