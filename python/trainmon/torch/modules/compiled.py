# Activations inside torch.compile: the hooks are traced, and what they read becomes an operator.
"""Dynamo traces the hooks of a module into the graph when they are there before it compiles the module.
What a traced hook does is `Point.enters` and `Point.leaves`: one call of `trainmon::observe` per tensor.
The operator is opaque to the compiler. Whether there is anything to record it asks when it runs, so
switching the monitor on and off changes no graph and recompiles nothing.

    observe(Tensor value, Tensor(a!) slots, int point, str element, bool begins, bool values,
            bool gradients) -> Tensor
    observe_gradient(Tensor gradient, Tensor ticket, int point, str element) -> ()
    unseen(Tensor(a!) slots, int point, str element) -> ()

`value` is read where it lies. An operator that writes to nothing but `slots`, one int64 that
nothing reads, is neither removed nor reordered. No activation is copied for it. Gradients need no
node. While AOTAutograd traces the backward, the operator's autograd kernel puts a tensor hook on
`value`, as the eager hook does. The hook's call of observe_gradient becomes part of the backward
graph. `ticket` goes along as a saved tensor and says which forward a gradient belongs to: int64
(FIELDS,), on the device of `value`.

The overload r1 is a revision. torch keeps compiled code on disk under the names in the graph.
Whoever changes what tracing makes of an operator must give it the next name.
"""

from __future__ import annotations

import itertools
import operator
import weakref

import torch
from torch import Tensor, nn

from trainmon import _core
from trainmon.base.locks import fork_safe_lock
from trainmon.base.signals import pass_on
from trainmon.torch.hooks.backward import IDLE, current_task
from trainmon.torch.hooks.dynamo import compiles, tracing

DEEPEST = 8  # containers inside containers; deeper ones are not looked into
LONGEST = 64  # containers with more items are left alone: looking at an item makes Dynamo guard it
FIELDS = (
    5  # of a ticket: serial of the monitor, window, accum, call or -1 - place of a replay, flags
)
COMPILED_BEFORE = (
    "compiled before watch() put hooks in: call watch() before the first compiled step, or "
    "torch._dynamo.reset() after it"
)
NO_GRADIENT = (
    "the compiled backward gave none in the first step: this torch leaves them out (2.13 does not), or "
    "no loss depends on them"
)
INPUTS_UNSEEN = "compiled code has no nodes of single modules: their gradients are not apart there"
# What is surely no tensor and holds none.
_PLAIN = (int, float, complex, bool, str, bytes, torch.dtype, torch.device, torch.Size)

# By the number that compiled code knows them under. Hooks and Points hold them.
_points: weakref.WeakValueDictionary[int, Point] = weakref.WeakValueDictionary()
_slots: dict[torch.device, Tensor] = {}
_library = None
_defining = fork_safe_lock()
_serials = itertools.count(1)


class Point:
    """One module inside compiled code. Dynamo guards what enters() and leaves() read: nothing that
    changes while training, and not with an `every` or a `trainmon ctl off` either."""

    def __init__(self, number: int, slots: Tensor):
        self.number, self.slots = number, slots
        self.values = self.gradients = False
        self.activations = self.watched = None
        self.ran = False  # compiled code has called it
        self.asked = self.got = False  # for a gradient, and one came
        self.by_address: dict[int, tuple] = {}  # tickets that are not on the CPU

    # --- traced ----------------------------------------------------------------------------------

    def enters(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if self.values and module.training and tracing():
            self._read(_of_inputs(args, kwargs), True, False)

    def leaves(self, module: nn.Module, args: tuple, kwargs: dict, output) -> None:
        if module.training and tracing():
            begins = not (self.values and _of_inputs(args, kwargs))
            gradients = self.gradients and torch.is_grad_enabled()
            found: list = []
            _collect("output", output, found, DEEPEST)
            self._read(found, begins, gradients)

    def _read(self, found: list, begins: bool, gradients: bool) -> None:
        operators = torch.ops.trainmon
        for element, tensor in found:
            if tensor is None or type(tensor) not in (Tensor, nn.Parameter):
                operators.unseen.r1(self.slots, self.number, element)
            else:
                operators.observe.r1(
                    tensor, self.slots, self.number, element, begins, self.values, gradients
                )
                begins = False

    # --- when compiled code runs -----------------------------------------------------------------

    def seen(self, value, element: str, begins: bool, values: bool, gradients: bool):
        """Records a row; the fields of the ticket, None if no gradient will be recorded."""
        self.ran = True
        activations, watched = self.activations, self.watched
        if activations is None or not activations.active:
            return None
        if is_output := element.startswith("output"):
            watched.ever = True
        if current_task() != IDLE:  # recomputed: the first pass gave the rows
            replayed = watched.next_replay() if is_output and gradients else None
            if replayed is None:
                return None
            place, call = watched.place, -1 - replayed
        else:
            place = activations.clock.frame or activations.adapter.open_frame()
            if not place.recording:
                return None
            if begins:
                number = activations.next_call(watched, place)
                if self.gradients:
                    watched.await_recomputation(number)
            call = watched.calls - 1
            if values:
                activations.row(watched, False, element, value, place, call, 0)
        if not gradients:
            return None
        self.asked = True
        return activations.serial, place.window, place.accum, call, place.flags

    def seen_gradient(self, gradient, ticket, element: str) -> None:
        self.got = True
        fields = ticket.tolist() if ticket.is_cpu else self.by_address.get(ticket.data_ptr())
        activations, watched = self.activations, self.watched
        if not fields or activations is None or fields[0] != activations.serial:
            return
        if not activations.part.on:
            return
        _, window, accum, call, flags = fields
        activations.backward.follow()
        if call < 0:
            call = watched.replayed_call(-1 - call)
        place = _core.Place(window, accum, True, flags)
        activations.row(watched, True, element, gradient, place, call, flags)

    def cannot_see(self, element: str, why: str) -> None:
        if self.activations is not None:
            self.ran = self.watched.ever = True
            self.not_covered(f"actv {self.watched.name} {element}".replace("  ", " "), why)

    def not_covered(self, what: str, why: str) -> None:
        if self.activations is not None:
            self.activations.adapter.coverage.not_covered(what, why)


class Points:
    """The points of one adapter, from watch() to stop(): they outlive hooks that are taken off and put on
    again, so compiled code stays valid."""

    def __init__(self):
        self.known: dict[int, tuple] = {}  # id of module -> (reference to it, Point)
        self.least = 0  # no number below is free

    def next_serial(self) -> int:
        return next(_serials)

    def of(self, module: nn.Module, activations, watched) -> Point:
        """The module's point, which serves these from now on."""
        reference, point = self.known.get(id(module), (None, None))
        if reference is None or reference() is not module:
            if point is not None:
                _points.pop(point.number, None)
            _define()
            # The smallest free one: what is cached on disk for a model finds its numbers again.
            number = next(n for n in itertools.count(self.least) if n not in _points)
            self.least = number + 1
            point = _points[number] = Point(number, _slots_on(_device_of(module, activations)))
            self.known[id(module)] = weakref.ref(module), point
        point.activations, point.watched = activations, watched
        point.values, point.gradients = activations.values, activations.gradients
        return point

    def is_compiled(self, module: nn.Module) -> bool:
        """Whether code compiled with the module's hooks in it has run."""
        reference, point = self.known.get(id(module), (None, None))
        return point is not None and reference() is module and point.ran

    def without_gradient(self) -> list[str]:
        """Names of modules whose compiled code was to give gradients, and gave none."""
        points = [point for _, point in self.known.values() if point.watched is not None]
        return [point.watched.name for point in points if point.asked and not point.got]

    def any_compiled(self) -> bool:
        return any(point.ran for _, point in self.known.values())

    def detach(self) -> None:
        """Compiled code goes on calling them, and they do nothing."""
        for _, point in self.known.values():
            point.activations = point.watched = None

    def remove(self) -> None:
        self.detach()
        for _, point in self.known.values():
            _points.pop(point.number, None)
        self.known.clear()


def may_have_hooks_of(module: nn.Module, adapter) -> bool:
    """Whether compiled code may have the module's hooks in it. A root's own may be in the same code as
    those of its modules. Where compiled code is not looked into, it may have modules that nothing called."""
    is_root = any(module is root for root in adapter.roots)
    if (points := adapter.points) is not None:
        return points.any_compiled() if is_root else points.is_compiled(module)
    is_inside = bool(adapter.uncalled) if is_root else id(module) in adapter.uncalled
    return is_inside and compiles()


def _device_of(module: nn.Module, activations) -> torch.device:
    for parameters in (module.parameters(), (p.tensor for p in activations.adapter.parameters)):
        for tensor in parameters:
            return tensor.device
    return torch.device("cpu")


def _of_inputs(args: tuple, kwargs: dict) -> list:
    found: list = []
    for index, value in enumerate(args):
        _collect(f"input.{index}", value, found, DEEPEST)
    for key, value in kwargs.items():
        _collect(f"input.{key}", value, found, DEEPEST)
    return found


def _collect(name: str, value, found: list, depth: int) -> None:
    """What elements.of_output() does, in words that Dynamo follows on every torch; (name, None) for
    what is not looked into."""
    if isinstance(value, Tensor):
        found.append((name, value))
    elif value is None or isinstance(value, _PLAIN):
        return
    elif isinstance(value, (tuple, list)) and depth > 0 and len(value) <= LONGEST:
        for index, item in enumerate(value):
            _collect(f"{name}.{index}", item, found, depth - 1)
    elif isinstance(value, dict) and depth > 0 and len(value) <= LONGEST:
        for key, item in value.items():
            _collect(f"{name}.{key}", item, found, depth - 1)
    else:
        found.append((name, None))


# --- the operators -------------------------------------------------------------------------------


def _slots_on(device: torch.device) -> Tensor:
    if device not in _slots:
        _slots[device] = torch.zeros(1, dtype=torch.int64, device=device)
        if device.type != "cpu":  # CUDA graphs may only write to what never moves
            torch._dynamo.mark_static_address(_slots[device])
    return _slots[device]


def _define() -> None:
    """Once a process, and for good: compiled code may outlive every monitor."""
    global _library
    with _defining:  # first calls of watch() may come from several threads
        if _library is None:
            _library = _defined()


def _defined() -> torch.library.Library:
    library = torch.library.Library("trainmon", "FRAGMENT")
    # Else inductor may copy a value into its eager layout. (Before torch had the tag it never did.)
    any_layout = (torch.Tag.flexible_layout,) if hasattr(torch.Tag, "flexible_layout") else ()
    library.define(
        "observe.r1(Tensor value, Tensor(a!) slots, int point, str element, bool begins, bool values, "
        "bool gradients) -> Tensor",
        tags=any_layout,
    )
    library.define(
        "observe_gradient.r1(Tensor gradient, Tensor ticket, int point, str element) -> ()",
        tags=any_layout,
    )
    library.define("unseen.r1(Tensor(a!) slots, int point, str element) -> ()")
    library.impl("observe.r1", _observe, "CompositeExplicitAutograd")
    library.impl("observe.r1", _observe_with_autograd, "Autograd")
    library.impl("observe_gradient.r1", _observe_gradient, "CompositeExplicitAutograd")
    library.impl("unseen.r1", _unseen, "CompositeExplicitAutograd")
    library.impl("observe.r1", _mapped, "FuncTorchBatched")
    for name, shapes in (
        ("observe", lambda value, *_: value.new_empty(FIELDS, dtype=torch.int64)),
        ("observe_gradient", lambda *_: None),
        ("unseen", lambda *_: None),
    ):
        torch.library.register_fake(f"trainmon::{name}.r1", shapes, lib=library)
    # It writes to nothing: a saved tensor that a backward wrote to would fail torch's version check.
    torch.fx.node.has_side_effect(torch.ops.trainmon.observe_gradient.r1)
    return library


def _observe(value, slots, point, element, begins, values, gradients) -> Tensor:
    at, fields = _points.get(point), None
    if at is not None:
        try:
            if not _is_captured(value, at):
                fields = at.seen(value, element, begins, values, gradients)
        except Exception as error:
            pass_on(error)
            if at.activations is not None:
                at.activations.part.failed(error)
    if value.is_cpu:
        return torch.tensor(fields or _NO_FIELDS, device="cpu")
    ticket = value.new_empty(FIELDS, dtype=torch.int64)
    if at is not None and gradients:
        at.by_address[ticket.data_ptr()] = fields  # reading it would wait for the device
    return ticket


_NO_FIELDS = (0,) * FIELDS  # serials begin at 1


def _observe_gradient(gradient, ticket, point, element) -> None:
    at = _points.get(point)
    if at is None:
        return
    try:
        if not _is_captured(gradient, at):
            at.seen_gradient(gradient, ticket, element)
    except Exception as error:
        pass_on(error)
        if at.activations is not None:
            at.activations.part.failed(error)


def _unseen(slots, point, element) -> None:
    at = _points.get(point)
    if at is not None:
        at.cannot_see(
            element, "inside torch.compile only tensors, tuples, lists and dicts are read"
        )


def _is_captured(value: Tensor, at: Point) -> bool:
    """A CUDA graph is being captured. Its replays run no Python, and a row now would be measured then."""
    if not (value.is_cuda and torch.cuda.is_current_stream_capturing()):
        return False
    at.not_covered("activations inside a CUDA graph", "replays of it run no code of the host")
    return True


def _observe_with_autograd(value, slots, point, element, begins, values, gradients) -> Tensor:
    """Runs while AOTAutograd traces, or where a compiler backend leaves autograd to torch."""
    operators = torch.ops.trainmon
    arguments = (value, slots, point, element, begins, values, gradients)
    graph = _traced_into()
    already = 0 if graph is None else len(graph.nodes)
    with torch._C._AutoDispatchBelowAutograd():
        ticket = operators.observe.r1(*arguments)
    if graph is not None:
        _never_recompute(graph, already)
    if gradients and value.grad_fn is not None and torch.is_grad_enabled():

        def hook(gradient):
            operators.observe_gradient.r1(gradient, ticket, point, element)

        value.register_hook(hook)
    return ticket


def _traced_into():
    """The graph that is being traced, None while nothing is."""
    try:
        from torch.fx.experimental.proxy_tensor import get_proxy_mode

        mode = get_proxy_mode()
        return None if mode is None else mode.tracer.graph
    except (ImportError, AttributeError):  # another torch has it elsewhere
        return None


def _never_recompute(graph, already: int) -> None:
    """Inside a checkpoint that is compiled itself, the partitioner would have the backward run the operator
    again. Its ticket is saved instead, so a gradient finds its forward whatever the order of that code."""
    for node in itertools.islice(reversed(graph.nodes), len(graph.nodes) - already):
        if node.meta.pop("recompute", None) is not None:
            if node.target is operator.getitem and node.args[1] == 0:
                node.meta["recompute"] = torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE


def _mapped(value, slots, point, element, begins, values, gradients) -> Tensor:
    """Under torch.vmap, while Dynamo traces: the tensor has no values of its own."""
    if (at := _points.get(point)) is not None:
        at.cannot_see(element, "under torch.vmap tensors are not read")
    return torch.zeros(FIELDS, dtype=torch.int64, device=slots.device)
