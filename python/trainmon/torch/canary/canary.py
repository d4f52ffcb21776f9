# The canary: the model's first batch goes through a twin of it again and again. Rows of kind canary_actv
# and canary_grad.
"""Weights and random numbers of the twin are always the same. So what it gives is the same bit for bit, while
nobody changes what the model computes."""

from __future__ import annotations

import contextlib
import sys
import threading

import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from trainmon.base.signals import pass_on
from trainmon.torch.canary.kept import are_same_bits
from trainmon.torch.canary.random_states import RandomStates, random_as
from trainmon.torch.canary.stand_ins import CannotTwin
from trainmon.torch.canary.surroundings import Surroundings, is_of_library
from trainmon.torch.canary.twin import Twin, weights_of
from trainmon.torch.collectives.dispatch_mode import SPACES
from trainmon.torch.hooks.backward import IDLE, current_task
from trainmon.torch.hooks.dynamo import compiling
from trainmon.torch.hooks.hook import Hook
from trainmon.torch.measuring.ops import dtype_name
from trainmon.torch.modules.elements import of_output
from trainmon.torch.wrappers.plain import Plain

# Windows of a start before the twin takes its weights. Lazy ones are there then, and few are 0.
SETTLED = 4
_CONSTANTS = (
    int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size,
)  # fmt: skip
_HOOKS_OF_ALL = (
    "_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_pre_hooks", "_global_backward_hooks",
)  # fmt: skip


class NoCollectives(TorchDispatchMode):
    """A block in which other ranks are not waited for."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if getattr(func, "namespace", None) in SPACES:
            raise CannotTwin("its forward calls collectives")
        return func(*args, **(kwargs or {}))


def in_the_way() -> str:
    """What of the program would take part in a canary. "" where nothing does."""
    modes = [
        *torch.overrides._get_current_function_mode_stack(),
        *torch.utils._python_dispatch._get_current_dispatch_mode_stack(),
    ]
    for mode in modes:
        # One of torch says on which device tensors are made.
        if type(mode).__name__ != "DeviceContext" and not type(mode).__module__.startswith(
            "trainmon."
        ):
            return f"{type(mode).__name__} is on around the forward"
    hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if hooks is not None and hooks(True):
        return "saved_tensors_hooks is on around the forward"
    if torch._C._autograd._profiler_enabled():
        return "a profiler is on around the forward"
    functorch = getattr(torch._C, "_functorch", None)
    if functorch is not None and functorch.peek_interpreter_stack() is not None:
        return "torch.func is on around the forward"
    running = _running_beside()
    if running:
        return f"another thread runs {running}"
    of_all = torch.nn.modules.module
    if any(vars(of_all).get(name) for name in _HOOKS_OF_ALL):
        return "hooks of all modules are registered"
    return ""


def _running_beside() -> str:
    """A function of the program that another thread is in: it may draw random numbers, or change what is kept."""
    own = threading.get_ident()
    for thread, frame in sys._current_frames().items():
        while frame is not None and thread != own:
            if not is_of_library(frame.f_globals.get("__name__")):
                return frame.f_code.co_name
            frame = frame.f_back
    return ""


def _copied(value):
    """Of an argument of the model, which may change what it is given."""
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if not isinstance(value, _CONSTANTS):
        raise CannotTwin(f"it is given a {type(value).__name__}")
    return value


class Canary:
    """Of one model chunk. What fails ends it, and is said."""

    def __init__(self, adapter, chunk: int):
        self.adapter, self.chunk = adapter, chunk
        self.inputs = self.weights = self.states = self.surroundings = None
        self.first = self.last = None  # windows: of the first forward, and of the newest canary
        self.gives_gradients, self.had_gradients = True, False
        self.series: dict[tuple, int] = {}
        self.calls: dict[str, int] = {}  # of modules, in the canary under way
        self.is_over = False
        self.said: set[str] = set()  # why there was none in a forward

    @property
    def root(self):
        return self.adapter.roots[self.chunk]

    def install(self, part, handles) -> None:
        self.part = part
        wrapper = self.adapter.wrappers[self.chunk]
        if self.is_over:
            return
        if not isinstance(wrapper, Plain):
            self.end(f"the model is under {wrapper.name}")
        elif isinstance(self.root, torch.jit.ScriptModule):
            self.end("it is a ScriptModule")
        else:
            hook = self.adapter.timed(BeforeForward(self))
            handles.hook(self.root, "register_forward_pre_hook", hook, with_kwargs=True)

    def end(self, why: str) -> None:
        self.is_over = True
        self.inputs = self.weights = self.states = self.surroundings = None
        self.adapter.coverage.not_covered("canary of the model", why)

    def is_due(self) -> bool:
        window = self.adapter.clock.window
        if self.first is None:
            self.first = window
        if self.last is None:
            return window >= self.first + SETTLED
        return window >= self.last + self.adapter.config["canary_every"]

    def forward_begins(self, args: tuple, kwargs: dict) -> None:
        place = self.adapter.clock.frame or self.adapter.open_frame()
        if not place.recording or not self.is_due():
            return
        self.last = place.window
        why = in_the_way()
        if why:
            if why not in self.said:
                self.said.add(why)
                self.adapter.coverage.not_covered("canary of some forwards", why)
            return
        try:
            if self.inputs is None:
                self._keep(args, kwargs)
            self._run(place)
        except CannotTwin as why:
            self.end(str(why))
        except Exception as error:
            pass_on(error)
            self.end(f"its twin raised {type(error).__name__}: {error}")

    def _keep(self, args: tuple, kwargs: dict) -> None:
        self.inputs = _pytree.tree_map(_copied, (args, kwargs))
        self.weights = weights_of(self.root)

    def _run(self, place) -> None:
        once = self._once(None) if self.states is None else None
        if self.is_over:
            return
        again = self._once(place)
        if once is not None and not all(map(are_same_bits, once, again)):
            self.end("its forward returns something else for the same batch at once")

    def _once(self, place) -> list[Tensor]:
        """What the twin returns. Without a place there are no rows."""
        twin, kinds = Twin(self.root, self.weights), self.adapter.kinds
        kept = self._around(twin).keep()
        generators = {**twin.stand_ins.generators, **kept.generators}
        if self.states is None:
            devices = {str(copy.device) for _, copy in self.weights.values() if copy.is_cuda}
            self.states = RandomStates(sorted(devices), generators)
        self.calls.clear()
        for name, module in self._watched(twin) if place and "canary_actv" in kinds else ():
            module.register_forward_hook(OnOutput(self, name, place))
        args, kwargs = _pytree.tree_map(_copied, self.inputs)
        try:
            with random_as(self.states, generators), self._alone():
                output = twin.root(*args, **kwargs)
                if self.gives_gradients and "canary_grad" in kinds:
                    self._read_gradients(output, place)
                return [tensor.detach() for _, tensor in of_output(output)]
        finally:
            changed = kept.put_back()
            if twin.put_back():
                self.end("its forward also reaches the model itself")
            elif twin.are_weights_changed():
                self.end("its forward changes weights")
            elif changed:
                self.end(f"its forward changes what is outside of the model: {changed[0]}")

    def _around(self, twin: Twin) -> Surroundings:
        """Looked for again where the model has other functions."""
        functions, classes = twin.stand_ins.functions, twin.stand_ins.classes
        known = frozenset(classes), frozenset(one.__code__ for one in functions)
        before = self.surroundings
        if before is None or before[0] != known or not before[1].is_current():
            self.surroundings = known, Surroundings(functions, classes)
        return self.surroundings[1]

    def _watched(self, twin: Twin) -> list[tuple]:
        """(name, module of the twin) of those whose activations would be recorded."""
        chunk = self.chunk
        found = [
            (name, module) for at, name, module in self.adapter.selected_modules() if at == chunk
        ]
        known = {id(module): (name, module) for name, module in found}
        return [
            (known[id(module)][0], copy) for module, copy in twin.modules if id(module) in known
        ]

    @contextlib.contextmanager
    def _alone(self):
        """Nothing of it is compiled, waits for other ranks, or stays in a cache of autocast."""
        was_cached = torch.is_autocast_cache_enabled()
        with contextlib.ExitStack() as stack:
            stack.callback(torch.set_autocast_cache_enabled, was_cached)
            torch.set_autocast_cache_enabled(False)
            stack.enter_context(torch.enable_grad())
            if "torch._dynamo" in sys.modules:
                if not hasattr(torch.compiler, "set_stance"):
                    raise CannotTwin("code is compiled, which this torch cannot run as written")
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                stack.enter_context(NoCollectives())
            yield

    # --- rows ------------------------------------------------------------------------------------

    def read_output(self, name: str, output, place) -> None:
        call = self.calls[name] = self.calls.get(name, -1) + 1
        for element, tensor in of_output(output):
            self._row("canary_actv", name, element, tensor, place, call)

    def _read_gradients(self, output, place) -> None:
        """Of parameters, those near the output first. What is sent back has fixed signs."""
        ends = [tensor for _, tensor in of_output(output) if tensor.requires_grad]
        ends = [tensor for tensor in ends if tensor.is_floating_point()]
        named = [p for p in self.adapter.parameters if p.chunk == self.chunk and p.selected]
        pairs = [(p, self.weights.get(id(p.tensor), (None, None))[1]) for p in reversed(named)]
        pairs = [(p, copy) for p, copy in pairs if copy is not None and copy.requires_grad]
        if not ends or not pairs:
            return
        sent = [_signs_like(tensor) for tensor in ends]
        wanted = [copy for _, copy in pairs]
        try:
            gradients = torch.autograd.grad(ends, wanted, sent, allow_unused=True)
        except Exception as error:
            pass_on(error)
            return self._without_gradients(f"{type(error).__name__}: {error}")
        if not self.had_gradients and not _are_finite(gradients):
            return self._without_gradients("they are not finite")
        self.had_gradients = True
        for (parameter, _), gradient in zip(pairs, gradients, strict=True):
            if gradient is not None and place is not None:
                self._row("canary_grad", parameter.name, "", gradient, place, 0)
        return None

    def _without_gradients(self, why: str) -> None:
        self.gives_gradients = False
        self.adapter.coverage.not_covered("canary of gradients", why)

    def _row(self, kind: str, name: str, element: str, tensor: Tensor, place, call: int) -> None:
        adapter = self.adapter
        key = kind, name, element, tensor.dtype
        series = self.series.get(key)
        if series is None:
            series = self.series[key] = adapter.add_series(
                kind=kind,
                name=name,
                element=element,
                chunk=self.chunk,
                optimizer=adapter.clock.index,
                dtype=dtype_name(tensor),
                replication="independent",
            )
        adapter.row(series, tensor.detach(), place.window, place.accum, call, 0)


def _signs_like(tensor: Tensor) -> Tensor:
    """Fixed numbers of many sizes and both signs, which no output sums up to nothing."""
    places = torch.arange(1, tensor.numel() + 1, device=tensor.device, dtype=torch.float32)
    return torch.cos(places).to(tensor.dtype).view(tensor.shape)


def _are_finite(gradients) -> bool:
    return all(
        bool(torch.isfinite(one).all())
        for one in gradients
        if one is not None and one.layout is torch.strided
    )


class OnOutput:
    """Forward hook of a module of the twin."""

    __slots__ = ("canary", "name", "place")

    def __init__(self, canary: Canary, name: str, place):
        self.canary, self.name, self.place = canary, name, place

    def __call__(self, module, args, output):
        if current_task() == IDLE:  # not where activation checkpointing calls it again
            self.canary.read_output(self.name, output, self.place)


def install_canaries(adapter, part) -> None:
    """One of each model chunk. Also again: they go on."""
    adapter.canaries = adapter.canaries or [Canary(adapter, i) for i in range(len(adapter.roots))]
    for canary in adapter.canaries:
        canary.install(part, adapter.handles)


class BeforeForward(Hook):
    """Forward pre-hook of a model chunk, after the one that opens its place."""

    __slots__ = ("canary",)

    def __init__(self, canary: Canary):
        self.canary = canary

    # Libraries that move hooks to another module register them again without with_kwargs.
    def __call__(self, module, args, kwargs=None):
        canary = self.canary
        if compiling() or not canary.part.on or canary.is_over or not module.training:
            return
        try:
            if current_task() == IDLE and torch.is_grad_enabled():
                canary.forward_begins(args, kwargs or {})
        except Exception as error:
            canary.part.failed(error)
