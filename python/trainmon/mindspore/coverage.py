# What is covered, what is not and why: for the start line, run.json and one loud line.
from __future__ import annotations

import json

from trainmon.base.names import listed
from trainmon.base.parts import log

MOST = 200  # things said not to be covered; beyond, more of the same
KINDS = (
    "grad_unreduced", "grad_micro", "grad_reduced", "param_origin", "param_updated", "actv",
    "actv_grad", "mg_direction", "update_ratio", "stack",
)  # fmt: skip
# Of other frameworks.
NOT_HERE = (
    "cc", "attn_entropy", "attn_max", "attn_max_logit", "stable_rank", "spectral_norm",
    "router_similarity", "router_entropy",
)  # fmt: skip
FIXED_KINDS = frozenset((*KINDS, *NOT_HERE))  # all others are optimizer state
IN_GRAPH = "compiled: MindSpore calls no hook there"


class Coverage:
    def __init__(self, adapter):
        self.adapter = adapter
        self.core = None
        self.missing: set[tuple[str, str]] = set()
        self.said: set[str] = set()
        self.states: set[str] = set()  # kinds of optimizer state that were found

    def cover(self, kind: str) -> None:
        if kind not in FIXED_KINDS:
            if kind in self.states:
                return
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
        notes = {
            "frozen": [p.name for p in adapter.parameters if not p.tensor.requires_grad],
            "optimizers": list(adapter.optimizers) if len(adapter.optimizers) > 1 else [],
        }
        for key, note in notes.items():
            if note:
                core.set_note(key, json.dumps(note))
        known = {id(p.tensor) for p in adapter.parameters}
        foreign = sum(
            id(tensor) not in known
            for optimizer in adapter.optimizers.values()
            for tensor in optimizer.parameters
        )
        if foreign:
            self.not_covered(f"{foreign} parameters of the optimizers", "not in the model given")

    def after_first_step(self) -> None:
        """Says what gave nothing, now that all should have."""
        adapter = self.adapter
        for kind in sorted({"grad_unreduced", "grad_micro"} & adapter.kinds):
            trained = [p for p in adapter.parameters if p.selected and p.owned]
            never = [p.name for p in trained if not p.hooked]
            if never and not (kind == "grad_unreduced" and adapter.reducers.seen):
                why = "no backward reached its hook: unused, or inside mindspore.jit"
                self.not_covered(f"{kind} of {listed(never)}", why)
        if (
            "grad_unreduced" in adapter.kinds
            and adapter.reducers.found
            and not adapter.reducers.seen
        ):
            why = "the DistributedGradReducer was not called where hooks fire"
            self.not_covered("grad_unreduced after accumulation", why)
        if adapter.activations is not None:
            never = [w.name for w in adapter.activations.watched if not w.ever]
            if never:
                why = "no call was seen in the first step: unused, not in training mode, or inside "
                self.not_covered(f"actv of {listed(never)}", why + "mindspore.jit")
        if adapter.wants_state and not self.states and not adapter.state_before:
            wanted = " ".join(sorted(adapter.kinds - FIXED_KINDS))
            self.not_covered(wanted, "the optimizer keeps no such state for its parameters")

    def kinds(self) -> list[str]:
        """For the start line."""
        kinds = self.adapter.kinds
        return [kind for kind in KINDS if kind in kinds] + sorted(kinds - FIXED_KINDS)

    def why_nothing(self) -> str:
        """The likeliest reason that a step gave no row."""
        adapter, core = self.adapter, self.core
        if adapter.is_graph:
            return "MindSpore is in GRAPH_MODE, where no hook fires"
        if not any(p.selected for p in adapter.parameters):
            return "include and exclude leave no parameter"
        if adapter.paused:
            return "it is paused"
        if refused := core.health()["refused"]:
            return f"no tensor could be measured: {', '.join(sorted(refused))}"
        if not any(core.window(steps.index) for steps in adapter.steps):
            return (
                "no step of the optimizer given was seen: is another one called, or is it called "
                "inside mindspore.jit?"
            )
        start = adapter.config["start_step"]
        if start and not any(core.step(steps.index) > start for steps in adapter.steps):
            return f"start_step={start} was not reached"
        if not any(p.owned and p.selected for p in adapter.parameters):
            return "none of the optimizer's parameters is in the model given"
        off = [part.name for part in adapter.parts if not part.on]
        return f"{', '.join(off)} switched off after an error" if off else "no reason found"
