# Models under DeepSpeed, ZeRO stages 0 to 3: the engine that holds a model says where its parts are.
from __future__ import annotations

import sys
from dataclasses import dataclass

import torch

from trainmon.torch.wrappers import enclosing
from trainmon.torch.wrappers.contract import BEFORE_REDUCTION, CLIP_AFTER, InPieces, Placement

WHOLE = -1  # `at` of a piece that is all of the tensor that the optimizer updates


@dataclass(frozen=True)
class Piece:
    """The part of a parameter that this rank updates. It is `size` elements from `at` on of the
    flat tensor number `flat`, which are those from `begin` on of the flattened parameter."""

    flat: int
    at: int
    begin: int
    size: int


class DeepSpeed(InPieces):
    """DeepSpeed's optimizers give the torch optimizer inside them other tensors than the model's: flat
    partitions of it, as a rule in float32. Weights, reduced gradients and moments are theirs, the
    gradients after unscaling and clipping."""

    framework = "DeepSpeed"

    def __init__(self, root, optimizers=()):
        super().__init__(root, optimizers)
        self.engine = engine_of(root)
        self.stage = int(self.engine.zero_optimization_stage())
        self.name = f"deepspeed zero {self.stage}"
        self.outer = getattr(self.engine, "optimizer", None)
        self.inner = getattr(self.outer, "optimizer", self.outer)
        self.flats, self.pieces = [], {}
        try:
            self.flats, self.pieces = _layout(self.outer)
        except AttributeError as error:
            self.missing = str(error)
        # Otherwise the torch optimizer has the parameters themselves.
        self.is_apart = bool(self.flats or self.missing)
        self.keeps_gradients = not self.is_apart
        self.skipped = self._skipped_steps()

    @classmethod
    def claims(cls, root, optimizers):
        return engine_of(root) is not None

    def reduces(self):
        return True

    def parameters(self, chunk):
        found = super().parameters(chunk)
        for parameter in found:  # stage 3 leaves no elements in a parameter between forwards
            parameter.shape = tuple(getattr(parameter.tensor, "ds_shape", parameter.shape))
        return found

    def placement(self, kind, parameter):
        if parameter is None:
            return Placement("union")
        shape = parameter.shape
        if kind in BEFORE_REDUCTION:
            return Placement("partial", full_shape=shape)
        piece = self.pieces.get(id(parameter.tensor))
        if piece is None or piece.at == WHOLE:
            return Placement("identical", full_shape=shape)
        return Placement("union", "flat", ((piece.begin, piece.begin + piece.size),), shape)

    # --- what the optimizer updates --------------------------------------------------------------

    def stepped(self, parameter):
        if not self.is_apart:
            return parameter.tensor
        piece = self.pieces.get(id(parameter.tensor))
        return None if piece is None else self.flats[piece.flat]

    def piece(self, parameter, tensor):
        piece = self.pieces.get(id(parameter.tensor))
        if piece is None or piece.at == WHOLE:
            return tensor
        if tensor.numel() < piece.at + piece.size:  # swapped out, to a disk
            return None
        return tensor.narrow(0, piece.at, piece.size)

    def values(self, kind, parameters, optimizer):
        if not self.is_apart:
            return None
        found, held = super().values(kind, parameters, optimizer), _held(self.inner)
        return [
            value if id(parameter.stepped) in held else None  # its flat tensor has another turn
            for parameter, value in zip(parameters, found, strict=True)
        ]

    def state(self, parameter, optimizer):
        held = not self.is_apart or id(parameter.stepped) in _held(self.inner)
        return super().state(parameter, self.inner) if held else None

    def stepped_by(self, optimizer):
        return self.flats if self.is_apart and optimizer is self.inner else None

    def is_replaced(self, parameter):
        return parameter.held is not parameter.tensor

    # --- steps -----------------------------------------------------------------------------------

    def steps_taken(self):
        # In low precision, stage 0 has the optimizer take a step for nothing before training.
        return getattr(self.engine, "global_steps", 0) - self._skipped_steps()

    def turn(self, optimizer):
        """ZeRO calls step() of the inner optimizer once for each of its flat tensors."""
        held = _held(optimizer)
        turns = [i for i, flat in enumerate(self.flats) if id(flat) in held]
        one = self.stage > 0 and len(held) == len(turns) == 1
        return (turns[0], len(self.flats)) if one else (0, 1)

    def skipped_step(self):
        before, self.skipped = self.skipped, self._skipped_steps()
        return self.skipped > before

    def loss_scale(self):
        if not self.engine.fp16_enabled():
            return None
        return float(getattr(self.outer, "loss_scale", 1.0))

    def flags(self, kind):
        clips = self.engine.gradient_clipping() > 0
        return CLIP_AFTER if clips and kind == "grad_reduced" else 0

    def _skipped_steps(self):
        return getattr(self.engine, "skipped_steps", 0)

    # --- gradients before they are reduced -------------------------------------------------------

    def hook_gradients(self, parameters, registry):
        self.hook_model_tensors(parameters, registry)
        not_covered = registry.adapter.coverage.not_covered
        if not self._accumulates() and self.engine.gradient_accumulation_steps() > 1:
            why = "physically absent, each is reduced or added up apart: a row is its micro-step's own"
            not_covered("grad_unreduced of accumulated micro-steps", why)

    def _accumulates(self):
        """Whether .grad is the sum over micro-steps until it is reduced."""
        apart = getattr(self.outer, "use_grad_accum_attribute", False)
        return self.stage < 2 and not apart and not hasattr(self.outer, "grad_acc_dtype")


def engine_of(root):
    """The DeepSpeedEngine that is the model, or holds it; None where there is none."""
    engine = getattr(sys.modules.get("deepspeed"), "DeepSpeedEngine", None)
    return None if engine is None else enclosing.holder_of(root, engine)


def _held(optimizer) -> set[int]:
    return {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}


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
    names = "fp32_groups, fp32_groups_flat and the like"
    raise AttributeError(f"{type(outer).__name__} has none of {names}")


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
