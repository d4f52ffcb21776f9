# Parameters that are DTensors, as tensor parallelism makes them: the local part is what is measured.
"""A gradient may lie otherwise than its parameter. It is whole on every rank for a sharded
embedding, and an addend on every rank for a norm under sequence parallelism. Then its rows say
so, and so do those of what an optimizer keeps in its likeness.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from trainmon.torch.wrappers.contract import BEFORE_REDUCTION, Placement, Wrapper
from trainmon.torch.wrappers.plain import ddps_of


class DTensors(Wrapper):
    """Nothing here gathers or reduces: a shard's values are those of the shard."""

    name = "dtensor"

    def __init__(self, root, optimizers=()):
        super().__init__(root, optimizers)
        self.dtensor = dtensor_type()
        self.ddp = bool(ddps_of(root))
        self.placed: dict[
            tuple, Placement
        ] = {}  # (id of parameter's tensor, kind) -> of the gradient
        self.lies: dict[tuple, tuple] = {}  # the same -> its placements, where not the parameter's
        self.coverage = None

    @classmethod
    def claims(cls, root, optimizers):
        dtensor = dtensor_type()
        return dtensor is not None and any(isinstance(p, dtensor) for p in root.parameters())

    def reduces(self):
        return self.ddp

    def placement(self, kind, parameter):
        if parameter is None:
            return Placement("independent")
        placed = self.placed.get((id(parameter.tensor), kind)) or self._placement(parameter.tensor)
        is_reduced = placed.replication != "independent" and self.reduces()
        if kind in BEFORE_REDUCTION and is_reduced:
            return replace(placed, replication="partial")
        return placed

    def _placement(self, tensor) -> Placement:
        shape = tuple(tensor.shape)
        if not isinstance(tensor, self.dtensor):  # the same everywhere: merging compares the bits
            return Placement("identical", full_shape=shape)
        if any(placement.is_partial() for placement in tensor.placements):
            return Placement("partial", full_shape=shape)
        if all(placement.is_replicate() for placement in tensor.placements):
            return Placement("identical", full_shape=shape)
        return Placement("union", "box", box_of(tensor), shape)

    def placed_as(self, parameter, kind: str, gradient) -> bool:
        """Notes how a gradient lies. True: otherwise than before, its series is another."""
        key, mine = (id(parameter.tensor), kind), getattr(gradient, "placements", None)
        known = self.lies.get(key, getattr(parameter.tensor, "placements", None))
        if mine == known:
            return False
        self.lies[key], self.placed[key] = mine, self._placement(gradient)
        parameter.series.pop(kind, None)
        if self.placed[key].replication == "partial" and self.coverage is not None:
            what = f"{kind} of {parameter.name} as a whole"
            self.coverage.not_covered(
                what, "each rank has an addend, which only the optimizer adds up"
            )
        return True

    def lies_as(self, parameter, kind, tensor):
        is_local = not isinstance(tensor, self.dtensor) and (
            tensor.shape == local_of(parameter.tensor).shape
        )
        if not is_local:
            self.placed_as(parameter, kind, tensor)

    def values(self, kind, parameters, optimizer):
        if kind != "grad_reduced":
            return None
        gradients = [parameter.tensor.grad for parameter in parameters]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                self.placed_as(parameter, kind, gradient)
        return self.locals(gradients)[0]

    def locals(self, tensors, attribute=None):
        if attribute is not None:
            tensors = [getattr(tensor, attribute) for tensor in tensors]
        with torch.no_grad():
            return [_local(t) for t in tensors], None

    def hook_gradients(self, parameters, registry):
        self.coverage = registry.adapter.coverage
        for parameter in parameters:
            placed = isinstance(parameter.tensor, self.dtensor)
            registry.unreduced(parameter, parameter.tensor, placed=placed)


def dtensor_type():
    """The class, None where nobody has made one: its module is slow to import."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)


def local_of(tensor):
    """The part of a DTensor that is on this rank, waited for if it is still on its way; any other
    tensor as it is."""
    with torch.no_grad():
        return _local(tensor)


def _local(tensor):
    if not hasattr(tensor, "to_local"):
        return tensor
    local = tensor.to_local()
    return local.wait() if hasattr(local, "trigger_wait") else local


def box_of(tensor) -> tuple:
    """(begin, end) of the local part in each dimension of the full tensor."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, mesh, placements = tensor.shape, tensor.device_mesh, tensor.placements
    sizes, offsets = compute_local_shape_and_global_offset(shape, mesh, placements)
    return tuple(
        (min(offset, full), min(offset, full) + size)
        for offset, size, full in zip(offsets, sizes, shape, strict=True)
    )
