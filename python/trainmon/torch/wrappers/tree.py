# Which modules a model is made of, and under which names: whether that has changed is asked at every step.
from __future__ import annotations

from operator import attrgetter, eq
from typing import NamedTuple

from torch import nn

from trainmon.torch.wrappers import module_names

_TABLE = attrgetter("_modules")


class Changes(NamedTuple):
    """Names of the outermost modules that are others, are gone or came. What was put around a module, or
    taken off it, has its name and is none of them."""

    replaced: list[str]
    removed: list[str]
    added: list[str]

    def __bool__(self) -> bool:
        return any(self)

    def __str__(self) -> str:
        """Like "1 replaced, 2 added"."""
        return ", ".join(f"{len(names)} {what}" for what, names in self._asdict().items() if names)


class Tree:
    """The modules of the model chunks as they are when it is made. It holds them."""

    def __init__(self, roots: list[nn.Module], names: list[str]):
        """`names` are those of the chunks, if they have any."""
        chunks = names or [""] * len(roots)
        self.places = [
            (chunk, module_names.within(name, inner), module)
            for chunk, (root, name) in enumerate(zip(roots, chunks))
            for inner, module in module_names.named(root)
        ]
        modules = {id(module): module for _, _, module in self.places}.values()
        modules = [m for m in modules if isinstance(m._modules, dict)]  # no scripted ones
        self.parents = [module for module in modules if module._modules]
        self.leaves = [module for module in modules if not module._modules]
        self.tables = [dict(module._modules) for module in self.parents]

    def is_changed(self) -> bool:
        """In loops that run in C: this is done at every step."""
        return any(map(_TABLE, self.leaves)) or not all(
            map(eq, map(_TABLE, self.parents), self.tables)
        )

    def since(self, before: Tree) -> Changes:
        """What has changed since another one was made, which has been kept."""
        old = {(chunk, name, id(module)): name for chunk, name, module in before.places}
        new = {(chunk, name, id(module)): name for chunk, name, module in self.places}
        gone = {name for key, name in old.items() if key not in new}
        came = {name for key, name in new.items() if key not in old}
        return Changes(
            _outermost(gone & came),
            _outermost(gone.difference(new.values())),
            _outermost(came.difference(old.values())),
        )


def _outermost(names: set[str]) -> list[str]:
    return sorted(name for name in names if name.rpartition(".")[0] not in names)
