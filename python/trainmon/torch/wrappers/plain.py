# Models whose parameters are ordinary tensors: one process, or DistributedDataParallel around them.
from __future__ import annotations

import gc

import torch
from torch import nn

from trainmon.torch.wrappers.contract import BEFORE_REDUCTION, Placement, Wrapper


class Plain(Wrapper):
    name = "plain"

    def __init__(self, root, optimizers=()):
        super().__init__(root, optimizers)
        self.ddp = ddp_of(root)
        self.ranks = _ranks()
        self.of_one_rank: set[int] = set()  # ids of what no DDP reduces
        if self.ddp:
            self.name = "ddp"
            self.of_one_rank = _ignored_by_ddp(root) | _outside_ddp(root)

    @classmethod
    def claims(cls, root, optimizers):
        return True

    def reduces(self):
        return self.ddp

    def came_later(self, root):
        if not self.ddp and ddp_of(root):
            return "DistributedDataParallel"
        return "init_process_group" if self.ranks == 1 and _ranks() > 1 else ""

    def placement(self, kind, parameter):
        shape = () if parameter is None else parameter.shape
        if self.ranks == 1:
            return Placement("identical", full_shape=shape)
        is_alone = parameter is not None and id(parameter.tensor) in self.of_one_rank
        if not self.ddp or is_alone:  # several processes, and nothing that says how they relate
            return Placement("independent", full_shape=shape)
        if parameter is None:
            return Placement("union")
        is_sum = kind not in BEFORE_REDUCTION
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


def _outside_ddp(root: nn.Module) -> set[int]:
    """Parameters of the model beside each DDP inside it, such as a head of each rank."""
    inside = [m for m in root.modules() if isinstance(m, nn.parallel.DistributedDataParallel)]
    reduced = {id(parameter) for module in inside for parameter in module.parameters()}
    beside = {id(parameter) for parameter in root.parameters()} - reduced
    return beside if inside and beside and not _is_in_ddp(root) else set()


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _ranks() -> int:
    return torch.distributed.get_world_size() if _distributed() else 1


def ddp_of(root: nn.Module) -> bool:
    """Whether DistributedDataParallel is inside the model, or around it (Trainer and others hand out
    the bare module)."""
    if not _distributed():
        return False
    ddp = nn.parallel.DistributedDataParallel
    return any(isinstance(module, ddp) for module in root.modules()) or _is_in_ddp(root)


def _is_in_ddp(root: nn.Module) -> bool:
    ddp = nn.parallel.DistributedDataParallel
    # The only way from a module to what contains it: DDP keeps it in its dictionary of modules.
    holders = [d for d in gc.get_referrers(root) if isinstance(d, dict) and d.get("module") is root]
    return any(
        isinstance(owner, ddp) and owner._modules is holder
        for holder in holders
        for above in gc.get_referrers(holder)
        for owner in ([above] if isinstance(above, nn.Module) else gc.get_referrers(above))
    )
