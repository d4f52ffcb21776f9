# Parameters that are DTensors, as tensor parallelism makes them: the local part is what is measured.
from __future__ import annotations

import sys

import torch

from trainmon.torch.contract import BEFORE_REDUCTION, Placement, Wrapper


class DTensors(Wrapper):
    """Nothing here gathers or reduces: a shard's values are those of the shard."""

    name = "dtensor"

    def __init__(self, root, optimizers=()):
        super().__init__(root, optimizers)
        self.dtensor = dtensor_type()

    @classmethod
    def claims(cls, root, optimizers):
        dtensor = dtensor_type()
        return dtensor is not None and any(isinstance(p, dtensor) for p in root.parameters())

    def reduces(self):
        return False

    def placement(self, kind, parameter):
        if parameter is None:
            return Placement("independent")
        tensor, shape = parameter.tensor, parameter.shape
        if not isinstance(tensor, self.dtensor):
            return Placement("independent", full_shape=shape)
        if kind in BEFORE_REDUCTION:
            return Placement("partial", full_shape=shape)
        if all(placement.is_replicate() for placement in tensor.placements):
            return Placement("identical", full_shape=shape)
        return Placement("union", "box", box_of(tensor), shape)

    def locals(self, tensors, attribute=None):
        if attribute is not None:
            tensors = [getattr(tensor, attribute) for tensor in tensors]
        with torch.no_grad():
            return [_local(t) for t in tensors], None

    def hook_gradients(self, parameters, registry):
        for parameter in parameters:
            registry.unreduced(parameter, parameter.tensor)


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
