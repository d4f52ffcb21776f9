# Edits of weights and moments between two steps that are meant: those that announce themselves.
from __future__ import annotations

import weakref

import torch

from trainmon.torch.hooks.hook import Hook, ModuleHook

MODULE = OPTIMIZER = "register_load_state_dict_post_hook"
# Of an optimizer that evaluates other weights than it trains (schedule-free): each changes them.
SWITCHES = ("train", "eval")


class StateLoaded(Hook):
    """Announces that `load_state_dict()` of a model, of a part of it or of an optimizer has run. Loading a
    model runs it for each part: it is announced once."""

    __slots__ = ("adapter", "announced")

    def __init__(self, adapter):
        self.adapter, self.announced = adapter, None

    def __call__(self, *_) -> None:
        now = [(steps.window, steps.in_step) for steps in self.adapter.steps]
        if now != self.announced:
            self.announced = now
            self.adapter.announce_edit()


class LoadedModules:
    """The hook on modules of the models, also on a wrapper's: the outermost, and those that hold what a
    watched optimizer steps. Others, as a target network, are edited as the training likes."""

    def __init__(self, adapter, hook: StateLoaded):
        self.adapter, self.hook = adapter, hook
        self.hooked = weakref.WeakSet()

    def find(self) -> None:
        """Those that came are hooked, too."""
        for root in self.adapter.roots:
            seen: set[int] = set()
            while isinstance(root, torch.nn.Module) and id(root) not in seen:
                seen.add(id(root))
                self._add(root)
                root = vars(root).get("_modules", {}).get("module")
        for parameter in self.adapter.parameters:
            if parameter.owned:
                self._add(parameter.owner)

    def _add(self, module) -> None:
        if module in self.hooked or isinstance(module, torch.jit.ScriptModule):
            return
        self.hooked.add(module)
        self.adapter.handles.add(ModuleHook(module, MODULE, self.hook))


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
    """Of the models that are watched, and of their optimizers."""
    hook = StateLoaded(adapter)
    adapter.registry.loaded = LoadedModules(adapter, hook)
    adapter.registry.loaded.find()
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
