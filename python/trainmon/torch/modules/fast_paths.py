# Layers that torch computes in one kernel, with other bits, where no module of theirs has hooks.
from __future__ import annotations

import weakref

from torch import nn

from trainmon.torch.hooks.dynamo import compiling
from trainmon.torch.hooks.hook import Hook, has_hooks, lift

CONTAINERS = nn.ModuleList, nn.ModuleDict  # have no forward


class FastPaths:
    """nn.TransformerEncoderLayer is such a layer while it is in eval(). Ours go as long: then it has no
    rows. Before each forward of a module around it that is looked at. A model that is itself such a
    layer has nothing around it."""

    def __init__(self, adapter):
        self.adapter = adapter
        # Modules with a hook that looks, by id, and at which layers.
        self._around: dict[int, tuple[weakref.ref, list]] = {}
        self._lifted = weakref.WeakKeyDictionary()  # layer -> what puts its hooks back

    def install(self, root, handles) -> None:
        """Also again, when modules have changed."""
        names = dict(root.named_modules())
        around: dict[str, list] = {}
        for name, layer in names.items():
            if not isinstance(layer, nn.TransformerEncoderLayer) or not name:
                continue
            if not any(has_hooks(one) for one in layer.modules()):
                continue  # compiled code is left alone
            parts = name.split(".")
            for count in range(len(parts)):
                around.setdefault(".".join(parts[:count]), []).append(weakref.ref(layer))
        for name, layers in around.items():
            module = names.get(name)
            if module is None or isinstance(module, CONTAINERS):
                continue
            known, looked_at = self._around.get(id(module), (lambda: None, []))
            if known() is module:
                looked_at[:] = layers
                continue
            self._around[id(module)] = weakref.ref(module), layers
            hook = self.adapter.timed(BeforeLayers(self, layers))
            handles.hook(module, "register_forward_pre_hook", hook)

    def forget(self, module) -> None:
        """Its hooks are off."""
        self._around.pop(id(module), None)

    def look(self, layer) -> None:
        if not layer.training:
            lifted = [put_back for module in layer.modules() for put_back in lift(module)]
            self._lifted.setdefault(layer, []).extend(lifted)
        elif layer in self._lifted:
            for put_back in self._lifted.pop(layer):
                put_back()


class BeforeLayers(Hook):
    """Forward pre-hook of a module around such layers."""

    __slots__ = ("paths", "layers")

    def __init__(self, paths: FastPaths, layers: list):
        self.paths, self.layers = paths, layers

    def __call__(self, module, args):
        if compiling():
            return
        try:
            for reference in self.layers:
                if (layer := reference()) is not None:
                    self.paths.look(layer)
        except Exception as error:
            self.paths.adapter.root_part.failed(error)
