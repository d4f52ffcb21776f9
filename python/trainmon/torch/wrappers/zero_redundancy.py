# ZeroRedundancyOptimizer: every rank has all gradients and weights, but steps and keeps state for a part.
from __future__ import annotations

import sys

from trainmon.torch.wrappers.contract import kept_by
from trainmon.torch.wrappers.plain import Plain


class ZeroRedundancy(Plain):
    """Weights are read after the ranks have sent each other theirs: that is when its step ends."""

    @classmethod
    def claims(cls, root, optimizers):
        kind = getattr(sys.modules.get("torch.distributed.optim"), "ZeroRedundancyOptimizer", ())
        return any(isinstance(optimizer, kind) for optimizer in optimizers)

    def state(self, parameter, optimizer):
        return kept_by(getattr(optimizer, "optim", optimizer), parameter.stepped)

    def hook_gradients(self, parameters, registry):
        super().hook_gradients(parameters, registry)
        if any(getattr(each, "_overlap_with_ddp", False) for each in self.optimizers):
            why = "ZeroRedundancyOptimizer(overlap_with_ddp=True) steps inside the backward"
            registry.adapter.coverage.not_covered("steps, and what is read at them", why)
