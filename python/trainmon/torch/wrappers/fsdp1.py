# FullyShardedDataParallel (FSDP1): parameters of a module are one flat tensor, of which ranks have ranges.
"""Everything that says where in a flat parameter a parameter lies is private. An attribute that moved is
named, and then gradients, weights and moments are not covered.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainmon.torch.wrappers import module_names
from trainmon.torch.wrappers.contract import (
    BEFORE_REDUCTION,
    REDUCE,
    InPieces,
    Parameter,
    Placement,
    parameters_of,
    rounded_in_reduction,
)
from trainmon.torch.wrappers.enclosing import owner_of


@dataclass
class Place:
    """Where a parameter is."""

    flat: Tensor
    begin: int  # in the whole flat parameter
    shape: tuple
    original: Tensor | None  # use_orig_params: the user's tensor, which then is the local piece
    held: tuple  # (offset in the local flat parameter, begin and end in the parameter), () if elsewhere
    sharded: bool
    is_mean: bool  # what a reduction makes of gradients


class Fsdp1(InPieces):
    name = "fsdp1"
    keeps_gradients = False  # of parameters that FSDP1 ignores, the only ones that are hooked, too

    def __init__(self, root, optimizers=()):
        super().__init__(root, optimizers)
        self.moved = ""
        self.places: dict[int, Place] = {}  # by id of Parameter.tensor
        self.found: dict[int, list] = {}  # id of module -> [(key, tensor)]
        try:
            around = [w for w in (around_of(root),) if w is not None]
            for wrapper in (*around, *fsdp1_type().fsdp_modules(root)):
                if wrapper._handle is not None:
                    self._look_at(wrapper._handle, _gives_mean(wrapper))
        except AttributeError as error:
            self.moved = str(error)

    @classmethod
    def claims(cls, root, optimizers):
        kind = fsdp1_type()
        if kind is None:
            return False
        return any(isinstance(m, kind) for m in root.modules()) or around_of(root) is not None

    def _look_at(self, handle, is_mean: bool) -> None:
        flat, begin, at = handle.flat_param, 0, 0
        originals = flat._params if handle._use_orig_params else [None] * len(flat._param_infos)
        by_name = {}
        for size, is_padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
            if not is_padding:
                key, module, _ = flat._param_infos[at]
                shape, shard, tensor = flat._shapes[at], flat._shard_param_infos[at], originals[at]
                held = ()
                if shard.in_shard:
                    first, end = shard.intra_param_start_idx, shard.intra_param_end_idx + 1
                    held = shard.offset_in_shard, first, end
                place = Place(
                    flat, begin, tuple(shape), tensor, held, handle.uses_sharded_strategy, is_mean
                )
                if tensor is None:  # no tensor of the model stands for it: one that has no data
                    tensor = torch.empty(shape, dtype=flat.dtype, device="meta")
                    tensor.requires_grad_(flat.requires_grad)
                self.places[id(tensor)] = place
                self.found.setdefault(id(module), []).append((key, tensor))
                by_name[id(module), key] = tensor
                at += 1
            begin += size
        for shared in flat._shared_param_infos:
            tensor = by_name[id(shared.prim_module), shared.prim_param_name]
            self.found.setdefault(id(shared.module), []).append((shared.param_name, tensor))

    def reduces(self):
        return True

    def parameters(self, chunk):
        if self.moved:
            return []
        found: dict[int, Parameter] = {}
        flats = {id(place.flat) for place in self.places.values()}
        # In a forward, modules hold views of the flat parameter.
        ours = {(module, key) for module, held in self.found.items() for key, _ in held}
        others = [p for p in parameters_of([self.root], chunk) if (id(p.owner), p.key) not in ours]
        for prefix, module in module_names.named(self.root):
            for key, tensor in self.found.get(id(module), ()):
                name = f"{prefix}.{key}" if prefix else key
                known = found.get(id(tensor))
                if known is None:
                    shape = self.places[id(tensor)].shape
                    found[id(tensor)] = Parameter(name, chunk, tensor, module, key, shape=shape)
                elif name != known.name and name not in known.aliases:
                    known.aliases.append(name)
        for parameter in others:  # those that FSDP1 was told to ignore
            if id(parameter.tensor) not in found and id(parameter.tensor) not in flats:
                found[id(parameter.tensor)] = parameter
        return list(found.values())

    def stepped(self, parameter):
        place = self.places.get(id(parameter.tensor))
        return parameter.tensor if place is None or place.original is not None else place.flat

    def piece(self, parameter, tensor):
        place = self.places.get(id(parameter.tensor))
        if place is None:
            return tensor
        if not place.held:
            return None
        offset, begin, end = place.held
        if place.original is None:
            return tensor.narrow(0, offset, end - begin)
        return tensor if tensor.numel() == end - begin else None  # gathered just now

    def placement(self, kind, parameter):
        if parameter is None:
            return Placement("union")
        place, shape = self.places.get(id(parameter.tensor)), parameter.shape
        if place is None:
            return Placement("independent", full_shape=shape)
        if kind in BEFORE_REDUCTION:
            return Placement("partial" if place.is_mean else "independent", full_shape=shape)
        if not place.sharded:
            return Placement("identical", full_shape=shape)
        return Placement("union", "flat", (place.held[1:],), shape)

    def has_gradient(self, parameter):
        place = self.places.get(id(parameter.tensor))
        return (place is None or bool(place.held)) and super().has_gradient(parameter)

    def not_checked(self):
        if all(place.is_mean for place in self.places.values()):
            return []
        return [(REDUCE, "their reduce_dtype or a communication hook may not give their mean")]

    def hook_gradients(self, parameters, registry):
        not_covered = registry.adapter.coverage.not_covered
        if self.moved:
            not_covered("gradients, weights and moments", f"this FSDP1 is another: {self.moved}")
            return
        by_flat: dict[int, list] = {}
        for parameter in parameters:
            place = self.places.get(id(parameter.tensor))
            if place is None:
                registry.unreduced(parameter, parameter.tensor)
            elif parameter.tensor.requires_grad:
                by_flat.setdefault(id(place.flat), []).append((parameter, place))
        for mine in by_flat.values():
            parameter, place = mine[0]
            registry.call_after(place.flat, Slices(mine), parameter.optimizer)
        if by_flat and "grad_micro" in registry.adapter.kinds:
            not_covered("grad_micro", "FSDP1 adds up all gradients of a module in one tensor")


class Slices:
    """The gradients in that of one flat parameter, which is whole on every rank before it is reduced."""

    def __init__(self, mine: list):
        self.mine = mine

    def __call__(self):
        for parameter, place in self.mine:
            gradient = place.flat.grad
            if gradient is not None:
                yield parameter, gradient.narrow(0, place.begin, math.prod(place.shape))


def fsdp1_type():
    """The class; None where nobody has loaded it."""
    return getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)


def _gives_mean(wrapper) -> bool:
    """Whether a reduction is known to give the mean of gradients."""
    try:
        handle = wrapper._handle
        is_rounded = rounded_in_reduction(handle._reduce_dtype, handle._fwd_bwd_param_dtype)
        return wrapper._comm_hook is None and not is_rounded
    except AttributeError:
        return False


def around_of(root: nn.Module) -> nn.Module | None:
    """The one that wraps the model itself, where the bare model was given."""
    kind, distributed = fsdp1_type(), torch.distributed
    if kind is None or isinstance(root, kind) or not distributed.is_initialized():
        return None
    owner = owner_of(root, "_fsdp_wrapped_module")
    return owner if isinstance(owner, kind) else None
