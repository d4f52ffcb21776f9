# The repeated blocks of a model: layers of a transformer, blocks of a ResNet, stages of a UNet.
from __future__ import annotations

from collections import Counter

from torch import nn

from trainmon.torch.wrappers.module_names import children, has_forward, innermost

_PLAIN = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def blocks_of(root: nn.Module) -> set[str]:
    """Names of the outermost blocks, as module_names.named() gives them. Blocks are the modules of a
    Sequential, a ModuleList or a ModuleDict in which two at least are of one class and have
    modules inside. A container among them that has blocks inside stands for those."""
    return _blocks("", root, ())


def _blocks(name: str, module: nn.Module, above: tuple) -> set[str]:
    module = innermost(module)
    if any(module is other for other in above):
        return set()
    inside = [(name_of, innermost(child)) for name_of, child in children(name, module)]
    deeper = {key: _blocks(key, child, (*above, module)) for key, child in inside}
    if not isinstance(module, _PLAIN) or not _are_repeated([child for _, child in inside]):
        return set().union(*deeper.values())
    found = set()
    for key, child in inside:
        if type(child) in _PLAIN and deeper[key]:
            found |= deeper[key]
        elif has_forward(child):
            found.add(key)
    return found


def _are_repeated(modules: list[nn.Module]) -> bool:
    classes = Counter(type(module) for module in modules if module._modules)
    return max(classes.values(), default=0) > 1
