# From a module to what was put around it: frameworks hand out the bare module as often as the wrapped one.
from __future__ import annotations

import gc

from torch import nn


def holder_of(root: nn.Module, kind: type) -> nn.Module | None:
    """The module of that class that is `root`, or keeps it as its attribute `module`, at any depth."""
    seen = 0
    while not isinstance(root, kind):
        root = owner_of(root, "module")
        seen += 1
        if root is None or seen == 8:
            return None
    return root


def owner_of(root: nn.Module, key: str) -> nn.Module | None:
    """The module that keeps it as its attribute `key`."""
    # The only way from a module to what contains it: that keeps it in its dictionary of modules.
    holders = [d for d in gc.get_referrers(root) if isinstance(d, dict) and d.get(key) is root]
    for holder in holders:
        for above in gc.get_referrers(holder):
            for owner in [above] if isinstance(above, nn.Module) else gc.get_referrers(above):
                if isinstance(owner, nn.Module) and owner._modules is holder:
                    return owner
    return None
