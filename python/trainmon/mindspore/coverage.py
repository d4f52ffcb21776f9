# What is covered of a model of MindSpore, what is not and why.
from __future__ import annotations

from trainmon.base.coverage import FIXED_KINDS, CoverageBase
from trainmon.base.names import listed

# Of other frameworks.
NOT_HERE = (
    "attn_entropy", "attn_max", "attn_max_logit", "stable_rank", "spectral_norm",
    "router_similarity", "router_entropy", "canary_actv", "canary_grad",
)  # fmt: skip
IN_GRAPH = "compiled: MindSpore calls no hook there"


class Coverage(CoverageBase):
    def _foreign(self):
        adapter = self.adapter
        known = {id(p.tensor) for p in adapter.parameters}
        return sum(
            id(tensor) not in known
            for optimizer in adapter.optimizers.values()
            for tensor in optimizer.parameters
        )

    def _notes(self):
        kinds = [type(steps.optimizer) for steps in self.adapter.steps]
        own = [kind.__name__ if kind.__module__.startswith("mindspore.") else "" for kind in kinds]
        return {**super()._notes(), "formulas": own}

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
        if adapter.inputs is not None and not adapter.inputs.seen:
            why = "no forward was seen in the first step: not in training mode, or inside "
            self.not_covered("input", why + "mindspore.jit")
        if adapter.wants_state and not self.states and not adapter.state_before:
            wanted = " ".join(sorted(adapter.kinds - FIXED_KINDS))
            self.not_covered(wanted, "the optimizer keeps no such state for its parameters")

    def why_nothing(self) -> str:
        """The likeliest reason that a step gave no row."""
        adapter, core = self.adapter, self.core
        if adapter.is_graph:
            return "MindSpore is in GRAPH_MODE, where no hook fires"
        if not any(p.selected for p in adapter.parameters):
            return "include and exclude leave no parameter"
        if adapter.paused:
            return "it is paused"
        if not adapter.attached:
            return "control.json says off"
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
        off = [part.name for part in adapter.parts.values() if not part.on]
        return f"{', '.join(off)} switched off after an error" if off else "no reason found"
