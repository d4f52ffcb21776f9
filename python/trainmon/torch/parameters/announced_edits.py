# States that are loaded between two steps: edits of weights and moments that are meant, told by torch.
from __future__ import annotations

import torch

from trainmon.torch.hooks.hook import Hook, ModuleHook

MODULE = OPTIMIZER = "register_load_state_dict_post_hook"


class StateLoaded(Hook):
    """Announces that `load_state_dict()` of a model or an optimizer has run. A part of a model that is
    loaded by itself is not seen."""

    __slots__ = ("adapter",)

    def __init__(self, adapter):
        self.adapter = adapter

    def __call__(self, *_) -> None:
        self.adapter.announce_edit()


def announce_loads(adapter) -> None:
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
