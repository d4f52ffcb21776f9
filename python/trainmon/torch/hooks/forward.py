# Hooks of a model chunk as a whole: a forward begins and ends, and its backward begins.
from __future__ import annotations

import torch

from trainmon.torch.hooks.backward import IDLE, current_task
from trainmon.torch.hooks.dynamo import compiling
from trainmon.torch.hooks.hook import Hook
from trainmon.torch.hooks.unseen import unseen


def hook_forward(adapter, root: torch.nn.Module) -> None:
    """Puts them on a model chunk."""
    hook, timed = adapter.handles.hook, adapter.timed
    if not isinstance(root, torch.jit.ScriptModule):
        hook(root, "register_forward_pre_hook", timed(ForwardBegins(adapter)))
        hook(root, "register_forward_hook", timed(ForwardEnds(adapter)))
    if isinstance(root, torch.nn.parallel.DistributedDataParallel):
        hook(root.module, "register_forward_pre_hook", timed(InnerForwardBegins(adapter)))


class ForwardBegins(Hook):
    """Forward pre-hook of a model chunk."""

    __slots__ = ("adapter",)

    def __init__(self, adapter):
        self.adapter = adapter

    def __call__(self, module, args):
        if compiling() or not module.training or not self.adapter.root_part.on:
            return
        try:
            if current_task() == IDLE:
                with unseen():
                    self.adapter.forward_begins()
        except Exception as error:
            self.adapter.root_part.failed(error)


class InnerForwardBegins(ForwardBegins):
    """The same of the module inside a DDP: another DDP may call it from now on."""

    __slots__ = ()

    def __call__(self, module, args):
        if compiling() or not module.training or not self.adapter.root_part.on:
            return
        try:
            if current_task() == IDLE and self.adapter.is_put_anew():
                with unseen():
                    self.adapter.look_again()
        except Exception as error:
            self.adapter.root_part.failed(error)


class ForwardEnds(Hook):
    __slots__ = ("adapter",)

    def __init__(self, adapter):
        self.adapter = adapter

    def __call__(self, module, args, output):
        if compiling() or not module.training or not self.adapter.root_part.on:
            return
        try:
            if current_task() == IDLE:
                with unseen(from_tensors=True):
                    self.adapter.forward_ends(output)
        except Exception as error:
            self.adapter.root_part.failed(error)


class BackwardBegins(Hook):
    """Tensor hook on the model's output: the first of a backward, and always in its outermost run."""

    __slots__ = ("adapter",)

    def __init__(self, adapter):
        self.adapter = adapter

    def __call__(self, gradient):
        adapter = self.adapter
        if compiling() or not adapter.root_part.on:  # compiled autograd has no elements here
            return
        try:
            if adapter.has_recorder:
                adapter.core.backward_begins()
            with unseen():
                adapter.backward.follow()
        except Exception as error:
            adapter.root_part.failed(error)
