# The PyTorch adapter: puts the hooks on a model and its optimizers, and takes them all off again.
from __future__ import annotations

import hashlib
import json
import platform
import threading

import torch
from torch import nn

from trainmon import _core
from trainmon.torch import given
from trainmon.torch.activations import Activations, Frame
from trainmon.torch.backward import Backward
from trainmon.torch.contract import (
    Parameter,
    dtype_name,
    has_post_accumulate_hook,
    is_inner,
    modules_of,
    parameters_of,
    wrapper_of,
)
from trainmon.torch.elements import of_output
from trainmon.torch.forward import BackwardBegins, ForwardBegins, ForwardEnds
from trainmon.torch.hooks import Handles, Part, log
from trainmon.torch.late import Late
from trainmon.torch.parameters import (
    ELSEWHERE,
    NO_SERIES,
    Accumulated,
    Reduced,
    Sweeps,
    series_arguments,
)
from trainmon.torch.steps import Steps

IDLE_CLOCK = 1000  # forwards without a step of the clock that are worth a word
MOST_SAID = 200
ORDER = ("grad_unreduced", "grad_reduced", "param_origin", "param_updated", "actv", "actv_grad")
FIXED_KINDS = frozenset((*ORDER, "cc", "mg_direction"))


class Adapter:
    """Everything between one core Monitor and one model: prepare(), install(), then remove()."""

    def __init__(self, model, optimizers, scaler):
        self.roots = given.chunks(model)
        self.optimizers = given.optimizers(optimizers)
        self.scaler = given.scaler(scaler)
        self.wrappers = [wrapper_of(root) for root in self.roots]
        self.parameters = parameters_of(self.roots)
        self.on_step = None  # called with whether the clock's step that ended was recorded
        self.paused = False
        self.frame: Frame | None = None
        self.lock = threading.Lock()
        self.last_frame: Frame | None = None
        self.core = None
        self.said: set[str] = set()
        self.said_not_covered: set[tuple[str, str]] = set()

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
        lines = [f"{p.chunk} {p.name} {tuple(p.tensor.shape)}" for p in self.parameters]
        return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]

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
        for parameter in self.parameters:
            parameter.selected = any(map(self._selected, (parameter.name, *parameter.aliases)))
        self.modules = []  # (chunk, name, module) for activations
        if self.kinds & {"actv", "actv_grad"}:
            seen: set[int] = set()
            for chunk, root in enumerate(self.roots):
                for name, module in self._callable_modules(root, seen):
                    if self._selected(name):
                        self.modules.append((chunk, name, module))
        return self._rows_per_step()

    def _kinds(self, asked: list[str]) -> set[str]:
        kinds = set(_core.expand_kinds(asked))
        if "grad_unreduced" in kinds and not has_post_accumulate_hook():
            kinds.discard("grad_unreduced")
            self.not_covered("grad_unreduced", "needs torch 2.1 or newer")
        reduces = any(wrapper.reduces() for wrapper in self.wrappers)
        if "grad_unreduced" not in asked and not reduces:
            kinds.discard("grad_unreduced")  # nothing is reduced: the values of grad_reduced
        for kind in sorted(kinds & {"cc", "mg_direction"}):
            kinds.discard(kind)
            self.not_covered(kind, "not yet")
        return kinds

    def _rows_per_step(self) -> int:
        micro = self.config["grad_acc_steps"] or 1
        selected = [p for p in self.parameters if p.selected]
        trained = sum(p.tensor.requires_grad for p in selected)
        rows = trained * micro if "grad_unreduced" in self.kinds else 0
        rows += trained if "grad_reduced" in self.kinds else 0
        rows += len(selected) * len({"param_origin", "param_updated"} & self.kinds)
        rows += trained * 2 if self.wants_state else 0
        per_module = 2 * len({"actv", "actv_grad"} & self.kinds)
        return rows + len(self.modules) * per_module * micro

    def install(self, core) -> None:
        self.core, self.handle = core, core.handle
        config = self.config
        forced = config["backend"] == "ops"
        self.observe = _elsewhere if forced else _core.observe
        self.observe_at = _elsewhere if forced else _core.observe_at
        self.sweep = _all_elsewhere if forced else _core.sweep
        self.steps_part, self.gradients = Part(core, "steps"), Part(core, "gradients")
        self.sweeps_part = Part(core, "sweeps")
        self.root_part = Part(core, "forward")
        self.handles = Handles()
        self.hooked: dict[int, tuple] = {}  # id of tensor -> (tensor, hook)
        self.forwards = 0
        self.late = Late(core, Part(core, "late values"), config["eps"])
        self.backward = Backward(Part(core, "backward"), self._backward_ended)
        self.activations = None
        self.steps: list[Steps] = []
        self.clock = None
        for optimizer in self.optimizers.values():
            self.steps.append(Steps(self, optimizer, config["start_iteration"]))
        self.clock = self.steps[config["clock"]]
        try:
            self._own(self.parameters)
            self._install_parameters()
            for steps in self.steps:
                steps.install(self.handles)
            for root in self.roots:
                if isinstance(root, torch.jit.ScriptModule):
                    continue
                self.handles.add(root.register_forward_pre_hook(ForwardBegins(self)))
                self.handles.add(root.register_forward_hook(ForwardEnds(self)))
            self._install_activations()
            self._tell()
        except BaseException:
            self.handles.remove()
            raise

    def wants(self, kind: str) -> bool:
        return kind in self.kinds or "moments" in self.kinds

    def _install_parameters(self) -> None:
        for chunk, wrapper in enumerate(self.wrappers):
            mine = [p for p in self.parameters if p.chunk == chunk]
            if has_post_accumulate_hook():
                wrapper.hook_gradients(mine, self._attach, self)
        for steps in self.steps:
            mine = [p for p in self.parameters if p.optimizer == steps.index]
            steps.sweeps = Sweeps(self, steps, mine)

    def _own(self, parameters: list[Parameter]) -> None:
        owners = {
            id(tensor): steps.index
            for steps in self.steps
            for group in steps.optimizer.param_groups
            for tensor in group["params"]
        }
        for parameter in parameters:
            owner = owners.get(id(parameter.tensor))
            parameter.owned = owner is not None
            parameter.optimizer = self.clock.index if owner is None else owner
            parameter.selected = any(map(self._selected, (parameter.name, *parameter.aliases)))

    def _selected(self, name: str) -> bool:
        return _core.name_selected(name, self.config["include"], self.config["exclude"])

    def _attach(self, parameter: Parameter, tensor) -> bool:
        """Hooks the tensor that a parameter's gradient accumulates into."""
        if id(tensor) not in self.hooked:
            if not tensor.requires_grad:
                return False
            steps, series = (
                self.steps[parameter.optimizer],
                self._unreduced_series(parameter, tensor),
            )
            hook = Accumulated(self, steps, series, keeps=tensor is parameter.tensor)
            self.handles.after_accumulation(tensor, hook)
            self.hooked[id(tensor)] = tensor, hook
        parameter.hooked = True
        return True

    def _unreduced_series(self, parameter: Parameter, tensor) -> int:
        if parameter.selected and "grad_unreduced" in self.kinds:
            return self.series_of(parameter, "grad_unreduced", tensor)
        return NO_SERIES

    def note_reduced(self, parameter: Parameter) -> None:
        """For wrappers whose reduced gradient appears on another tensor than the unreduced one."""
        if parameter.tensor.requires_grad and id(parameter.tensor) not in self.hooked:
            hook = Reduced(self.gradients, self.steps[parameter.optimizer])
            self.handles.after_accumulation(parameter.tensor, hook)
            self.hooked[id(parameter.tensor)] = parameter.tensor, hook

    def find_parameters_again(self) -> None:
        """Parameters were replaced or thawed: hooks follow the names."""
        before = {(p.chunk, p.name): p for p in self.parameters}
        self.parameters = parameters_of(self.roots)
        current = {id(p.tensor) for p in self.parameters}
        replaced = sum(id(p.tensor) not in current for p in before.values())
        self._own(self.parameters)
        for parameter in self.parameters:
            known = before.get((parameter.chunk, parameter.name))
            if known is not None and (known.tensor.shape, known.optimizer) == (
                parameter.tensor.shape,
                parameter.optimizer,
            ):
                parameter.series = known.series
        self._install_parameters()
        by_tensor = {id(p.tensor): p for p in self.parameters}
        for tensor, hook in self.hooked.values():
            if isinstance(hook, Accumulated) and hook.keeps:
                parameter = by_tensor.get(id(tensor))
                if parameter is None:
                    hook.series = NO_SERIES
                else:
                    hook.steps = self.steps[parameter.optimizer]
                    hook.series = self._unreduced_series(parameter, tensor)
        what = f"{replaced} replaced" if replaced else "thawed, frozen or given to an optimizer"
        self.say_once(f"parameters changed after watch() ({what}): hooks were put on again")

    def series_of(self, parameter: Parameter, kind: str, tensor=None) -> int:
        known = parameter.series.get(kind)
        if known is None:
            placement = self.wrappers[parameter.chunk].placement(kind, parameter.tensor)
            arguments = series_arguments(
                parameter, kind, placement, parameter.tensor if tensor is None else tensor
            )
            known = parameter.series[kind] = self._add_series(arguments)
        return known

    def activation_series(self, kind, name, element, chunk, tensor) -> int:
        placement = self.wrappers[chunk].placement(kind, None)
        return self._add_series(
            {
                "kind": kind,
                "name": name,
                "element": element,
                "chunk": chunk,
                "optimizer": self.clock.index,
                "dtype": dtype_name(tensor),
                "replication": placement.replication,
            }
        )

    def _add_series(self, arguments: dict) -> int:
        try:
            return self.core.add_series(**arguments)
        except ValueError:  # a dtype that is refused, by name, when it is looked at
            return self.core.add_series(**{**arguments, "dtype": "float32"})

    # --- modules ---------------------------------------------------------------------------------

    def _install_activations(self) -> None:
        values, gradients = "actv" in self.kinds, "actv_grad" in self.kinds
        if not (values or gradients):
            return
        inputs = gradients and self.config["input_grads"]
        part = Part(self.core, "activations")
        self.activations = Activations(self, part, values, gradients, inputs)
        self.clock.refresh()
        for chunk, name, module in self.modules:
            self.activations.install(name, module, chunk, self.handles)

    def _callable_modules(self, root: nn.Module, seen: set[int]):
        """Every module whose hooks will be called, once (`seen`), under its first name."""
        inside = set()
        for name, module in modules_of(root):
            if isinstance(module, torch.jit.ScriptModule) and id(module) not in inside:
                inside.update(id(m) for m in module.modules())
                self.not_covered(f"actv of scripted {name or 'model'}", "torch.jit takes no hooks")
            compiled = getattr(module, "_orig_mod", None)
            if compiled is None and getattr(module, "_compiled_call_impl", None) is not None:
                compiled = module
            if compiled is not None and id(compiled) not in inside:
                inside.update(id(m) for m in compiled.modules())
                self.not_covered(f"actv inside compiled {name or 'model'}", "torch.compile")
        for name, module in modules_of(root):
            if id(module) in inside or id(module) in seen:
                continue
            seen.add(id(module))
            wraps = any(is_inner(module, k) for k in set(module._modules.keys()) - {"_orig_mod"})
            if not wraps and _has_forward(module):
                yield name, module

    # --- what happens while training -------------------------------------------------------------

    def open_frame(self) -> Frame:
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
            frame = self.last_frame = Frame(window, accum, clock.recording, clock.flags)
        self.frame = frame
        return frame

    def forward_begins(self) -> None:
        if self.frame is None:
            self.open_frame()
        self.forwards += 1
        if self.forwards == IDLE_CLOCK:
            self.say_once(
                f"the optimizer that activations follow (clock={self.clock.index}) has not stepped "
                f"for {IDLE_CLOCK} forwards: `clock` names another one"
            )

    def forward_ends(self, output) -> None:
        if torch.is_grad_enabled():
            for _, tensor in of_output(output):
                if tensor.requires_grad and tensor.grad_fn is not None:
                    tensor.register_hook(BackwardBegins(self))
        self.seal("forward_end")

    def _backward_ended(self) -> None:
        for steps in self.steps:
            steps.backward_ended()
        if self.activations is not None:
            self.activations.backward_ended()
        self.seal("backward_end")

    def window_opened(self, steps) -> None:
        if steps is self.clock:
            self.frame = None
            self.forwards = 0
            if self.activations is not None:
                self.activations.window_opened()

    def window_of_scalars(self) -> int:
        """The clock's window whose forward began last: not one that has just opened."""
        clock = self.clock
        fresh = self.frame is None and not clock.pending
        return clock.window - 1 if fresh and clock.window else clock.window

    def step_ended(self, steps) -> None:
        """Before the window advances."""
        if steps is self.clock and self.on_step is not None:
            self.on_step(steps.recording)

    def seal(self, moment: str) -> None:
        try:
            if self.late.part.on:
                self.late.seal()
        except Exception as error:
            self.late.part.failed(error)
        self.core.seal(moment)

    def scale(self):
        """The loss scale: a number, or a tensor on a device that must not be waited for."""
        if self.scaler is None:
            return 1.0
        scale = getattr(self.scaler, "_get_scale_async", lambda: None)()
        if scale is None:
            return 1.0  # nothing was scaled yet
        return float(scale) if scale.device.type == "cpu" else scale.clone()

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

    # --- what is covered, and what is said -------------------------------------------------------

    def cover(self, kind: str) -> None:
        self.core.set_covered(kind)

    def not_covered(self, what: str, why: str) -> None:
        if (what, why) in self.said_not_covered or len(self.said_not_covered) >= MOST_SAID:
            return
        self.said_not_covered.add((what, why))
        if self.core is not None:
            self.core.set_not_covered(what, why)

    def say_once(self, text: str) -> None:
        if text not in self.said:
            self.said.add(text)
            log.warning("trainmon: %s", text)

    def _tell(self) -> None:
        for kind in sorted(self.kinds & FIXED_KINDS):
            self.cover(kind)
        for what, why in sorted(self.said_not_covered):
            self.core.set_not_covered(what, why)
        aliases = {p.name: p.aliases for p in self.parameters if p.aliases}
        if aliases:
            self.core.set_note("aliases", json.dumps(aliases))
        if len(self.optimizers) > 1:
            self.core.set_note("optimizers", json.dumps(list(self.optimizers)))
        frozen = [p.name for p in self.parameters if not p.tensor.requires_grad]
        if frozen:
            self.core.set_note("frozen", json.dumps(frozen))
        known = {id(p.tensor) for p in self.parameters}
        foreign = sum(
            id(t) not in known
            for steps in self.steps
            for group in steps.optimizer.param_groups
            for t in group["params"]
        )
        if foreign:
            self.not_covered(f"{foreign} parameters of the optimizers", "not in the model given")

    def covered(self) -> list[str]:
        """For the start line."""
        names = [k for k in ORDER if k in self.kinds]
        return (
            names
            + (["moments"] if self.wants_state and "moments" in self.kinds else [])
            + sorted(self.kinds - FIXED_KINDS - {"moments"})
        )

    def why_nothing(self) -> str:
        """The likeliest reason that a step gave no row."""
        if not any(p.selected for p in self.parameters):
            return "include and exclude leave no parameter"
        if self.paused:
            return "it is paused"
        if not any(self.core.window(steps.index) for steps in self.steps):
            return "no optimizer has stepped"
        if not any(self.core.step(steps.index) > self.config["start_step"] for steps in self.steps):
            return f"start_step={self.config['start_step']} was not reached"
        owned = [p for p in self.parameters if p.owned and p.selected]
        if not owned:
            return "none of the optimizer's parameters is in the model given"
        if "grad_reduced" in self.kinds and all(p.tensor.grad is None for p in owned):
            return "no watched parameter had a gradient when the optimizer stepped"
        parts = [p.name for p in (self.steps_part, self.gradients, self.backward.part) if not p.on]
        return f"{', '.join(parts)} switched off after an error" if parts else "no reason found"

    def first_step_recorded(self) -> None:
        """Says what gave nothing, now that all should have."""
        if "grad_unreduced" in self.kinds:
            never = [
                p.name
                for p in self.parameters
                if p.selected and p.tensor.requires_grad and not p.hooked
            ]
            if never:
                self.not_covered(f"grad_unreduced of {_listed(never)}", "never seen in a forward")
        never = [w.name for w in self.activations.watched if not w.ever] if self.activations else []
        if never:
            why = "no call was seen in the first step: unused, or inside torch.compile"
            self.not_covered(f"actv of {_listed(never)}", why)

    # --- end -------------------------------------------------------------------------------------

    def remove(self) -> None:
        """Takes every hook off; those in a graph still alive do nothing any more."""
        parts = [self.steps_part, self.sweeps_part, self.gradients, self.backward.part]
        parts.append(self.root_part)
        if self.activations is not None:
            parts.append(self.activations.part)
            self.activations.release_leaves()
        for part in parts:
            part.on = False
        self.handles.remove()
        self.hooked.clear()
        self.backward.settle()
        self.late.drain(self.config["stop_timeout_seconds"])

    def forget(self) -> None:
        """Lets go of the model and the optimizers, without waiting for the garbage collector."""
        for steps in self.steps:
            steps.sweeps = None
        self.roots, self.wrappers, self.parameters, self.modules = [], [], [], []
        self.optimizers, self.scaler, self.on_step = {}, None, None
        self.steps, self.clock, self.activations, self.frame = [], None, None, None
        self.backward.at_end = None


def _elsewhere(handle, series, tensor, *_) -> int:
    """observe() of the setting backend="ops": nothing is measured by the core."""
    return 1 if tensor is None else ELSEWHERE


def _all_elsewhere(handle, series, tensors, attribute, flags=0):
    values = tensors if attribute is None else [getattr(t, attribute) for t in tensors]
    return [i for i, value in enumerate(values) if value is not None]


def _listed(names: list[str]) -> str:
    text = ", ".join(name or "model" for name in names[:10])
    return f"{text} and {len(names) - 10} more" if len(names) > 10 else text


def _has_forward(module: nn.Module) -> bool:
    """Whether it can be called at all: ModuleList and the like cannot."""
    forward = getattr(type(module), "forward", None)  # None: a scripted module
    return forward is not nn.Module.forward or "forward" in vars(module)
