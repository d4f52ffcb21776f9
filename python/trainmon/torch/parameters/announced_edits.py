# Edits of weights and moments between two steps that are meant: those that announce themselves.
from __future__ import annotations

import torch

from trainmon.torch.hooks.hook import Hook, ModuleHook

MODULE = OPTIMIZER = "register_load_state_dict_post_hook"
# Of an optimizer that evaluates other weights than it trains (schedule-free): each changes them.
SWITCHES = ("train", "eval")


class StateLoaded(Hook):
    """Announces that `load_state_dict()` of a model or an optimizer has run. A part of a model that is
    loaded by itself is not seen."""

    __slots__ = ("adapter",)

    def __init__(self, adapter):
        self.adapter = adapter

    def __call__(self, *_) -> None:
        self.adapter.announce_edit()


class Switch:
    """Stands in for a method of one optimizer until it is removed, announces an edit and calls it. A
    copy of the optimizer has the method alone."""

    def __init__(self, adapter, optimizer, name: str):
        self.adapter, self.optimizer, self.name = adapter, optimizer, name
        self.own = vars(optimizer).get(name)  # of the object alone; nearly always the class has it
        self.method = getattr(optimizer, name)
        setattr(optimizer, name, self)

    def __call__(self, *args, **kwargs):
        if self.adapter is not None:
            self.adapter.announce_edit()
        return self.method(*args, **kwargs)

    def __reduce__(self):
        return getattr, (
            self.optimizer,
            self.name,
        )  # read before the copy has attributes of its own

    def remove(self) -> None:
        self.adapter = None
        if vars(self.optimizer).get(self.name) is not self:
            return  # somebody stands in for it in turn, and calls it
        if self.own is None:
            delattr(self.optimizer, self.name)
        else:
            setattr(self.optimizer, self.name, self.own)


def announce_edits(adapter) -> None:
    """Of the models that are watched, also inside a wrapper, and of their optimizers."""
    hook = StateLoaded(adapter)
    for root in adapter.roots:
        while isinstance(root, torch.nn.Module):
            if not isinstance(root, torch.jit.ScriptModule):
                adapter.handles.add(ModuleHook(root, MODULE, hook))
            root = getattr(root, "module", None)
    for optimizer in adapter.optimizers.values():
        try:
            adapter.handles.add(getattr(optimizer, OPTIMIZER)(hook))
        except AttributeError:  # torch before 2.2, and wrappers that never became an Optimizer
            pass
    for optimizer in adapter.around:
        methods = [getattr(optimizer, name, None) for name in SWITCHES]
        if all(map(callable, methods)) and hasattr(optimizer, "__dict__"):
            for name in SWITCHES:
                adapter.handles.add(Switch(adapter, optimizer, name))
