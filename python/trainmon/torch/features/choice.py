# Which kinds of features there are, and which modules they are taken of.
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainmon import _core
from trainmon.base.names import as_text

ATTENTION = ("attn_entropy", "attn_max", "attn_max_logit")  # as attention_features returns them
SPECTRAL = ("stable_rank", "spectral_norm")
ROUTER = ("router_similarity", "router_entropy")
KINDS = frozenset((*ATTENTION, *SPECTRAL, *ROUTER))

Names = Callable[[int, str], bool]  # (chunk, name) -> whether it is asked for


@dataclass(frozen=True)
class Choice:
    """Which modules, None being those that bear the marks, and how attention is looked at."""

    within: Names | None = None  # of those, only these
    attention: Names | None = None
    spectral: Names | None = None
    router: Names | None = None
    outputs: Names | None = None  # routers whose outputs are read, where they are others
    layout: str = "bhsd"
    causal: str = "auto"  # yes, no, or as the module says
    masks: bool = True  # whether masks that the module is given hide keys
    first_only: bool = False  # only the first head of the first of a batch

    @classmethod
    def of(cls, config: dict) -> Choice:
        return cls(
            _named(config["include"], config["exclude"]),
            _named(config["attention_modules"]),
            _named(config["spectral_modules"]),
            _named(config["router_modules"]),
            layout=config["attention_layout"],
            causal=config["attention_causal"],
        )


def _named(include: list[str], exclude: list[str] = ()) -> Names | None:
    if not include and not exclude:
        return None
    return lambda chunk, name: _core.name_selected(as_text(name), include, list(exclude))
