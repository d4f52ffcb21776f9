# Megatron-core: gradients add up in main_grad, and bucket groups reduce them. Torch optimizers
# inside Megatron's step on the parameters, on fp32 masters of them, or on this rank's shards.
from __future__ import annotations

import gc
import math
import sys
from itertools import chain
from typing import NamedTuple

from torch import Tensor, nn

from trainmon.base.signals import pass_on
from trainmon.torch.hooks.hook import Hook
from trainmon.torch.wrappers.contract import BEFORE_REDUCTION, CLIP_AFTER, InPieces, Placement

MOST_PIECES = 64  # of a shard, in the description of where it lies


class Held(NamedTuple):
    """What a torch optimizer steps on for a parameter: these elements of the flattened one, or all."""

    tensor: Tensor
    begin: int = 0
    end: int = -1


class Megatron(InPieces):
    name = "megatron"
    keeps_gradients = False
    main_grad = True

    def __init__(self, root, optimizers=()):
        super().__init__(root, optimizers)
        self.ddp = ddp_around(root)
        self.tp = _group(self.ddp, "tp_group", "get_tensor_model_parallel_group")
        self.pp = _group(self.ddp, "pp_group", "get_pipeline_model_parallel_group")
        self.ep = _group(self.ddp, "ep_group", "get_expert_model_parallel_group")
        self.held: dict[int, Held] = {}  # by id of parameter
        self.outer: list = []  # Megatron's optimizers around those of torch
        self.moved = ""  # an attribute that this version of Megatron does not have
        self.started: list[Started] = []

    @classmethod
    def claims(cls, root, optimizers):
        return ddp_around(root) is not None

    def reduces(self):
        return True

    # --- parameters, and what optimizers have of them -----------------------------------------------

    def parameters(self, chunk):
        self._find_held()
        found = super().parameters(chunk)
        for parameter in found:
            if cut := self._cut(parameter.tensor):
                size = parameter.shape[cut.dim] * cut.size
                parameter.shape = _changed(parameter.shape, cut.dim, size)
        return found

    def _find_held(self) -> None:
        self.held, self.outer = {}, []
        for optimizer in self.optimizers:
            if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
                continue
            outer = around_optimizer(optimizer, self.optimizers)
            self.outer += [] if outer is None else [outer]
            try:
                self.held.update(held_by(optimizer, outer))
            except Exception as error:
                pass_on(error)
                self.moved = getattr(error, "name", None) or str(error)

    def stepped(self, parameter):
        held = self.held.get(id(parameter.tensor))
        if held is not None:
            return held.tensor
        return None if parameter.tensor.requires_grad else parameter.tensor

    def is_replaced(self, parameter):
        return parameter.held is not parameter.tensor

    def loss_scale(self):
        for outer in self.outer:
            if scaler := getattr(outer, "grad_scaler", None):
                return float(scaler.scale) if scaler.scale.is_cpu else scaler.scale.clone()
        return None

    def flags(self, kind):
        configs = (getattr(outer, "config", None) for outer in self.outer)
        clips = any(getattr(config, "clip_grad", 0) for config in configs)
        return CLIP_AFTER if kind == "grad_reduced" and clips else 0

    # --- gradients before reduction -----------------------------------------------------------------

    def hook_gradients(self, parameters, registry):
        adapter = registry.adapter
        if not self.outer and any(getattr(o, "is_stub_optimizer", False) for o in self.optimizers):
            why = "Megatron's optimizer has nothing to update on this rank"
            adapter.coverage.not_covered("steps", why)
        if self.moved:
            what = "grad_reduced, weights and moments of Megatron's optimizer"
            adapter.coverage.not_covered(what, f"it has no {self.moved}")
        if not self.started:
            try:
                groups = [*self.ddp.bucket_groups, *self.ddp.expert_parallel_bucket_groups]
                self.started = [Started(group, adapter) for group in groups]
            except AttributeError as error:
                # Without it, rows might be of gradients that are reduced already.
                adapter.kinds.discard("grad_unreduced")
                adapter.coverage.not_covered("grad_unreduced", f"Megatron has no {error.name}")
        if getattr(self.ddp.config, "gradient_accumulation_fusion", False):
            adapter.kinds.discard("grad_micro")
            why = "gradient_accumulation_fusion adds to main_grad at once"
            adapter.coverage.not_covered("grad_micro", why)
        for parameter in parameters:
            registry.unreduced(parameter, parameter.tensor)

    def unhooked(self):
        for started in self.started:
            started.remove()
        self.started = []

    # --- how ranks relate ---------------------------------------------------------------------------

    def placement(self, kind, parameter):
        if parameter is None:  # of activations, tensor parallelism cuts some and copies others
            return Placement("union" if _size(self.tp) == 1 else "independent")
        tensor, shape, cut = parameter.tensor, parameter.shape, self._cut(parameter.tensor)
        is_own = kind in BEFORE_REDUCTION
        held = None if is_own else self.held.get(id(tensor))
        is_shard = held is not None and held.end >= 0
        if not is_shard and cut is None:
            replication, space, ranges = "identical", "whole", ()
        elif not is_shard and cut.stride == 1:
            replication, space, ranges = "union", "box", _box(shape, cut)
        else:
            begin, end = (held.begin, held.end) if is_shard else (0, tensor.numel())
            replication, space = "union", "flat"
            ranges = pieces(tuple(tensor.shape), cut, begin, end)
            if len(ranges) > MOST_PIECES:  # no rank has another's, and the counts still add up
                space, ranges = "whole", ()
        if is_own:
            replication = "partial"
        elif not getattr(tensor, "allreduce", True) and _size(self.ep) > 1:
            replication = "independent"  # other experts under the same names
        return Placement(replication, space, ranges, shape)

    def gradient_now(self, parameter):
        held = self.held.get(id(parameter.tensor))
        gradient = getattr(parameter.tensor, "main_grad", None)
        if held is None or gradient is None:
            return None
        return gradient if held.end < 0 else gradient.view(-1)[held.begin : held.end]

    def chunk_number(self, chunk):
        """Stages of a pipeline name their layers alike; virtual stages go round them."""
        return chunk if _size(self.pp) == 1 else chunk * self.pp.size() + self.pp.rank()

    def _cut(self, tensor) -> Cut | None:
        if _size(self.tp) == 1 or not getattr(tensor, "tensor_model_parallel", False):
            return None
        dim, stride = tensor.partition_dim, getattr(tensor, "partition_stride", 1)
        return Cut(dim, stride, self.tp.rank(), self.tp.size())


class Cut(NamedTuple):
    """How tensor parallelism cuts a parameter: this rank has every size-th of size * stride pieces."""

    dim: int
    stride: int
    rank: int
    size: int


def _box(shape: tuple, cut: Cut) -> tuple:
    local = shape[cut.dim] // cut.size
    ranges = [(0, size) for size in shape]
    ranges[cut.dim] = cut.rank * local, (cut.rank + 1) * local
    return tuple(ranges)


def pieces(shape: tuple, cut: Cut | None, begin: int, end: int) -> tuple:
    """Where the elements from begin to end of the flattened local tensor, of this shape, lie in the
    flattened full one."""
    if cut is None or begin == end:
        return ((begin, end),)
    run = math.prod(shape[cut.dim :]) // cut.stride  # elements side by side in both
    found: list[tuple[int, int]] = []
    for piece in range(begin // run, (end - 1) // run + 1):
        block, turn = divmod(piece, cut.stride)
        start = (block * cut.stride * cut.size + turn * cut.size + cut.rank) * run - piece * run
        first, last = start + max(begin, piece * run), start + min(end, (piece + 1) * run)
        if len(found) > MOST_PIECES:
            break
        found.append((first, last))
    return tuple(found)


def _changed(shape: tuple, dim: int, size: int) -> tuple:
    return (*shape[:dim], size, *shape[dim + 1 :])


def _group(ddp, attribute: str, function: str):
    """A process group that DistributedDataParallel keeps, in older versions the module only."""
    group = getattr(ddp, attribute, None)
    if group is None:
        try:
            group = getattr(sys.modules["megatron.core.parallel_state"], function)()
        except Exception as error:
            pass_on(error)
            return None
    return group[0] if isinstance(group, list) else group


def _size(group) -> int:
    return 1 if group is None else group.size()


class StartSync(Hook):
    """In the place of start_grad_sync of one bucket group: the last moment at which main_grad of its
    parameters is this rank's own."""

    __slots__ = ("adapter", "start")

    def __init__(self, adapter, start):
        self.adapter, self.start = adapter, start

    def __call__(self, *args, **kwargs):
        adapter = self.adapter
        if adapter is not None and adapter.gradients.on:
            try:
                adapter.read_main_grad()
            except Exception as error:
                adapter.gradients.failed(error)
        return self.start(*args, **kwargs)

    def __reduce__(self):
        # A copied group starts its own communication.
        return getattr, (self.start.__self__, "start_grad_sync")


class Started:
    """A StartSync on its group, as a handle."""

    def __init__(self, group, adapter):
        self.group = group
        self.before = vars(group).get("start_grad_sync")  # somebody else's
        self.hook = group.start_grad_sync = StartSync(adapter, group.start_grad_sync)

    def remove(self) -> None:
        self.hook.adapter = None
        if vars(self.group).get("start_grad_sync") is not self.hook:
            return  # wrapped by somebody else in the meantime: it passes on
        if self.before is None:
            del self.group.start_grad_sync
        else:
            self.group.start_grad_sync = self.before


def ddp_around(root: nn.Module):
    """Megatron's DistributedDataParallel inside the model or around it, None if there is none."""
    module = sys.modules.get("megatron.core.distributed.distributed_data_parallel")
    ddp = getattr(module, "DistributedDataParallel", None)
    return None if ddp is None else wrapper_around(root, ddp)


def wrapper_around(root: nn.Module, kind: type):
    """A module of that class inside the model or around it (some hand out the bare module)."""
    for module in root.modules():
        if isinstance(module, kind):
            return module
    # The only way from a module to what contains it: wrappers keep it in their dictionary of modules.
    level = [root]
    for _ in range(2):  # Float16Module may lie between
        above = []
        for inner in level:
            for held in gc.get_referrers(inner):
                if isinstance(held, dict) and held.get("module") is inner:
                    above += _owners(held, "_modules", nn.Module)
        for module in above:
            if isinstance(module, kind):
                return module
        level = above
    return None


def _owners(held: dict, key: str, kind: type) -> list:
    """Objects of that class that have this dictionary as their attribute `key`."""
    found = []
    for above in gc.get_referrers(held):
        owners = [above] if isinstance(above, kind) else gc.get_referrers(above)
        for owner in owners:
            if isinstance(owner, kind) and getattr(owner, key, None) is held:
                found.append(owner)
    return found


def around_optimizer(inner, given: tuple):
    """The Megatron optimizer that steps this torch optimizer, given or not; None if there is none."""
    base = getattr(sys.modules.get("megatron.core.optimizer.optimizer"), "MegatronOptimizer", None)
    if base is None:
        return None

    def is_around(one):
        return isinstance(one, base) and vars(one).get("optimizer") is inner

    if known := next(filter(is_around, given), None):
        return known
    for above in gc.get_referrers(inner):
        around = [above] if isinstance(above, base) else gc.get_referrers(above)
        if found := next(filter(is_around, around), None):
            return found
    return None


def held_by(inner, outer) -> dict[int, Held]:
    """By id of the model's parameter. AttributeError where Megatron names its groups otherwise."""
    found = {id(t): Held(t) for group in inner.param_groups for t in group["params"]}
    if outer is None or getattr(outer, "is_stub_optimizer", False):
        return found
    if _is_a(outer, "distrib_optimizer", "DistributedOptimizer"):
        pairs = (
            (outer.model_float16_groups, outer.shard_fp32_from_float16_groups),
            (outer.model_fp32_groups, outer.shard_fp32_groups),
        )
    elif _is_a(outer, "optimizer", "Float16OptimizerWithFloat16Params"):
        pairs = ((outer.float16_groups, outer.fp32_from_float16_groups),)
    else:
        pairs = ()
    for models, mains in pairs:
        for parameter, main in zip(chain(*models), chain(*mains), strict=True):
            if main is None:
                raise AttributeError("main parameters inside the optimizer", name="main_param")
            place = (0, -1)
            if main.shape != parameter.shape or hasattr(outer, "model_fp32_groups"):
                where = outer._get_model_param_range_map(parameter)["param"]
                place = where.start, where.end
            found[id(parameter)] = Held(main, *place)
    return found


def _is_a(outer, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(f"megatron.core.optimizer.{module}"), name, ())
    return isinstance(outer, kind)
