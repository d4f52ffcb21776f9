# fully_shard models (FSDP2): parameters are DTensors, gathered into plain ones for each forward.
from __future__ import annotations

import sys
from dataclasses import replace

from trainmon.torch.hooks.dynamo import compiling
from trainmon.torch.hooks.hook import Hook, ModuleHook
from trainmon.torch.hooks.unseen import unseen
from trainmon.torch.wrappers.contract import (
    BEFORE_REDUCTION,
    REDUCE,
    Placement,
    rounded_in_reduction,
)
from trainmon.torch.wrappers.dtensors import DTensors


class Fsdp2(DTensors):
    name = "fsdp2"

    def __init__(self, root, optimizers=()):
        super().__init__(root, optimizers)
        self.finders: dict[int, tuple] = {}  # id of module -> (module, FindGathered)
        self.rounded = _is_rounded_in_reduction(root)

    @classmethod
    def claims(cls, root, optimizers):
        fsdp = sys.modules.get("torch.distributed.fsdp")  # loaded by whoever called fully_shard
        sharded = getattr(fsdp, "FSDPModule", ())
        return any(isinstance(module, sharded) for module in root.modules())

    def reduces(self):
        return True

    def values(self, kind, parameters, optimizer):
        return None  # gradients lie as their parameters do

    def placement(self, kind, parameter):
        if parameter is None:
            return Placement("union")
        placed = super().placement(kind, parameter)
        is_gathered = placed.space == "whole" and isinstance(parameter.tensor, self.dtensor)
        if kind in BEFORE_REDUCTION and is_gathered:
            return replace(placed, replication="independent" if self.rounded else "partial")
        return placed

    def not_checked(self):
        if not self.rounded:
            return []
        return [(REDUCE, "their reduce_dtype rounds them")]

    def _placement(self, tensor):
        if not self.ddp and not isinstance(tensor, self.dtensor):
            return Placement("independent", full_shape=tuple(tensor.shape))  # nobody reduces it
        return super()._placement(tensor)

    def hook_gradients(self, parameters, registry):
        """Gradients before reduction belong to the gathered parameters, which modules hold during
        their forward; they are the same objects every time."""
        self.coverage = registry.adapter.coverage
        by_place = {}
        for parameter in parameters:
            if isinstance(parameter.tensor, self.dtensor):
                by_place[id(parameter.tensor)] = parameter
                registry.reduced(parameter)
            else:
                registry.unreduced(parameter, parameter.tensor)
        for module in self.root.modules():
            wanted = {
                key: by_place[id(tensor)]
                for key, tensor in module._parameters.items()
                if id(tensor) in by_place
            }
            if id(module) in self.finders:
                self.finders[id(module)][1].look_for(wanted)
            elif wanted:
                hook = FindGathered(wanted, registry, self)
                self.finders[id(module)] = module, hook
                timed = registry.adapter.timed(hook)
                registry.handles.add(ModuleHook(module, "register_forward_pre_hook", timed))
        if _accumulates_apart(self.root):
            what = "grad_unreduced of accumulated micro-steps"
            why = "with reduce_dtype FSDP2 keeps the sum apart: each row is its micro-step's own"
            registry.adapter.coverage.not_covered(what, why)

    def unhooked(self):
        self.finders.clear()

    def is_replaced(self, parameter):
        # A module that still holds its gathered parameter says nothing.
        held = parameter.held
        return held is not parameter.tensor and not self.is_gathered(parameter, held)

    def is_gathered(self, parameter, tensor) -> bool:
        """Over tensor parallelism a gathered parameter is a DTensor, too, on a mesh of fewer
        dimensions."""
        if not isinstance(tensor, self.dtensor):
            return True
        sharded = parameter.tensor
        return (
            isinstance(sharded, self.dtensor) and tensor.device_mesh.ndim < sharded.device_mesh.ndim
        )


class FindGathered(Hook):
    """Forward pre-hook of a module with sharded parameters."""

    __slots__ = ("wanted", "registry", "part", "wrapper", "seen")

    def __init__(self, wanted, registry, wrapper):
        self.registry, self.wrapper = registry, wrapper
        self.part = registry.part
        self.look_for(wanted)

    def look_for(self, wanted: dict) -> None:
        self.wanted, self.seen = wanted, {}

    def __call__(self, module, args):
        if compiling() or not self.part.on:
            return
        try:
            with unseen():
                self._look(module)
        except Exception as error:
            self.part.failed(error)

    def _look(self, module) -> None:
        for key, parameter in self.wanted.items():
            tensor = module._parameters.get(key)
            if tensor is None or self.seen.get(key) is tensor:
                continue
            if not self.wrapper.is_gathered(parameter, tensor):
                continue
            for kind in BEFORE_REDUCTION:
                self.wrapper.placed_as(parameter, kind, tensor)
            if self.registry.unreduced(parameter, tensor):
                self.seen[key] = tensor


def _accumulates_apart(root) -> bool:
    """Whether gradients are reduced in another dtype than that of the gathered parameters. Then
    they are added up in a buffer of FSDP2's own, until torch 2.15, whose parameters do not have
    one. (Its policy is private; without it nothing is said.)"""
    private = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_param")
    parameter = getattr(private, "FSDPParam", None)
    if parameter is not None and not hasattr(parameter, "to_accumulated_grad_if_needed"):
        return False
    return any(
        reduce is not None and reduce != param for _, param, reduce in _dtypes_of_policies(root)
    )


def _is_rounded_in_reduction(root) -> bool:
    for module, param, reduce in _dtypes_of_policies(root):
        for parameter in module.parameters():
            if rounded_in_reduction(reduce, param or parameter.dtype):
                return True
    return False


def _dtypes_of_policies(root):
    """(module, param_dtype, reduce_dtype) of what fully_shard was called on."""
    for module in root.modules():
        state = getattr(module, "_get_fsdp_state", lambda: None)()
        policy = getattr(state, "_mp_policy", None)
        if policy is not None:
            dtypes = (getattr(policy, name, None) for name in ("param_dtype", "reduce_dtype"))
            yield module, *dtypes
