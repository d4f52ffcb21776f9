# msprobe's short names of parameters and modules, and the chunk in a target.
from __future__ import annotations

import re

# The first that matches wins; the text from the last such component on is kept.
_SQUASHED = [
    re.compile(rf".*\.({component}.*)", re.DOTALL)
    for component in (r"layers?\.", r"embeddings?\.", "final", "output", "norm")
]


def squash(name: str) -> str:
    """module.module.encoder.layers.0.mlp.weight -> layers.0.mlp.weight"""
    for pattern in _SQUASHED:
        if match := pattern.fullmatch(name):
            return match.group(1)
    return name


class Names:
    """Short names of one model chunk: the first to claim one keeps it, others keep their full one."""

    def __init__(self, squashed: bool):
        self.squashed = squashed
        self.owners: dict[str, str] = {}
        self.names: dict[str, str] = {}

    def of(self, full: str) -> str:
        known = self.names.get(full)
        if known is None:
            short = squash(full) if self.squashed else full
            known = short if self.owners.setdefault(short, full) == full else full
            self.names[full] = known
        return known


def without_chunk(target: str, chunk: int) -> str | None:
    """The name in a target, None when it is one of another chunk."""
    head, colon, rest = target.partition(":")
    if not colon:
        return target
    return rest if head == str(chunk) else None
