# Models under DeepSpeed, ZeRO stages 0 to 3: the engine that holds a model says where its parts are.
from __future__ import annotations

import sys
from dataclasses import dataclass

import torch

from trainmon.torch import holders
from trainmon.torch.contract import BEFORE_REDUCTION, Placement, Wrapper

WHOLE = -1  # `at` of a piece that is all of the tensor that the optimizer updates


@dataclass(frozen=True)
class Piece:
    """The part of a parameter that this rank updates: `size` elements from `at` on of the flat tensor
    number `flat`, which are those from `begin` on of the flattened parameter."""

    flat: int
    at: int
    begin: int
    size: int


class DeepSpeed(Wrapper):
    """DeepSpeed's optimizers give the torch optimizer inside them other tensors than the model's: flat
    partitions of it, as a rule in float32. Weights, reduced gradients and moments are theirs, the
    gradients after unscaling and clipping."""

    def __init__(self, root):
        super().__init__(root)
        self.engine = engine_of(root)
        self.stage = int(self.engine.zero_optimization_stage())
        self.name = f"deepspeed zero {self.stage}"
        self.outer = getattr(self.engine, "optimizer", None)
        self.flats, self.pieces, self.missing = [], {}, ""
        try:
            self.flats, self.pieces = _layout(self.outer)
        except AttributeError as error:
            self.missing = str(error)
        self.skipped = self._skipped_steps()

    @classmethod
    def claims(cls, root):
        return engine_of(root) is not None

    def reduces(self):
        return True

    def full_shape(self, parameter):
        return tuple(getattr(parameter.tensor, "ds_shape", parameter.tensor.shape))

    def placement(self, kind, parameter):
        if parameter is None:
            return Placement("union")
        shape = self.full_shape(parameter)
        if kind in BEFORE_REDUCTION:
            return Placement("partial", full_shape=shape)
        piece = self.pieces.get(id(parameter.tensor))
        if piece is None or piece.at == WHOLE:
            return Placement("identical", full_shape=shape)
        return Placement("union", "flat", ((piece.begin, piece.begin + piece.size),), shape)

    # --- what the optimizer updates --------------------------------------------------------------

    def updates(self, parameter, optimizer):
        if not self.flats:
            return super().updates(parameter, optimizer)
        return id(parameter.tensor) in self.pieces

    def values(self, kind, parameters, optimizer):
        if not self.flats:
            return super().values(kind, parameters, optimizer)
        held = _held(optimizer)
        found = []
        for parameter in parameters:
            piece = self.pieces.get(id(parameter.tensor))
            flat = None if piece is None else self.flats[piece.flat]
            if id(flat) not in held:
                found.append(None)  # another rank's, or the turn of another of the flat tensors
                continue
            found.append(_part(flat.grad if kind == "grad_reduced" else flat, piece))
        return found

    def state(self, parameter, optimizer):
        if not self.flats:
            return super().state(parameter, optimizer)
        piece = self.pieces.get(id(parameter.tensor))
        flat = None if piece is None else self.flats[piece.flat]
        if id(flat) not in _held(optimizer):
            return {}
        return {
            key: _part(value, piece)
            for key, value in optimizer.state.get(flat, {}).items()
            if isinstance(value, torch.Tensor) and value.shape == flat.shape
        }

    # --- steps -----------------------------------------------------------------------------------

    def turn(self, optimizer):
        """ZeRO calls step() of the inner optimizer once for each of its flat tensors."""
        if self.stage == 0 or len(self.flats) < 2:
            return 0, 1
        held = [t for group in optimizer.param_groups for t in group["params"]]
        if len(held) != 1:
            return 0, 1  # all at once
        turn = next((i for i, flat in enumerate(self.flats) if flat is held[0]), 0)
        return turn, len(self.flats)

    def skips(self):
        """Whether a step was left out since this was asked last, as after an overflow."""
        before, self.skipped = self.skipped, self._skipped_steps()
        return self.skipped > before

    def scale(self):
        """The loss scale, None where there is none."""
        scale = getattr(self.outer, "loss_scale", None)
        return scale if isinstance(scale, float) else None

    def _skipped_steps(self):
        return getattr(self.engine, "skipped_steps", 0)

    # --- gradients before they are reduced -------------------------------------------------------

    @property
    def keeps_gradients(self):
        """Whether .grad stays where it is from the backward to the step."""
        return not self.flats

    def hook_gradients(self, parameters, registry):
        for parameter in parameters:
            registry.unreduced(parameter, parameter.tensor)
        coverage = registry.adapter.coverage
        if self.missing:
            for what in ("grad_reduced", "weights and moments"):
                coverage.not_covered(what, f"this version of DeepSpeed differs: {self.missing}")
        if not self._accumulates() and self._micro_steps() > 1:
            why = "physically absent: each micro-step is reduced, or added up, apart from .grad"
            coverage.not_covered("grad_unreduced of accumulated micro-steps", f"{why} (row by row)")

    def _accumulates(self):
        """Whether .grad is the sum over micro-steps until it is reduced."""
        apart = getattr(self.outer, "use_grad_accum_attribute", False)
        return self.stage < 2 and not apart and not hasattr(self.outer, "grad_acc_dtype")

    def _micro_steps(self):
        return self.engine.gradient_accumulation_steps()


def engine_of(root):
    """The DeepSpeedEngine that is the model, or holds it; None where there is none."""
    engine = getattr(sys.modules.get("deepspeed"), "DeepSpeedEngine", None)
    return None if engine is None else holders.holder_of(root, engine)


def _held(optimizer) -> set[int]:
    return {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}


def _part(tensor, piece: Piece):
    if tensor is None or piece.at == WHOLE:
        return tensor
    with torch.no_grad():
        return tensor.detach().narrow(0, piece.at, piece.size)


def _layout(outer) -> tuple[list, dict[int, Piece]]:
    """(tensors that the inner optimizer updates, pieces of them by id of the model's parameter); both
    empty where it updates the parameters themselves. AttributeError if something is elsewhere now."""
    if outer is None or hasattr(outer, "_optimizer_step_pre_hooks"):
        return [], {}
    if hasattr(outer, "fp32_partitioned_groups_flat"):
        return outer.fp32_partitioned_groups_flat, _of_stage_3(outer)
    if hasattr(outer, "single_partition_of_fp32_groups"):
        return outer.single_partition_of_fp32_groups, _of_fragments(outer.bit16_groups)
    if hasattr(outer, "fp32_groups_flat_partition"):
        return outer.fp32_groups_flat_partition, _of_fragments(outer.bf16_groups)
    if hasattr(outer, "fp32_groups"):
        return _of_copies(outer)
    if hasattr(outer, "fp32_groups_flat"):
        return outer.fp32_groups_flat, _of_flat_copies(outer)
    raise AttributeError(f"{type(outer).__name__} has none of the attributes with fp32 weights")


def _of_stage_3(outer) -> dict[int, Piece]:
    pieces = {}
    for group in outer.fp16_groups:
        for tensor in group:
            flat, at, size = outer.grad_position[outer.get_param_id(tensor)]
            rank = torch.distributed.get_rank(tensor.ds_process_group)
            begin = min(rank * size, tensor.ds_numel)
            # What is beyond the end of the parameter is padding.
            pieces[id(tensor)] = Piece(flat, at, begin, min(size, tensor.ds_numel - begin))
    return pieces


def _of_fragments(groups) -> dict[int, Piece]:
    """Stages 1 and 2: a parameter that is all on other ranks has none."""
    pieces = {}
    for group in groups:
        for tensor in group:
            if (mapping := tensor._hp_mapping) is not None:
                there, here = mapping.hp_fragment_address, mapping.lp_fragment_address
                index = mapping.param_group_index
                pieces[id(tensor)] = Piece(index, there.start, here.start, here.numel)
    return pieces


def _of_copies(outer) -> tuple[list, dict[int, Piece]]:
    """Stage 0 in low precision: each parameter has a copy of its own."""
    tensors = [tensor for group in outer.fp16_groups for tensor in group]
    flats = [copy for group in outer.fp32_groups for copy in group]
    places = enumerate(tensors)
    return flats, {id(tensor): Piece(i, WHOLE, 0, tensor.numel()) for i, tensor in places}


def _of_flat_copies(outer) -> dict[int, Piece]:
    pieces = {}
    for index, group in enumerate(outer.fp16_groups):
        at = 0
        for tensor in group:
            pieces[id(tensor)] = Piece(index, at, 0, tensor.numel())
            at += tensor.numel()
    return pieces
