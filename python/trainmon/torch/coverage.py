# What is covered of a model of PyTorch, what is not and why.
from __future__ import annotations

import collections
import json

from trainmon.base.coverage import FIXED_KINDS, CoverageBase
from trainmon.base.names import listed
from trainmon.torch.hooks.dynamo import compiles
from trainmon.torch.modules.compiled import COMPILED_BEFORE, INPUTS_UNSEEN, NO_GRADIENT
from trainmon.torch.parameters.step_formulas import formula_of
from trainmon.torch.steps.optimizers import class_names
from trainmon.torch.wrappers.module_names import inside_compiled

UNCALLED = (
    "no call was seen in the first step: its forward is called later, or never by the training (a "
    "LightningModule's own mostly is not)"
)

INPUT_INSIDE = (
    "the call of the model is inside torch.compile, where its hooks are not called; compile it in place, "
    "with model.compile()"
)
MOST_CHANGES = 20  # of modules that the console tells


class Coverage(CoverageBase):
    def __init__(self, adapter):
        super().__init__(adapter)
        self.closures: dict[int, str] = {}  # what is said of optimizers that run theirs again
        self.changed: set[str] = set()  # what was said of modules that came or went
        self.emptied: set[int] = set()  # ids of modules and parameters whose hooks somebody took

    def start(self) -> None:
        super().start()
        adapter = self.adapter
        for what, why in [one for wrapper in adapter.wrappers for one in wrapper.not_checked()]:
            self.not_covered(what, why)
        if held := [p.name for p in adapter.parameters if p.renormalised]:
            why = "nn.Embedding(max_norm=...) changes it in its forward"
            self.not_covered(f"gap of {listed(held)}", why)
            if any(wrapper.reduces() for wrapper in adapter.wrappers):
                self.not_covered(
                    f"replicas of {listed(held)}", f"{why}, as the batch of a rank asks"
                )

    def _notes(self):
        aliases = {p.name: p.aliases for p in self.adapter.parameters if p.aliases}
        inside = {name: chain for name, chain in self._inside().items() if len(chain) > 1}
        return {
            "aliases": aliases,
            **super()._notes(),
            "models": self.adapter.names,
            "optimizers_inside": inside,
            "formulas": [formula_of(steps) or "" for steps in self.adapter.steps],
            "devices": self._devices(),
        }

    def _inside(self) -> dict[str, list[str]]:
        adapter = self.adapter
        return {name: class_names(o, adapter.around) for name, o in adapter.optimizers.items()}

    def followed(self) -> str:
        chains = [chain for chain in self._inside().values() if len(chain) > 1]
        texts = [f"{chain[-1]} inside {' inside '.join(chain[-2::-1])}" for chain in chains]
        chosen = self.adapter.selection.remark
        return ("; follows " + ", ".join(texts) if texts else "") + chosen

    def _foreign(self):
        adapter = self.adapter
        known = {id(adapter.wrappers[p.chunk].stepped(p)) for p in adapter.parameters}
        return sum(
            id(tensor) not in known
            for optimizer in adapter.optimizers.values()
            for group in optimizer.param_groups
            for tensor in group["params"]
        )

    def _devices(self) -> dict[str, str]:
        """How the tensors of each CUDA device are measured; makes it ready to."""
        held: dict = collections.defaultdict(list)
        for parameter in self.adapter.parameters:
            tensor = parameter.tensor if parameter.stepped is None else parameter.stepped
            if tensor.device.type == "cuda":
                held[tensor.device].append(tensor)
        how = {}
        for device, tensors in held.items():
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            why = "backend is ops"
            if not self.adapter.is_elsewhere:
                why = self.core.reserve_device(device.index, len(tensors), size)
            how[str(device)] = f"framework operations: {why}" if why else "kernels"
        return how

    def after_first_step(self) -> None:
        """Says what gave nothing, now that all should have."""
        adapter = self.adapter
        if "grad_unreduced" in adapter.kinds:
            trained = [p for p in adapter.parameters if p.selected and p.tensor.requires_grad]
            never = [p.name for p in trained if not p.hooked]
            if never:
                self.not_covered(f"grad_unreduced of {listed(never)}", "never seen in a forward")
        if adapter.activations is not None:
            watched = adapter.activations.watched
            never = {key: w.name for key, (_, w) in watched.items() if not w.ever}
            if not any(root.training for root in adapter.roots):
                if never:
                    self.not_covered(
                        f"actv of {listed(never.values())}", "the model is in eval mode"
                    )
                never = {}
            known = set().union(*(inside_compiled(root) for root in adapter.roots))
            inside = [name for key, name in never.items() if key in known]
            others = [name for key, name in never.items() if key not in known]
            if inside:
                why = adapter.left_out_inside or COMPILED_BEFORE
                self.not_covered(f"actv of {listed(inside)}", why)
                self.say_once(f"activations inside torch.compile are not recorded: {why}")
            if others:
                why, left_out = UNCALLED, adapter.left_out_inside
                if compiles():
                    compiled = f"inside torch.compile: {left_out}" if left_out else COMPILED_BEFORE
                    why = f"{why}, or {compiled}"
                    if left_out:
                        self.say_once(
                            f"activations inside torch.compile are not recorded: {left_out}"
                        )
                self.not_covered(f"actv of {listed(others)}", why)
            if adapter.points is not None and adapter.points.any_compiled():
                self._inside_compiled()
        if adapter.inputs is not None and not adapter.inputs.series and compiles():
            self.not_covered("input", INPUT_INSIDE)
            self.say_once(f"what the model is given is not recorded: {INPUT_INSIDE}")
        if adapter.features is not None:
            adapter.features.first_step_ended()
        # Before the first step an optimizer has made no state.
        if adapter.wants_state and not self.states and not adapter.state_before:
            wanted = " ".join(sorted(adapter.kinds - FIXED_KINDS))
            self.not_covered(wanted, "the optimizer keeps no such state under its parameters")
        for root, wrapper in zip(adapter.roots, adapter.wrappers):
            if too_early := wrapper.came_later(root):
                self.say_once(
                    f"watch() came before {too_early}: call it after, or rows of ranks "
                    "will be taken for what they are not"
                )
                self.not_covered(f"how ranks relate under {too_early}", "watch() came before it")

    def _inside_compiled(self) -> None:
        adapter = self.adapter
        if adapter.activations.inputs:
            self.not_covered("actv_grad of inputs inside torch.compile", INPUTS_UNSEEN)
        if never := adapter.points.without_gradient():
            self.not_covered(f"actv_grad of {listed(never)} inside torch.compile", NO_GRADIENT)
        if adapter.stacks is not None:
            self.not_covered("stack inside torch.compile", "modules are not called there")

    def begins_at(self, step: int) -> None:
        """The optimizer does not say whether training goes on from a checkpoint: SGD keeps no step."""
        if self.core.restart > 0 and step == 0:
            self.say_once(
                f"restart {self.core.restart} of this run begins at step 0: readers show its rows in place of "
                "those of earlier restarts. Where training goes on from a checkpoint, pass start_iteration=..."
            )

    def steps_undeclared(self, what: str) -> None:
        self.say_once(
            f"{what}, and no step was declared: call step() of what watch() gave back after each update, "
            "or let it follow the optimizer, trainmon.watch(model, optimizer)"
        )

    def steps_unseen(self, count: int) -> None:
        if self.adapter.declares:
            self.steps_undeclared(f"gradients came and went {count} times")
            return
        if self.adapter.loss_scale.scaler is not None:
            text = f"the GradScaler left out {count} steps in a row"
            if "grad_unreduced" not in self.adapter.kinds:
                text += (
                    ", and grad_reduced is recorded at steps: "
                    'kinds=["grad_unreduced"] records the gradients of each backward'
                )
            self.say_once(text)
            return
        self.say_once(
            f"gradients came and went {count} times without a step of the optimizer given to watch(): "
            "if another one took its place, watch that one"
        )
        self.not_covered(
            "steps of an optimizer that watch() was not given", "its hooks are not ours"
        )

    def closure_runs_again(self, steps) -> None:
        if self.core is None or steps.index in self.closures:
            return
        self.closures[steps.index] = "micro_step counts runs of the closure"
        self.say_once(
            f"{type(steps.optimizer).__name__} runs its closure several times in a step: each run has rows "
            "of its own, micro_step counts them"
        )
        self.core.set_note("closures", json.dumps(self.closures))

    def parameters_lost(self, name: str) -> None:
        self.say_once(
            f"parameters came after watch() ({name} among them) and no optimizer given to it has them: "
            "call watch() again with the optimizer that has"
        )
        self.not_covered(
            f"parameters replaced after watch(), or added, {name} among them",
            "no optimizer given to watch() has the new ones",
        )

    def modules_changed(self, changes, stepped: int) -> None:
        """Modules came or went (wrappers/tree.py). An optimizer has so many parameters of those that went."""
        names = listed([*changes.replaced, *changes.removed, *changes.added])
        text = f"modules changed after watch() ({changes}: {names}): hooks were put on again"
        if stepped:
            text += f"; {stepped} parameters that left the model are still in an optimizer"
            what = f"{stepped} parameters of the optimizers, from some step on"
            self.not_covered(what, "their module left the model")
        if len(self.changed) < MOST_CHANGES:
            self.changed.add(text)
            self.say_once(text)
        points = self.adapter.points
        if points is not None and points.any_compiled() and (changes.replaced or changes.added):
            came = listed([*changes.replaced, *changes.added])
            self.not_covered(f"actv of {came} inside torch.compile", COMPILED_BEFORE)
        if changes.removed:
            self.not_covered(
                f"rows of {listed(changes.removed)}, from some step on", "the module left the model"
            )

    def hooks_emptied(self, owner) -> None:
        """Somebody took hooks off this module or parameter: the first one is said."""
        if id(owner) in self.emptied:
            return
        found = (
            f"{what} {name or '(root)'}"
            for root in self.adapter.roots
            for what, named in (
                ("module", root.named_modules()),
                ("parameter", root.named_parameters()),
            )
            for name, one in named
            if one is owner
        )
        what = next(found, f"a {type(owner).__name__} that left the model")
        if not self.emptied:
            self.say_once(
                f"somebody emptied the hooks of {what}: its rows end, and those of others that were emptied"
            )
        self.emptied.add(id(owner))
        self.not_covered(f"{what}, from some step on", "somebody emptied its hooks")

    def why_nothing(self) -> str:
        """The likeliest reason that a step gave no row."""
        adapter, core = self.adapter, self.core
        start = adapter.config["start_step"]
        if not adapter.attached:
            return "trainmon ctl has switched it off"
        if not adapter.parameters:
            return "the model given has no parameters"
        if not any(p.selected for p in adapter.parameters):
            return "include and exclude leave no parameter"
        if adapter.paused:
            return "it is paused"
        if refused := core.health()["refused"]:
            return f"no tensor could be measured: {', '.join(sorted(refused))}"
        if adapter.declares and not adapter.relay.count:
            return (
                "step() was never called, and watch() was given no optimizer that it could follow"
            )
        if not any(core.window(steps.index) for steps in adapter.steps):
            return "no optimizer has stepped"
        if start and not any(core.step(steps.index) > start for steps in adapter.steps):
            return f"start_step={start} was not reached"
        if not any(core.step(steps.index) for steps in adapter.steps):
            return "no step of the optimizer given was seen: is another one stepped?"
        owned = [p for p in adapter.parameters if p.owned and p.selected]
        if not owned:
            return "none of the optimizer's parameters is in the model given"
        has = (adapter.wrappers[p.chunk].has_gradient(p) for p in owned)
        if "grad_reduced" in adapter.kinds and not any(has):
            return "no watched parameter had a gradient when the optimizer stepped"
        if self.begins_late():
            return "no canary ran"
        off = [part.name for part in adapter.parts if not part.on]
        return f"{', '.join(off)} switched off after an error" if off else "no reason found"
