# What is covered, what is not and why: for the start line, run.json and one loud line.
from __future__ import annotations

import json

from trainmon import _core
from trainmon.base.console import log

MOST = 200  # things said not to be covered; beyond, more of the same
ORDER = tuple(_core.fixed_kinds())
FIXED_KINDS = frozenset(ORDER)  # all others are optimizer state
CANARIES = frozenset({"canary_actv", "canary_grad"})


class CoverageBase:
    """What the frameworks have in common; each says by itself what gave nothing, and why."""

    def __init__(self, adapter):
        self.adapter = adapter
        self.core = None
        self.missing: set[tuple[str, str]] = set()
        self.said: set[str] = set()
        self.states: set[str] = set()  # kinds of optimizer state that were found

    def begins_late(self) -> bool:
        """Whether the first recorded step has no row even if all is well."""
        return self.adapter.kinds <= CANARIES

    def cover(self, kind: str) -> None:
        if kind not in FIXED_KINDS:
            self.states.add(kind)
        self.core.set_covered(kind)

    def not_covered(self, what: str, why: str) -> None:
        if (what, why) in self.missing or len(self.missing) >= MOST:
            return
        self.missing.add((what, why))
        if self.core is not None:
            self.core.set_not_covered(what, why)

    def say_once(self, text: str) -> None:
        if text not in self.said:
            self.said.add(text)
            log.warning("trainmon: %s", text)

    def start(self) -> None:
        """Hands over what was found before there was a core, and facts about the model."""
        adapter = self.adapter
        core = self.core = adapter.core
        for kind in sorted(adapter.kinds & FIXED_KINDS):
            self.cover(kind)
        for what, why in sorted(self.missing):
            core.set_not_covered(what, why)
        notes = self._notes()
        for key, note in notes.items():
            if note:
                core.set_note(key, json.dumps(note))
        for optimizer, formula in enumerate(notes.get("formulas", ())):
            if formula:
                core.know_formula(optimizer)
        if foreign := self._foreign():
            self.not_covered(f"{foreign} parameters of the optimizers", "not in the model given")

    def _notes(self) -> dict:
        """Facts for run.json; empty ones are left out."""
        adapter = self.adapter
        return {
            "frozen": [p.name for p in adapter.parameters if not p.tensor.requires_grad],
            "optimizers": list(adapter.optimizers) if len(adapter.optimizers) > 1 else [],
        }

    def _foreign(self) -> int:
        """How many tensors of the optimizers are not the model's."""
        raise NotImplementedError

    def followed(self) -> str:
        """For the start line: optimizers inside what was given, and a choice that was made."""
        return ""

    def kinds(self) -> list[str]:
        """For the start line."""
        kinds = self.adapter.kinds
        return [kind for kind in ORDER if kind in kinds] + sorted(kinds - FIXED_KINDS)
