# Models whose parameters are ordinary tensors: one process, or DistributedDataParallel around them.
from __future__ import annotations

import gc
import weakref

import torch
from torch import nn

from trainmon.base.names import listed
from trainmon.torch.wrappers.comm_hooks import hooks_of
from trainmon.torch.wrappers.contract import (
    BEFORE_REDUCTION,
    OF_WEIGHTS,
    REDUCE,
    REPLICAS,
    Placement,
    Wrapper,
)


class Plain(Wrapper):
    name = "plain"

    def __init__(self, root, optimizers=()):
        super().__init__(root, optimizers)
        ddps = ddps_of(root)
        self.ddp = bool(ddps)
        self.met = weakref.WeakSet(ddps)
        self.ranks = _ranks()
        self.of_one_rank: set[int] = set()  # ids of what no DDP reduces
        self.comm_hooks, self.are_same = hooks_of(ddps)
        self.hooks_met = self._count_hooks()
        # Of its process groups those that have not all ranks: nothing says how groups relate.
        sizes = {torch.distributed.get_world_size(ddp.process_group) for ddp in ddps}
        self.groups = sorted(sizes - {self.ranks})
        if self.ddp:
            self.name = "ddp"
            self.of_one_rank = _ignored_by_ddp(root) | _beside(root, ddps)

    @classmethod
    def claims(cls, root, optimizers):
        return True

    def reduces(self):
        return self.ddp

    def is_like(self, other):
        mine, others = (self.comm_hooks, self.groups), (other.comm_hooks, other.groups)
        return super().is_like(other) and mine == others

    def not_checked(self):
        if self.groups:
            of = " and ".join(map(str, self.groups))
            why = f"process groups of DistributedDataParallel have {of} of {self.ranks} ranks"
            return [(REDUCE, why), (REPLICAS, why)]
        if not self.comm_hooks:
            return []
        names = listed(dict.fromkeys(self.comm_hooks))
        if self.are_same:
            why = f"what the communication hook {names} makes of them is not their mean"
            return [(REDUCE, why)]
        why = f"nothing says what the communication hook {names} makes of gradients"
        return [(REDUCE, why), (REPLICAS, why)]

    def came_later(self, root):
        if not self.ddp and ddps_of(root):
            return "DistributedDataParallel"
        return "init_process_group" if self.ranks == 1 and _ranks() > 1 else ""

    def is_put_anew(self):
        hooks = self._count_hooks()
        if hooks != self.hooks_met:
            self.hooks_met = hooks
            return True
        ddp = getattr(nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
        if ddp is None or ddp in self.met:
            return False
        self.met.add(ddp)
        return True

    def _count_hooks(self) -> int:
        """Communication hooks of the DDPs that were met."""
        return sum(len(getattr(ddp, "_comm_hooks", ())) for ddp in self.met)

    def are_uneven(self):
        configs = (getattr(ddp, "_join_config", None) for ddp in self.met)
        return any(getattr(config, "enable", False) for config in configs)

    def placement(self, kind, parameter):
        shape = () if parameter is None else parameter.shape
        if self.ranks == 1:
            return Placement("identical", full_shape=shape)
        is_alone = parameter is not None and id(parameter.tensor) in self.of_one_rank
        # Several processes, and nothing that says how they relate.
        if not self.ddp or self.groups or is_alone:
            return Placement("independent", full_shape=shape)
        if parameter is None:
            return Placement("union")
        is_sum = kind not in BEFORE_REDUCTION
        is_own = kind in OF_WEIGHTS and parameter.renormalised
        if is_own or (self.comm_hooks and not (is_sum and self.are_same)):
            return Placement("independent", full_shape=shape)
        return Placement("identical" if is_sum else "partial", full_shape=shape)

    def hook_gradients(self, parameters, registry):
        for parameter in parameters:
            registry.unreduced(parameter, parameter.tensor)


def _ignored_by_ddp(root: nn.Module) -> set[int]:
    """DDP takes their names from an attribute of the module that it is put around."""
    found = set()
    for module in root.modules():
        names = vars(module).get("_ddp_params_and_buffers_to_ignore", ())
        if names:
            parameters = dict(module.named_parameters(remove_duplicate=False))
            found |= {id(parameters[name]) for name in names if name in parameters}
    return found


def _beside(root: nn.Module, ddps: list) -> set[int]:
    """Parameters of the model that none of its DDPs holds, such as a head of each rank."""
    reduced = {id(parameter) for ddp in ddps for parameter in ddp.parameters()}
    return {id(parameter) for parameter in root.parameters()} - reduced


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _ranks() -> int:
    return torch.distributed.get_world_size() if _distributed() else 1


def ddps_of(root: nn.Module) -> list:
    """Each DistributedDataParallel inside the model, or around it (Trainer and others hand out the bare
    module). A model may have been put into another one since."""
    if not _distributed():
        return []
    ddp = nn.parallel.DistributedDataParallel
    if inside := [module for module in root.modules() if isinstance(module, ddp)]:
        anew = [one for held in inside for one in _around(held.module, "module")]
        return [*inside, *(one for one in anew if isinstance(one, ddp) and one not in inside)]
    compiled = [one for one in _around(root, "_orig_mod") if isinstance(one, nn.Module)]
    around = [one for inner in (root, *compiled) for one in _around(inner, "module")]
    return [one for one in around if isinstance(one, ddp)]


def _around(module: nn.Module, key: str) -> list:
    """What has the module in its dictionary of modules, under this key: the only way to what contains it."""
    holders = [d for d in gc.get_referrers(module) if isinstance(d, dict) and d.get(key) is module]
    return [
        owner
        for holder in holders
        for above in gc.get_referrers(holder)
        for owner in ([above] if isinstance(above, nn.Module) else gc.get_referrers(above))
        if getattr(owner, "_modules", None) is holder
    ]
