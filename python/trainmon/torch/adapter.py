# The PyTorch adapter: puts the hooks on a model and its optimizers, and takes them all off again.
from __future__ import annotations

import hashlib
import json
import platform
import threading

import torch

from trainmon import _core
from trainmon.base.collective_calls import compiled as patterns_of
from trainmon.base.coverage import FIXED_KINDS
from trainmon.base.names import as_text
from trainmon.base.parts import Part
from trainmon.base.rows import ELSEWHERE
from trainmon.base.signals import pass_on
from trainmon.torch.collectives.functions import Collectives
from trainmon.torch.control import Control
from trainmon.torch.coverage import Coverage
from trainmon.torch.features.rows import KINDS as FEATURES
from trainmon.torch.features.rows import Features
from trainmon.torch.full_steps import FullSteps
from trainmon.torch.hooks import dynamo
from trainmon.torch.hooks.backward import Backward, current_task
from trainmon.torch.hooks.forward import BackwardBegins, ForwardBegins, ForwardEnds
from trainmon.torch.hooks.hook import Handles
from trainmon.torch.measuring.late_values import Late
from trainmon.torch.measuring.ops import dtype_name
from trainmon.torch.measuring.own_time import OwnTime
from trainmon.torch.modules import compiled, gradient_edges
from trainmon.torch.modules.activations import Activations
from trainmon.torch.modules.elements import of_output
from trainmon.torch.modules.selection import Selection
from trainmon.torch.modules.stacks import Stacks
from trainmon.torch.parameters.registry import Registry
from trainmon.torch.steps.calls import scaler_of, step_in_state
from trainmon.torch.steps.declared import DeclaredSteps
from trainmon.torch.steps.hooks import TimedAfterStep, TimedBeforeStep
from trainmon.torch.steps.optimizers import (
    NoOptimizer,
    grad_scaler,
    is_around,
    torch_optimizers,
    whole_chain,
)
from trainmon.torch.steps.replaced_optimizers import Replaced
from trainmon.torch.steps.windows import Steps
from trainmon.torch.wrappers.choice import wrapper_of
from trainmon.torch.wrappers.chunks import chunks_of, names_of
from trainmon.torch.wrappers.contract import has_post_accumulate_hook, parameters_under
from trainmon.torch.wrappers.dtensors import DTensors

OF_OPTIMIZERS = {"param_origin", "mg_direction", "update_ratio"}  # read around their step()
IDLE_CLOCK = 1000  # forwards without a step of the clock that are worth a word


class Adapter:
    """Everything between one core Monitor and one model: prepare(), install(), then remove()."""

    def __init__(self, model, optimizers, scaler, selection=None, relay=None):
        """Without optimizers the training loop declares its steps: declare_step()."""
        self.roots = chunks_of(model)
        self.declares = optimizers is None
        if self.declares:
            optimizers, relay = NoOptimizer(self.roots), DeclaredSteps()
        self.optimizers = torch_optimizers(optimizers, self.roots)
        self.scaler = grad_scaler(scaler, optimizers)
        self.around = whole_chain(optimizers)
        self.names = names_of(model)
        self.wrappers = self._wrapped()
        self.looked_again = False  # whether they were found to be the same in the first forward
        self.parameters = parameters_under(self.wrappers)
        self.has_dtensors = any(isinstance(w, DTensors) for w in self.wrappers)
        self.on_step = None  # called with whether the clock's step that ended was recorded
        self.paused = False
        self.attached = False  # whether there are hooks but those of the steps
        self.control = None  # follows RUN/control.json
        self.full_steps: FullSteps | None = None
        self.own_time: OwnTime | None = None  # where there is a budget
        self.was_recorded = False  # the clock's step that ended last
        self.frame: _core.Place | None = None
        self.lock = threading.Lock()
        self.last_frame: _core.Place | None = None
        self.coverage = Coverage(self)
        self.fixed_selection = selection  # None: that of the configuration
        self.relay = relay  # step hooks that are there already
        self.replaced = None  # finds optimizers that take the place of those given
        self.logs_collectives = False  # they are noted, not measured
        self.main_grad_due = None  # what is to be read once the framework has added to it

    def _wrapped(self) -> list:
        wrappers = [wrapper_of(root, self.around) for root in self.roots]
        for wrapper, name in zip(wrappers, self.names):
            wrapper.chunk_name = name
        return wrappers

    # --- facts for the core, before it exists ----------------------------------------------------

    def identity(self) -> dict:
        environment = {"python": platform.python_version(), "torch": torch.__version__}
        environment["spread"] = ", ".join(dict.fromkeys(w.name for w in self.wrappers))
        who = {"model_digest": self._digest(), "environment": environment}
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            who["rank"] = torch.distributed.get_rank()
            who["world_size"] = torch.distributed.get_world_size()
        return who

    def _digest(self) -> str:
        lines = [f"{p.chunk} {p.name} {p.shape}" for p in self.parameters]
        return hashlib.sha256(as_text("\n".join(sorted(lines))).encode()).hexdigest()[:16]

    # --- start -----------------------------------------------------------------------------------

    def prepare(self, config: dict) -> int:
        """Decides what to watch, without touching anything; an estimate of the rows of a step."""
        self.config = config
        if config["clock"] >= len(self.optimizers):
            raise ValueError(
                f"clock is {config['clock']}, but there are only {len(self.optimizers)} optimizers"
            )
        self.kinds = self._kinds(config["kinds"])
        self.wants_state = bool(self.kinds - FIXED_KINDS)
        self.state_before = config["moments_at"] == "before_step"
        patterns_of(config["collective_callers"])  # raises
        self.selection = self.fixed_selection or Selection(config, self.names)
        for parameter in self.parameters:
            parameter.selected = self.selection.parameter(parameter)
        self.selection.check(self.parameters, self.roots, self.coverage.not_covered)
        return self._rows_per_step()

    def _selected_modules(self, everything: bool = False) -> list[tuple]:
        """(chunk, name, module) for activations; all of them for features, which choose."""
        found: list[tuple] = []
        seen: set[int] = set()
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
        if "grad_unreduced" not in asked and not reduces:
            kinds.discard("grad_unreduced")  # nothing is reduced: the values of grad_reduced
        if "cc" in kinds and not torch.distributed.is_available():
            kinds.discard("cc")
            self.coverage.not_covered("cc", "this torch has no torch.distributed")
        for kind in sorted(kinds & OF_OPTIMIZERS) if self.declares else ():
            kinds.discard(kind)
            self.coverage.not_covered(kind, "watch() without an optimizer")
        return kinds

    def _rows_per_step(self) -> int:
        micro = self.config["grad_acc_steps"] or 1
        selected = [p for p in self.parameters if p.selected]
        trained = sum(p.tensor.requires_grad for p in selected)
        rows = trained * micro * len({"grad_unreduced", "grad_micro"} & self.kinds)
        rows += trained * len({"mg_direction"} & self.kinds)
        rows += trained if "grad_reduced" in self.kinds else 0
        rows += len(selected) * len({"param_origin", "param_updated"} & self.kinds)
        rows += trained * 2 if self.wants_state else 0
        if per_module := 2 * len({"actv", "actv_grad"} & self.kinds):
            rows += len(self._selected_modules()) * per_module * micro
        if wanted := self.kinds & FEATURES:
            features = Features(self, None, wanted, self.selection.features)
            rows += features.rows_per_step(self._selected_modules(everything=True), micro)
        return rows

    def wants(self, kind: str) -> bool:
        return kind in self.kinds or "moments" in self.kinds

    def install(self, core) -> None:
        self.core, self.handle = core, core.handle
        config = self.config
        forced = self.is_elsewhere = config["backend"] == "ops"
        self.observe = _elsewhere if forced else _core.observe
        self.observe_at = _elsewhere if forced else _core.observe_at
        self.sweep = _all_elsewhere if forced else _core.sweep
        self.parts: list[Part] = []
        self.failed: set[str] = set()  # parts that failed before hooks were taken off
        self.steps_part, self.sweeps_part = self._part("steps"), self._part("sweeps")
        self.step_handles, self.handles = Handles(), Handles()
        follows = self.selection.names_as_compiled and dynamo.is_supported()
        self.points = compiled.Points() if follows else None
        self.registry = None
        self.forwards = 0
        self.late = Late(core, Part(core, "late values"), config["eps"])
        self.backward = Backward(self._part("backward"), self._backward_ended)
        self.lasting = len(self.parts)
        self.activations = self.features = self.stacks = self.collectives = None
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
            if not isinstance(root, torch.jit.ScriptModule):
                hook = self.timed(ForwardBegins(self))
                self.handles.hook(root, "register_forward_pre_hook", hook)
                self.handles.hook(root, "register_forward_hook", self.timed(ForwardEnds(self)))
        self._install_modules()
        if "cc" in self.kinds:
            self._install_collectives()
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
        if self.collectives is not None:
            self.collectives.remove()
        if self.points is None:
            self.handles.remove()
        else:
            self.points.detach()
            self.handles.remove(stays=self._is_compiled)
        if self.registry is not None:
            self.registry.remove()
        for wrapper in self.wrappers:
            wrapper.unhooked()
        self.activations = self.features = self.stacks = self.collectives = self.registry = None
        self.frame = self.last_frame = None
        self.parameters = []  # they may be replaced while nobody looks
        for steps in self.steps:
            steps.detached()

    def _is_compiled(self, module) -> bool:
        """A root's own hooks may be in the same code as those of its modules."""
        if any(module is root for root in self.roots):
            return self.points.any_compiled()
        return self.points.is_compiled(module)

    def _detach_for_good(self) -> None:
        self.detach()
        self.handles.remove()
        if self.points is not None:
            self.points.remove()

    def follow_control(self, allowed, say, changed) -> None:
        """From now on; what RUN/control.json asks for already, at once."""
        self.control = Control(self, allowed, say, changed)
        self.control.begin()
        self.full_steps = FullSteps(self, say)

    def _install_modules(self) -> None:
        values, gradients = "actv" in self.kinds, "actv_grad" in self.kinds
        if values or gradients:
            inputs = gradients and self.config["input_grads"]
            if inputs and gradient_edges.sequence_number is None:
                self.coverage.not_covered("actv_grad of inputs", gradient_edges.NOT_NUMBERED)
                inputs = False
            part = self._part("activations")
            self.activations = Activations(self, part, values, gradients, inputs)
            self.clock.refresh()
        if wanted := self.kinds & FEATURES:
            part = self._part("features")
            self.features = Features(self, part, wanted, self.selection.features)
        if "stack" in self.kinds:
            self.stacks = Stacks(self, self._part("stacks"))
        self.find_modules()

    def _install_collectives(self) -> None:
        config = self.config
        self.collectives = Collectives(
            self,
            self._part("collectives"),
            inputs=config["collective_inputs"],
            callers=config["collective_callers"],
            log_only=self.logs_collectives,
        )
        self.collectives.install(everything=config["collectives"] == "all")

    def find_modules(self) -> None:
        """Puts hooks on modules that have none yet: all at first, later those that were put in."""
        if self.activations is not None:
            for chunk, name, module in self._selected_modules():
                self.activations.install(name, module, chunk, self.handles)
        for part in (self.features, self.stacks):
            if part is not None:
                for chunk, name, module in self._selected_modules(everything=True):
                    part.install(name, module, chunk, self.handles)

    def timed(self, hook):
        return hook if self.own_time is None else self.own_time.hook(hook)

    def step_hooks(self, steps) -> tuple:
        return TimedBeforeStep(steps), TimedAfterStep(steps)

    def activation_series(self, kind, name, element, chunk, tensor) -> int:
        return self.add_series(
            kind=kind,
            name=name,
            element=element,
            chunk=chunk,
            optimizer=self.clock.index,
            dtype=dtype_name(tensor),
            replication=self.wrappers[chunk].placement(kind, None).replication,
        )

    def add_series(self, **arguments) -> int:
        for key in ("kind", "name", "element"):
            if key in arguments:
                arguments[key] = as_text(arguments[key])
        if "chunk" in arguments and self.fixed_selection is None:  # faces count those of their rank
            chunk = arguments["chunk"]
            arguments["chunk"] = self.wrappers[chunk].chunk_number(chunk)
        try:
            return self.core.add_series(**arguments)
        except ValueError as error:  # a dtype that is refused, by name, when it is looked at
            pass_on(error)
            return self.core.add_series(**{**arguments, "dtype": "float32"})

    # --- what happens while training -------------------------------------------------------------

    def backward_of(self, optimizer: int, tensor=None):
        """A hook of a backward runs for a parameter of this optimizer, `tensor` if it keeps .grad:
        its steps, which know now that one is under way."""
        backward, steps = self.backward, self.steps[optimizer]
        now = current_task()
        if backward.now != now:
            backward.enter(now)
        if steps.task != backward.task:
            steps.backward_begins(tensor)
        return steps

    def row(self, series: int, tensor, window: int, accum: int, call: int, flags: int) -> None:
        """A row at this place, measured by the core or, of another device, by operations."""
        seen = self.observe_at(self.handle, series, tensor, window, accum, call, flags)
        if seen == ELSEWHERE:
            self.late.add(series, tensor, window, accum, call, flags)

    def read_main_grad(self) -> None:
        """What is due since InMainGrad was called, which the framework has added to by now."""
        due, self.main_grad_due = self.main_grad_due, None
        if due is not None:
            series, tensor, place = due
            self.row(series, tensor.main_grad, *place)

    def open_frame(self) -> _core.Place:
        """The place of the forward that begins now, or is under way."""
        self.backward.settle()
        for steps in self.steps:
            steps.forward_begins()
        clock = self.clock
        window, accum = clock.window, self.core.next_accum(clock.index)
        frame = self.last_frame  # still the place when only another optimizer had a backward
        if frame is None or (frame.window, frame.accum, frame.recording) != (
            window,
            accum,
            clock.recording,
        ):
            frame = self.last_frame = _core.Place(window, accum, clock.recording, clock.flags)
        self.frame = frame
        return frame

    def _look_again(self) -> None:
        """In the first forward: a framework may have taken the model over since watch()."""
        self.looked_again = True
        self._look_at_wrappers()
        for steps in self.steps:
            steps.find_start()

    def _look_at_wrappers(self) -> None:
        wrappers = self._wrapped()
        if [type(w) for w in wrappers] == [type(w) for w in self.wrappers]:
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

    def forward_begins(self) -> None:
        if not self.looked_again:
            self._look_again()
        self.registry.look_for_loss()
        if self.frame is None:
            self.open_frame()
        if self.activations is not None:
            self.activations.forward_begins()
        self.forwards += 1
        if self.forwards == IDLE_CLOCK and self.declares:
            self.coverage.steps_undeclared(f"the model was called {IDLE_CLOCK} times")
        elif self.forwards == IDLE_CLOCK:
            self.coverage.say_once(
                f"the optimizer that activations follow (clock={self.clock.index}) has not stepped "
                f"for {IDLE_CLOCK} forwards: `clock` names another one, if it was not replaced"
            )

    def forward_ends(self, output) -> None:
        if torch.is_grad_enabled():
            for _, tensor in of_output(output):
                if tensor.requires_grad and tensor.grad_fn is not None:
                    tensor.register_hook(self.timed(BackwardBegins(self)))
        self.seal("forward_end")

    def _backward_ended(self) -> None:
        self.timed(self._end_backward)()

    def _end_backward(self) -> None:
        self.read_main_grad()
        for steps in self.steps:
            steps.backward_ended()
        if self.activations is not None:
            self.activations.backward_ended()
        self.seal("backward_end")

    def declare_step(self, gradients) -> None:
        """The loop of a monitor without an optimizer says that a step is over."""
        self.relay.end(gradients)

    def optimizer_changed(self, steps, optimizer) -> None:
        """It steps in the place of the one before, which is not kept: its state is large."""
        before = steps.optimizer
        name = list(self.optimizers)[steps.index]
        self.optimizers[name] = optimizer
        kept = [one for one in self.around if not is_around(one, before) and one is not before]
        self.around = (*kept, *whole_chain(optimizer))
        for wrapper in self.wrappers:
            wrapper.optimizers = self.around

    def window_opened(self, steps) -> None:
        if steps is self.clock:
            self.frame = None
            self.forwards = 0

    def window_of_scalars(self) -> int:
        """The clock's window whose forward began last: not one that has just opened."""
        clock = self.clock
        fresh = self.frame is None and not clock.pending
        return clock.window - 1 if fresh and clock.window else clock.window

    def window_ends(self, steps, skipped: bool) -> None:
        if self.full_steps is not None:
            self.full_steps.window_ends(steps, skipped)

    def logged(self, value: float) -> None:
        if self.full_steps is not None:
            self.full_steps.logged(value)

    def step_ended(self, steps) -> None:
        """Before the window advances."""
        if steps is not self.clock:
            return
        self.was_recorded = steps.recording
        if self.on_step is not None:
            self.on_step(steps.recording)

    def step_over(self, steps) -> None:
        """Between two windows."""
        if steps is not self.clock:
            return
        if self.own_time is not None:
            if self.activations is not None:
                self.own_time.seconds += self.activations.taken_seconds()
            if self.own_time.step_over(self.was_recorded):
                steps.refresh()
        if self.full_steps is not None:
            self.full_steps.look()
        if self.control is not None:
            self.control.look()

    def seal(self, moment: str) -> None:
        try:
            if self.late.part.on:
                self.late.seal()
        except Exception as error:
            self.late.part.failed(error)
        self.core.seal(moment)

    def scales(self) -> bool:
        """Whether losses are scaled, by somebody who is known."""
        return self.scaler is not None or any(w.loss_scale() is not None for w in self.wrappers)

    def scale(self):
        """The loss scale: a number, or a tensor on a device that must not be waited for."""
        if self.scaler is None:
            scales = (wrapper.loss_scale() for wrapper in self.wrappers)
            return next((scale for scale in scales if scale is not None), 1.0)
        scale = getattr(self.scaler, "_get_scale_async", lambda: None)()
        if scale is None:
            return 1.0  # nothing was scaled yet
        return float(scale) if scale.device.type == "cpu" else scale.clone()

    def look_for_scaler(self, caller) -> None:
        """`caller` runs a step(): for a GradScaler that watch() was not shown."""
        if self.scales():
            return
        found = scaler_of(caller)
        self.scaler = None if found is None else grad_scaler(found)
        if self.scaler is not None:
            for steps in self.steps:
                steps.scales()

    def steps_taken(self, optimizer) -> int:
        taken = (wrapper.steps_taken() for wrapper in self.wrappers)
        return next((count for count in taken if count is not None), step_in_state(optimizer))

    def turn(self, optimizer) -> tuple[int, int]:
        """Which of how many calls of its step() that are one step of training is beginning."""
        turns = (wrapper.turn(optimizer) for wrapper in self.wrappers)
        return next((turn for turn in turns if turn != (0, 1)), (0, 1))

    def skipped_step(self) -> bool:
        return sum(wrapper.skipped_step() for wrapper in self.wrappers) > 0

    def steps_failed(self) -> None:
        """Nothing can be recorded any more: no row would know its step."""
        for steps in self.steps:
            steps.recording = False
        if self.activations is not None:
            self.activations.live = False

    def set_paused(self, paused: bool) -> None:
        self.paused = paused
        for steps in self.steps:
            steps.refresh()
        self.frame = None

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
        self.step_handles.remove()
        self._detach_for_good()
        self.backward.settle()
        # The core has its own time for the disk; what a device owes is a matter of milliseconds.
        self.late.drain(self.config["stop_timeout_seconds"] / 4)

    def forget(self) -> None:
        """Lets go of the model and the optimizers, without waiting for the garbage collector."""
        self.roots, self.wrappers, self.parameters = [], [], []
        self.optimizers, self.around, self.scaler, self.on_step = {}, (), None, None
        self.steps, self.clock, self.control, self.full_steps = [], None, None, None
        self.backward.at_end = self.main_grad_due = None


def _elsewhere(handle, series, tensor, *_) -> int:
    """observe() of the setting backend="ops": nothing is measured by the core."""
    return 1 if tensor is None else ELSEWHERE


def _all_elsewhere(handle, series, tensors, attribute, flags=0, scale=None):
    values = tensors if attribute is None else [getattr(t, attribute) for t in tensors]
    return [i for i, value in enumerate(values) if value is not None]
