# A twin of a model: its modules' classes and settings as they are now, and weights as they were.
from __future__ import annotations

import functools
import types
from collections import OrderedDict

import torch
from torch import Tensor, nn

from trainmon.torch.hooks.hook import leave_hooks_of_torch

MOST = 10_000  # items of a container that is looked into
_CONTAINERS = list, tuple, dict, OrderedDict


class CannotTwin(Exception):
    """Why a model has no twin."""


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


class Twin:
    """Modules that share the attributes of `root` and its children, as they are now. Parameters are those of
    `weights`, and buffers are copies. What a forward assigns to a module stays here. Hooks are torch's own
    alone. Nothing of the model is touched. CannotTwin: the model has other parameters."""

    def __init__(self, root: nn.Module, weights: dict[int, tuple]):
        self.weights = weights
        self.copies: dict[int, object] = {}  # by id, of modules, parameters and buffers
        modules = list(root.modules())
        self.before: list[tuple[Tensor, int, Tensor]] = []  # buffers, their versions, and values
        self.modules: list[tuple[nn.Module, nn.Module]] = []  # (of the model, of the twin)
        for module in modules:
            if _inside(module) is module:
                self.copies[id(module)] = object.__new__(type(module))
                self.modules.append((module, self.copies[id(module)]))
                self._copy_tensors(module)
        for module in modules:
            self.copies[id(module)] = self.copies[id(_inside(module))]
        for module, copy in self.modules:
            vars(copy).update({key: self._own(value) for key, value in vars(module).items()})
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
                self.before.append((buffer, buffer._version, buffer.detach().clone()))

    @torch.no_grad()
    def put_back(self) -> bool:
        """Whether buffers of the model changed, which its forward then holds in a way that is not seen here.
        They are as before after it."""
        if all(buffer._version == version for buffer, version, _ in self.before):
            return False
        for buffer, _, value in self.before:  # not each kernel counts what it changes
            buffer.copy_(value)
        return True

    def _own(self, value):
        """What stands for an attribute, or for an item of a plain container, in the twin."""
        if id(value) in self.copies:
            return self.copies[id(value)]
        if isinstance(value, types.MethodType) and id(value.__self__) in self.copies:
            return types.MethodType(value.__func__, self.copies[id(value.__self__)])
        if isinstance(value, functools.partial):
            given = {key: self._own(one) for key, one in value.keywords.items()}
            return functools.partial(self._own(value.func), *map(self._own, value.args), **given)
        if isinstance(value, types.FunctionType) and value.__closure__:
            return self._closed_over_twin(value)
        if type(value) not in _CONTAINERS or len(value) > MOST:
            return value
        if isinstance(value, dict):
            return type(value)((key, self._own(one)) for key, one in value.items())
        return type(value)(map(self._own, value))

    def _closed_over_twin(self, function: types.FunctionType):
        """The same function, with modules of the twin where it has those of the model."""
        self.copies[id(function)] = function  # one that holds itself
        held = [_content(cell) for cell in function.__closure__]
        own = [self._own(one) for one in held]
        if all(a is b for a, b in zip(held, own, strict=True)):
            return function
        copy = types.FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            tuple(types.CellType(one) for one in own),
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        self.copies[id(function)] = copy
        return copy


def _content(cell: types.CellType):
    try:
        return cell.cell_contents
    except ValueError:  # there is none yet
        return None


def _inside(module: nn.Module) -> nn.Module:
    """Itself, or what it compiles or reduces."""
    while True:
        key = "module" if isinstance(module, nn.parallel.DistributedDataParallel) else "_orig_mod"
        if module._modules.get(key) is None:
            return module
        module = module._modules[key]
