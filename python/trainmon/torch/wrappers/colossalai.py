# Models under ColossalAI's LowLevelZero, stages 1 and 2: its optimizer has a part of every parameter.
from __future__ import annotations

import gc
import sys

from trainmon.torch.wrappers.contract import BEFORE_REDUCTION, CLIP_AFTER, InPieces, Placement


class LowLevelZero(InPieces):
    """The torch optimizer inside has flat shards, one of each parameter, cut evenly after padding.
    Weights, reduced gradients and moments are theirs, the gradients after unscaling and clipping.
    (ColossalAI's DDP plugin is DistributedDataParallel: plain.py.)"""

    framework = "ColossalAI"

    def __init__(self, root, optimizers=()):
        super().__init__(root, optimizers)
        self.outer = outer_of(root, optimizers)
        self.stage = 2 if getattr(self.outer, "_partition_grads", False) else 1
        self.name = f"colossalai low level zero {self.stage}"
        self.keeps_gradients = False  # they are put into buckets once they are reduced
        self.masters = {}  # by id of the model's parameter
        try:
            self.masters = dict(self.outer.working_to_master_param)
            self.places = {
                key: store.local_rank for key, store in self.outer.pid_to_bucket_store.items()
            }
        except AttributeError as error:
            self.missing = str(error)

    @classmethod
    def claims(cls, root, optimizers):
        outer = outer_of(root, optimizers)
        ours = getattr(outer, "pid_to_bucket_store", {})
        return any(id(p) in ours for p in root.parameters())

    def reduces(self):
        return True

    def placement(self, kind, parameter):
        if parameter is None:
            return Placement("union")
        if kind in BEFORE_REDUCTION:
            return Placement("partial", full_shape=parameter.shape)
        begin, size = self._range(parameter)
        return Placement("union", "flat", ((begin, begin + size),), parameter.shape)

    def _range(self, parameter) -> tuple[int, int]:
        """(begin in the flattened parameter, elements); what is beyond its end is padding."""
        whole = parameter.tensor.numel()
        size = self.masters[id(parameter.tensor)].numel()
        begin = min(self.places[id(parameter.tensor)] * size, whole)
        return begin, min(size, whole - begin)

    def stepped(self, parameter):
        return self.masters.get(id(parameter.tensor))

    def piece(self, parameter, tensor):
        return tensor.view(-1).narrow(0, 0, self._range(parameter)[1])

    def stepped_by(self, optimizer):
        inner = getattr(self.outer, "optim", None) is optimizer
        return list(self.masters.values()) if inner else None

    def is_replaced(self, parameter):
        return parameter.held is not parameter.tensor

    def loss_scale(self):
        scale = getattr(getattr(self.outer, "mixed_precision_mixin", None), "loss_scale", None)
        return None if scale is None else float(scale)

    def flags(self, kind):
        clips = getattr(self.outer, "_clip_grad_norm", 0.0) > 0
        return CLIP_AFTER if clips and kind == "grad_reduced" else 0

    def hook_gradients(self, parameters, registry):
        self.hook_model_tensors(parameters, registry)
        not_covered = registry.adapter.coverage.not_covered
        why = "physically absent but under no_sync: a row is what was not reduced before"
        not_covered("grad_unreduced of accumulated micro-steps", why)


def outer_of(root, optimizers):
    """The LowLevelZeroOptimizer among them, or the one that has the model's parameters."""
    module = sys.modules.get("colossalai.zero.low_level.low_level_optim")
    kind = getattr(module, "LowLevelZeroOptimizer", None)
    if kind is None:
        return None
    for optimizer in optimizers:
        if isinstance(optimizer, kind):
            return optimizer
    # The only way from a parameter to what has it: a dictionary of which it is a key.
    trained = next((p for p in root.parameters() if p.requires_grad), None)
    for table in gc.get_referrers(trained):
        if isinstance(table, dict):
            for holder in gc.get_referrers(table):
                for owner in [holder, *gc.get_referrers(holder)]:
                    if isinstance(owner, kind) and getattr(owner, "param_to_pg", None) is table:
                        return owner
    return None
