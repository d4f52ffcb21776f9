# The PyTorch adapter: puts the hooks on a model and its optimizers, and takes them all off again.
from __future__ import annotations

import json

import torch

from trainmon import _core
from trainmon.base.coverage import CANARIES
from trainmon.base.locks import fork_safe_lock
from trainmon.base.parts import Part
from trainmon.base.rows import elsewhere
from trainmon.torch.control import Control
from trainmon.torch.coverage import Coverage
from trainmon.torch.expected_rows import rows_per_step
from trainmon.torch.features.choice import KINDS as FEATURES
from trainmon.torch.full_steps import FullSteps
from trainmon.torch.hooks import dynamo
from trainmon.torch.hooks.backward import Backward
from trainmon.torch.hooks.forward import hook_forward
from trainmon.torch.hooks.hook import Handles
from trainmon.torch.measuring.late_values import Late
from trainmon.torch.measuring.ops import all_elsewhere
from trainmon.torch.measuring.own_time import OwnTime
from trainmon.torch.modules import compiled, gradient_edges
from trainmon.torch.modules.activations import Activations
from trainmon.torch.modules.buffers import Buffers
from trainmon.torch.modules.fast_paths import FastPaths
from trainmon.torch.modules.inputs import Inputs
from trainmon.torch.modules.selection import Selection
from trainmon.torch.parameters.announced_edits import announce_edits
from trainmon.torch.parameters.registry import Registry
from trainmon.torch.steps.declared import DeclaredSteps
from trainmon.torch.steps.hooks import TimedAfterStep, TimedBeforeStep
from trainmon.torch.steps.loss_scale import LossScale
from trainmon.torch.steps.optimizers import (
    NoOptimizer,
    grad_scaler,
    torch_optimizers,
    whole_chain,
)
from trainmon.torch.steps.replaced_optimizers import Replaced
from trainmon.torch.steps.windows import Steps
from trainmon.torch.training import DuringTraining
from trainmon.torch.wrappers.choice import wrapper_of
from trainmon.torch.wrappers.chunks import chunks_of, names_of
from trainmon.torch.wrappers.contract import (
    has_post_accumulate_hook,
    may_reduce_in_hooks,
    parameters_under,
)
from trainmon.torch.wrappers.dtensors import DTensors
from trainmon.torch.wrappers.tree import Tree

OF_OPTIMIZERS = {
    "param_origin",
    "mg_direction",
    "update",
    "update_ratio",
}  # read around their step()


class Adapter(DuringTraining):
    """Everything between one core Monitor and one model: prepare(), install(), then remove()."""

    activations_type = Activations

    def __init__(self, model, optimizers, scaler, selection=None, relay=None):
        """Without optimizers the training loop declares its steps: declare_step()."""
        self.roots = chunks_of(model)
        self.declares = optimizers is None
        if self.declares:
            optimizers, relay = NoOptimizer(self.roots), DeclaredSteps()
        super().__init__(Coverage(self), selection, relay)
        self.optimizers = torch_optimizers(optimizers, self.roots)
        self.no_optimizers = [o for o in self.optimizers.values() if isinstance(o, NoOptimizer)]
        self.loss_scale = LossScale(self, grad_scaler(scaler, optimizers))
        self.around = whole_chain(optimizers)
        self.names = names_of(model)
        self.wrappers = self._wrapped()
        self.looked_again = False  # whether they were found to be the same in the first forward
        self.parameters = parameters_under(self.wrappers)
        self.has_dtensors = any(isinstance(w, DTensors) for w in self.wrappers)
        self.full_steps: FullSteps | None = None
        self.own_time: OwnTime | None = None  # where there is a budget
        self.was_recorded = False  # the clock's step that ended last
        self.lock = fork_safe_lock()
        self.last_frame: _core.Place | None = None
        self.replaced = None  # finds optimizers that take the place of those given
        self.main_grad_due = None  # what is to be read once the framework has added to it

    def _wrapped(self) -> list:
        wrappers = [wrapper_of(root, self.around) for root in self.roots]
        for wrapper, name in zip(wrappers, self.names):
            wrapper.chunk_name = name
        return wrappers

    def _environment(self) -> dict:
        spread = ", ".join(dict.fromkeys(w.name for w in self.wrappers))
        return {"torch": torch.__version__, "spread": spread}

    def _ranks(self) -> dict:
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return {}
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        return {"rank": rank, "world_size": world_size}

    # --- start -----------------------------------------------------------------------------------

    def _selection(self, config: dict) -> Selection:
        return Selection(config, self.names)

    def selected_modules(self, everything: bool = False) -> list[tuple]:
        """(chunk, name, module) for activations; all of them for features, which choose."""
        found: list[tuple] = []
        seen: set[int] = set()
        if not everything:
            self.selection.decide(self.roots, self.coverage.not_covered)
        choose = self.selection.everything if everything else self.selection.modules
        for chunk, root in enumerate(self.roots):
            for name, module in choose(root, chunk, seen, self.coverage.not_covered):
                found.append((chunk, name, module))
        return found

    def _kinds(self, asked: list[str]) -> set[str]:
        kinds = set(_core.expand_kinds(asked))
        if "grad_unreduced" in kinds and not has_post_accumulate_hook():
            kinds.discard("grad_unreduced")
            self.coverage.not_covered("grad_unreduced", "needs torch 2.1 or newer")
        reduces = any(wrapper.reduces() for wrapper in self.wrappers)
        # Where nothing is reduced they have the values of grad_reduced. A loop may reduce by hand,
        # which checks look at.
        by_hand = self.config["checks"] and self._ranks().get("world_size", 1) > 1
        if by_hand and not reduces and may_reduce_in_hooks(self.parameters):
            kinds.discard("grad_unreduced")
            why = "hooks of parameters come before ours, and may reduce gradients"
            self.coverage.not_covered("grad_unreduced", why)
        if "grad_unreduced" not in asked and not reduces and not by_hand:
            kinds.discard("grad_unreduced")
        if "cc" in kinds and not torch.distributed.is_available():
            kinds.discard("cc")
            self.coverage.not_covered("cc", "this torch has no torch.distributed")
        if "actv" not in kinds:
            kinds.discard("actv_recomputed")  # it is held against the forward
        for kind in sorted(kinds & OF_OPTIMIZERS) if self.declares else ():
            kinds.discard(kind)
            self.coverage.not_covered(kind, "watch() without an optimizer")
        return kinds

    def _rows_per_step(self) -> int:
        return rows_per_step(self)

    def wants(self, kind: str) -> bool:
        return kind in self.kinds or "moments" in self.kinds

    def install(self, core) -> None:
        self.core, self.handle = core, core.handle
        config = self.config
        forced = self.is_elsewhere = config["backend"] == "ops"
        self.observe = elsewhere if forced else _core.observe
        self.observe_at = elsewhere if forced else _core.observe_at
        self.sweep = all_elsewhere if forced else _core.sweep
        self.parts: list[Part] = []
        self.failed: set[str] = set()  # parts that failed before hooks were taken off
        self.steps_part, self.sweeps_part = self._part("steps"), self._part("sweeps")
        self.step_handles, self.handles = Handles(), Handles()
        is_asked = self.selection.names_as_compiled and config["inside_compiled"]
        self.left_out_inside = dynamo.why_left_out(is_asked)
        self.points = None if self.left_out_inside else compiled.Points()
        self.uncalled: set[int] = set()  # ids of modules that may be inside compiled code
        self.registry = None
        self.forwards = 0
        self.late = Late(core, Part(core, "late values"), config["eps"], config["checks"])
        self.backward = Backward(self._part("backward"), self._backward_ended)
        self.lasting = len(self.parts)
        self.activations = self.features = self.stacks = self.inputs = self.buffers = None
        self.tree: Tree | None = None  # where modules are watched: those that were looked for hooks
        self.canaries: list = []  # of model chunks
        self.collectives = self.in_flight = None
        self.has_recorder = core.has_recorder
        self.calls_so_far = None  # of collectives, for the recorder
        self.clock = None
        self.steps: list[Steps] = []
        for optimizer in self.optimizers.values():
            self.steps.append(Steps(self, optimizer, config["start_iteration"]))
        self.clock = self.steps[config["clock"]]
        try:
            self.attach()
            for steps in self.steps:
                steps.install(self.step_handles)
                steps.refresh()
            if self.declares:
                self.step_handles.add(self.relay)
            elif self.relay is None:
                self.replaced = Replaced(self)
                self.step_handles.add(self.replaced)
        except BaseException:
            self.step_handles.remove()
            self._detach_for_good()
            raise

    def _part(self, name: str) -> Part:
        self.parts.append(Part(self.core, name))
        self.parts[-1].on = name not in self.failed
        return self.parts[-1]

    def attach(self) -> None:
        """Puts every hook on but those of the steps."""
        self.attached = True
        if self.replaced is not None:
            self.replaced.install()
        self.own_time = OwnTime(self.core) if self.config["budget"] is not None else None
        self.gradients, self.root_part = self._part("gradients"), self._part("forward")
        self.registry = Registry(self)
        self.registry.install()
        for root in self.roots:
            hook_forward(self, root)
        if "input" in self.kinds:
            self.inputs = Inputs(self, self._part("inputs"))
            self.inputs.install(self.handles)
        if "buffer" in self.kinds:
            self.buffers = Buffers(self, self._part("buffers"))
        if self.kinds & CANARIES:
            from trainmon.torch.canary.canary import install_canaries  # few ask for it

            install_canaries(self, self._part("canary"))
        announce_edits(self)
        self._install_modules()
        if "cc" in self.kinds:
            from trainmon.torch.collectives.functions import Collectives  # few ask for it

            self.collectives = self._new_collectives(Collectives, self._part("collectives"))
            self.collectives.put_back_behind(self)
            self.collectives.install(everything=self.config["collectives"] == "all")
        if self.has_recorder:
            from trainmon.torch.collectives.in_flight import (  # few ask for it
                CallsSoFar,
                InFlight,
            )

            self.calls_so_far = self.calls_so_far or CallsSoFar()
            part = self._part("collectives in flight")
            self.in_flight = InFlight(self.core, part, self.calls_so_far)
            self.in_flight.put_back_behind(self)
            self.in_flight.install()
        self.coverage.start()

    def detach(self) -> None:
        """Takes them off again; those in a graph still alive, and those that compiled code has in it, do
        nothing any more."""
        self.attached = False
        if self.replaced is not None:
            self.replaced.remove()
        if self.activations is not None:
            self.activations.release_leaves()
        for part in self.parts[self.lasting :]:
            if not part.on:
                self.failed.add(part.name)
            part.on = False
        del self.parts[self.lasting :]
        if self.in_flight is not None:  # it was put on top of the other
            self.in_flight.remove()
        if self.collectives is not None:
            self.collectives.remove()
        if self.points is not None:
            self.points.detach()
        if self.activations is not None:
            self.uncalled = self.activations.uncalled()
        self.handles.remove(stays=lambda module: compiled.may_have_hooks_of(module, self))
        dynamo.own_hooks.leave(self)
        if self.registry is not None:
            self.registry.remove()
        for wrapper in self.wrappers:
            wrapper.unhooked()
        self.activations = self.features = self.stacks = self.inputs = self.buffers = None
        self.registry = self.tree = None
        self.collectives = self.in_flight = None
        self.last_frame = None
        self.parameters = []  # they may be replaced while nobody looks
        for steps in self.steps:
            steps.detached()

    def _detach_for_good(self) -> None:
        self.detach()
        self.handles.remove()
        if self.points is not None:
            self.points.remove()

    def follow_control(self, allowed, say, changed) -> None:
        super().follow_control(allowed, say, changed)
        self.full_steps = FullSteps(self, say)

    def _control(self, *how) -> Control:
        return Control(self, *how)

    def _install_modules(self) -> None:
        values, gradients = "actv" in self.kinds, "actv_grad" in self.kinds
        if values or gradients:
            inputs = gradients and self.config["input_grads"]
            if inputs and gradient_edges.sequence_number is None:
                self.coverage.not_covered("actv_grad of inputs", gradient_edges.NOT_NUMBERED)
                inputs = False
            part = self._part("activations")
            self.activations = self.activations_type(self, part, values, gradients, inputs)
            self.clock.refresh()
        if wanted := self.kinds & FEATURES:
            self.features = self._features(self._part("features"), wanted)
        if "stack" in self.kinds:
            from trainmon.torch.modules.stacks import Stacks  # few ask for it

            self.stacks = Stacks(self, self._part("stacks"))
        self.fast_paths = FastPaths(self)
        self.find_modules()

    def _features(self, part, kinds: set[str]):
        from trainmon.torch.features.rows import Features  # few ask for them

        return Features(self, part, kinds, self.selection.features)

    def find_modules(self) -> None:
        """Puts hooks on modules that have none yet: all at first, later those that were put in. Takes them
        off those that are not watched any more."""
        wanted = (self.activations, False), (self.features, True), (self.stacks, True)
        parts = [(part, everything) for part, everything in wanted if part is not None]
        if not parts:
            return
        self.tree = Tree(self.roots, self.names)
        found = [(part, self.selected_modules(everything)) for part, everything in parts]
        kept = {id(module): module for _, modules in found for _, _, module in modules}
        for module in self.handles.leave({id(root): root for root in self.roots}, kept):
            self.fast_paths.forget(module)
            for part, _ in parts:
                part.watched.pop(id(module), None)
        for part, modules in found:
            for chunk, name, module in modules:
                part.install(name, module, chunk, self.handles)
        for root in self.roots:
            self.fast_paths.install(root, self.handles)

    def model_changed(self) -> None:
        """Parameters or modules of the model are others: for what keeps some by object."""
        self.selection.model_changed()
        if self.buffers is not None:
            self.buffers.forget()
        for optimizer in self.no_optimizers:
            optimizer.model_changed(self.roots)

    def step_hooks(self, steps) -> tuple:
        return TimedBeforeStep(steps), TimedAfterStep(steps)

    def look_at_wrappers(self) -> None:
        """A framework may have spread the model in another way since watch()."""
        wrappers = self._wrapped()
        if all(new.is_like(old) for new, old in zip(wrappers, self.wrappers)):
            return
        self.detach()
        for new, old in zip(wrappers, self.wrappers, strict=True):
            new.main_grad |= old.main_grad
        self.wrappers = wrappers
        self.has_dtensors = any(isinstance(w, DTensors) for w in wrappers)
        self.parameters = parameters_under(wrappers)
        self.prepare(self.config)
        self.attach()
        names = ", ".join(dict.fromkeys(w.name for w in wrappers))
        self.core.set_note("spread", json.dumps(names))
        self.coverage.say_once(f"the model was put under {names} after watch(): its hooks, too")
        for steps in self.steps:
            steps.attached_anew()

    # --- end -------------------------------------------------------------------------------------

    def remove(self) -> None:
        """Takes every hook off; those in a graph still alive do nothing any more."""
        try:  # as a forward that begins: gradients that a loss scaler skipped reach no step
            self.backward.settle()
            for steps in self.steps:
                steps.forward_begins()
        except Exception as error:
            self.steps_part.failed(error)
        for part in self.parts[: self.lasting]:
            part.on = False
        with self.unseen():
            self.step_handles.remove()
            self._detach_for_good()
        self.backward.settle()
        # The core has its own time for the disk; what a device owes is a matter of milliseconds.
        self.late.drain(self.config["stop_timeout_seconds"] / 4)

    def forget(self) -> None:
        """Lets go of the model and the optimizers, without waiting for the garbage collector."""
        for handles in (self.step_handles, self.handles):  # a signal may have ended remove() early
            handles.remove()
        self.roots, self.wrappers, self.parameters, self.no_optimizers = [], [], [], []
        self.canaries = []
        self.optimizers, self.around, self.on_step = {}, (), None
        self.loss_scale.scaler = None
        self.steps, self.clock, self.control, self.full_steps = [], None, None, None
        self.backward.at_end = self.main_grad_due = None
