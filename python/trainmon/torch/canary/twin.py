# A twin of a model: its modules' classes and settings as they are now, and weights as they were.
from __future__ import annotations

import torch
from torch import Tensor, nn

from trainmon.torch.canary.kept import are_same_bits, put_values
from trainmon.torch.canary.stand_ins import CannotTwin, StandIns, refuse_what_ends
from trainmon.torch.hooks.hook import leave_hooks_of_torch


def weights_of(root: nn.Module) -> dict[int, tuple[Tensor, nn.Parameter]]:
    """By id: each parameter, and a copy of it as it is now."""
    weights: dict[int, tuple] = {}
    for module in root.modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise CannotTwin("a ScriptModule is in it")
        if isinstance(module, nn.SyncBatchNorm):
            raise CannotTwin("its forward calls collectives (SyncBatchNorm)")
        for parameter in module._parameters.values():
            if parameter is None or id(parameter) in weights:
                continue
            if type(parameter) is not nn.Parameter:
                raise CannotTwin(f"a parameter is a {type(parameter).__name__}")
            copy = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
            weights[id(parameter)] = parameter, copy
    return weights


# Hooks, which are no part of what a module computes with, or are torch's own.
_SHARED = frozenset(vars(nn.Module())) - {"_parameters", "_buffers", "_modules"}


class Twin:
    """Modules with stand-ins of the attributes that `root` and its children have now. Parameters are those of
    `weights`. Hooks are torch's own alone. Nothing of the model is touched. CannotTwin: the model has other
    parameters, or holds what has no copy."""

    def __init__(self, root: nn.Module, weights: dict[int, tuple]):
        self.weights = weights
        self.copies: dict[int, object] = {}  # by id, of modules, parameters and buffers
        modules = list(root.modules())
        self.before: list[tuple[Tensor, Tensor]] = []  # buffers, and their values
        self.versions = [copy._version for _, copy in weights.values()]
        self.modules: list[tuple[nn.Module, nn.Module]] = []  # (of the model, of the twin)
        for module in modules:
            refuse_what_ends(type(module), "it")
            if _inside(module) is module:
                self.copies[id(module)] = object.__new__(type(module))
                self.modules.append((module, self.copies[id(module)]))
                self._copy_tensors(module)
        for module in modules:
            self.copies[id(module)] = self.copies[id(_inside(module))]
        self.stand_ins = StandIns(self.copies)
        self.stand_ins.classes.update(type(module) for module, _ in self.modules)
        names = {id(module): name for name, module in root.named_modules()}
        for module, copy in self.modules:
            own = self.stand_ins.of
            prefix = f"{names[id(module)]}." if names[id(module)] else ""
            for key, value in vars(module).items():
                shared = key in _SHARED
                vars(copy)[key] = _shallow(value) if shared else own(value, prefix + key)
            leave_hooks_of_torch(copy)
        self.root = self.copies[id(root)]

    def _copy_tensors(self, module: nn.Module) -> None:
        for parameter in module._parameters.values():
            if parameter is not None:
                known, copy = self.weights.get(id(parameter), (None, None))
                if known is not parameter:
                    raise CannotTwin("its parameters were replaced")
                self.copies[id(parameter)] = copy
        for buffer in module._buffers.values():
            if isinstance(buffer, Tensor) and id(buffer) not in self.copies:
                self.copies[id(buffer)] = buffer.detach().clone()
                self.before.append((buffer, buffer.detach().clone()))

    def are_weights_changed(self) -> bool:
        return self.versions != [copy._version for _, copy in self.weights.values()]

    def put_back(self) -> bool:
        """Whether buffers of the model changed, which its forward then holds in a way that is not seen here.
        They are as before after it."""
        changed = [pair for pair in self.before if not are_same_bits(*pair)]
        for buffer, value in changed:
            put_values(buffer, value)
        return bool(changed)


def _inside(module: nn.Module) -> nn.Module:
    """Itself, or what it compiles or reduces."""
    while True:
        key = "module" if isinstance(module, nn.parallel.DistributedDataParallel) else "_orig_mod"
        if module._modules.get(key) is None:
            return module
        module = module._modules[key]


def _shallow(value):
    return value.copy() if isinstance(value, (dict, set)) else value
