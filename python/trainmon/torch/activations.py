# Rows of modules: what goes in and comes out of a forward, and the gradients of both.
from __future__ import annotations

import threading
import weakref

import torch

from trainmon.torch import edges
from trainmon.torch.backward import IDLE, current_task
from trainmon.torch.forward import compiling
from trainmon.torch.hooks import Hook
from trainmon.torch.parameters import NO_SERIES


class Frame:
    """Where rows of a forward belong. One object as long as that does not change."""

    __slots__ = ("window", "accum", "recording", "flags")

    def __init__(self, window: int, accum: int, recording: bool, flags: int):
        self.window, self.accum, self.recording, self.flags = window, accum, recording, flags


class Watched:
    """One module: its name, its series, and how often it was called in the current frame."""

    __slots__ = ("name", "chunk", "values", "gradients", "frame", "calls", "replays", "ever")

    def __init__(self, name: str, chunk: int):
        self.frame = None
        self.calls = 0
        self.replays = Replays()
        self.ever = False
        self.rename(name, chunk)

    def rename(self, name: str, chunk: int) -> None:
        self.name, self.chunk = name, chunk
        self.values: dict[str, int] = {}  # series of each element,
        self.gradients: dict[str, int] = {}  # and of its gradient


class UnderWay(threading.local):
    """Calls that began on this thread and have not ended, outermost first."""

    def __init__(self):
        self.calls: list[Call] = []


class Call:
    """What the pre-hook of one call knows: where its rows belong, and the edges of its inputs."""

    __slots__ = ("watched", "frame", "number", "edges")

    def __init__(self, watched, frame, number, noted):
        self.watched, self.frame, self.number, self.edges = watched, frame, number, noted


class Replays:
    """Pairs recomputed calls with the calls of the first pass, whose gradients they will see.

    Reentrant checkpointing recomputes its segments in reverse, but calls within a segment in order,
    and how many there were is known only when gradients arrive: so a recomputed call is resolved
    then, counting from the end.
    """

    __slots__ = ("calls", "burst")

    def __init__(self):
        self.calls: list[int] = []  # calls of the first pass that no recomputation has met
        self.burst = None

    def clear(self) -> None:
        self.calls.clear()
        self.burst = None

    def next(self):
        if self.burst is None or self.burst.first is not None:
            self.burst = Burst(self.calls)
        self.burst.size += 1
        return self.burst, self.burst.size - 1


class Burst:
    __slots__ = ("calls", "size", "first", "mine")

    def __init__(self, calls: list[int]):
        self.calls, self.size, self.first = calls, 0, None

    def call(self, index: int) -> int:
        if self.first is None:
            self.first = max(len(self.calls) - self.size, 0)
            self.mine = self.calls[self.first :]
            del self.calls[self.first :]
        return self.mine[index] if index < len(self.mine) else index


class Activations:
    """The part that reads forwards. Its methods are called by the hooks below, which catch."""

    def __init__(self, adapter, part, values: bool, gradients: bool, inputs: bool):
        self.adapter, self.part, self.selection = adapter, part, adapter.selection
        self.values, self.gradients, self.inputs = values, gradients, inputs
        self.live = False  # whether the clock's open window is recorded
        self.points = adapter.points  # None: compiled code is not looked into
        self.serial = 0 if self.points is None else self.points.next_serial()
        self.watched: dict[int, tuple] = {}  # id of module -> (reference to it, Watched)
        self.under_way = UnderWay()
        self.unfinished: list[InputSum] = []
        self.leaves: dict[tuple, tuple] = {}  # (watched, element) -> (handle of a hook, leaf)
        self.bare: set[int] = set()  # ids of leaves that had no hooks before ours

    def install(self, name: str, module, chunk: int, handles) -> None:
        """Also again, when modules were put in or moved: what is hooked gets its new name."""
        known, watched = self.watched.get(id(module), (None, None))
        if known is not None and known() is module:
            if (watched.name, watched.chunk) != (name, chunk):
                watched.rename(name, chunk)
            return
        watched = Watched(name, chunk)
        self.watched[id(module)] = weakref.ref(module), watched
        point = None if self.points is None else self.points.of(module, self, watched)
        hook = BeforeForward(self, watched, point)
        handles.hook(module, "register_forward_pre_hook", hook, with_kwargs=True)
        hook = AfterForward(self, watched, point)
        handles.hook(module, "register_forward_hook", hook, with_kwargs=True)

    # --- forward ---------------------------------------------------------------------------------

    def entered(self, watched: Watched, args: tuple, kwargs: dict) -> None:
        """Inputs are read now: a module may write over them."""
        inputs = self.selection.inputs(watched, args, kwargs)
        frame, number = None, 0
        # Recomputation has no frame of its own: its rows belong to the first pass.
        if current_task() == IDLE:
            frame = self.adapter.frame or self.adapter.open_frame()
            if frame.recording:
                number = self._count(watched, frame)
                if self.values:
                    for element, tensor in inputs:
                        self.observe(
                            watched, "actv", watched.values, element, tensor, frame, number, 0
                        )
            else:
                inputs = ()
        noted = None
        if self.inputs and torch.is_grad_enabled():
            given = [(e, edges.edge_of(tensor)) for e, tensor in inputs if tensor.requires_grad]
            if given:
                noted = given, edges.sequence_number()
        self.under_way.calls.append(Call(watched, frame, number, noted))

    def _count(self, watched: Watched, frame) -> int:
        if watched.frame is not frame:
            watched.frame, watched.calls = frame, 0
            watched.replays.clear()
        watched.calls += 1
        return watched.calls - 1

    def _begun(self, watched: Watched) -> Call | None:
        """The call that ends now. Calls inside it that are left over have raised."""
        calls = self.under_way.calls
        for index in range(len(calls) - 1, -1, -1):
            if calls[index].watched is watched:
                call = calls[index]
                del calls[index:]
                return call
        return None

    def left(self, watched: Watched, output) -> None:
        call = self._begun(watched)
        watched.ever = True
        if current_task() != IDLE:
            self._recomputed(watched, call.edges if call else None, output)
            return
        if call is None or call.frame is None:  # the pre-hook was not called, or not recording then
            frame, number, noted = self.adapter.frame or self.adapter.open_frame(), None, None
        else:
            frame, number, noted = call.frame, call.number, call.edges
        if not frame.recording:
            return
        if number is None:
            number = self._count(watched, frame)
        outputs = self.selection.outputs(watched, output)
        if not outputs and output is not None:
            why = f"no tensor is found in a {type(output).__name__}"
            self.adapter.coverage.not_covered(f"actv {watched.name} output", why)
        if self.values:
            for element, tensor in outputs:
                self.observe(watched, "actv", watched.values, element, tensor, frame, number, 0)
        if self.gradients:
            if torch.is_grad_enabled():
                self._follow_gradients(watched, noted, outputs, frame, number)
            else:
                watched.replays.calls.append(number)

    def _recomputed(self, watched: Watched, noted, output) -> None:
        """A forward inside a backward gives no row; gradients are followed if only it has them."""
        frame, replays = watched.frame, watched.replays
        if not self.gradients or frame is None or not torch.is_grad_enabled():
            return
        if replays.calls or replays.burst is not None:
            outputs = self.selection.outputs(watched, output)
            self._follow_gradients(watched, noted, outputs, frame, replays.next())

    # --- gradients -------------------------------------------------------------------------------

    def _follow_gradients(self, watched, noted, outputs, frame, call) -> None:
        followed = []
        for element, tensor in outputs:
            if not tensor.requires_grad:
                continue
            followed.append(tensor)
            hook = GradientRow(self, watched, element, frame, call)
            if tensor.grad_fn is None:
                self._follow_leaf(tensor, hook)
            else:
                tensor.register_hook(hook)
        if noted is not None and followed:
            self._follow_inputs(watched, noted, followed, frame, call)

    def _follow_leaf(self, tensor, hook) -> None:
        """A leaf outlives its graph, and a hook on it would too: it is taken off after the backward.
        Its gradient is that of all calls together, so the row is that of the last one."""
        place = hook.watched, hook.element
        if place in self.leaves:
            self._release(*self.leaves.pop(place))
        if tensor._backward_hooks is None:  # torch makes a dictionary for the first
            self.bare.add(id(tensor))
        self.leaves[place] = tensor.register_hook(hook), tensor

    def _follow_inputs(self, watched, noted, outputs, frame, call) -> None:
        given, oldest = noted
        sums: dict[tuple, InputSum] = {}
        for element, edge in given:
            if edge in sums:
                self._not_covered(watched, element, "the same tensor as another input")
            else:
                sums[edge] = InputSum(GradientRow(self, watched, element, frame, call))
        nodes: dict = {}
        for node, index, edge in edges.consumers(outputs, sums.keys(), oldest):
            nodes.setdefault(node, []).append((index, sums[edge]))
        for _, through in nodes.pop(None, ()):
            through.parts = -1
            self._not_covered(watched, through.row.element, "the module returns its input")
        for node, uses in nodes.items():
            uses = [(index, through) for index, through in uses if through.parts >= 0]
            for _, through in uses:
                through.parts += 1
            if uses:
                node.register_hook(InputGradient(uses))
        for through in sums.values():
            if through.parts == 0:
                self._not_covered(watched, through.row.element, "no output depends on it")

    def _not_covered(self, watched: Watched, element: str, why: str) -> None:
        self.adapter.coverage.not_covered(
            f"actv_grad {watched.name} {element}".replace("  ", " "), why
        )

    def backward_ended(self) -> None:
        """Sums whose last part never came (a use that led to no loss) are whole now."""
        for through in self.unfinished:
            through.finish()
        self.unfinished.clear()
        self.release_leaves()

    def release_leaves(self) -> None:
        for handle, tensor in self.leaves.values():
            self._release(handle, tensor)
        self.leaves.clear()

    def _release(self, handle, tensor) -> None:
        handle.remove()
        if id(tensor) in self.bare and not tensor._backward_hooks:
            self.bare.discard(id(tensor))
            tensor._backward_hooks = None

    def forward_begins(self) -> None:
        """Of the whole model: what is still under way has raised, and would keep its graph alive."""
        self.under_way.calls.clear()

    # --- rows ------------------------------------------------------------------------------------

    def observe(self, watched, kind, series, element, tensor, frame, call: int, flags: int) -> None:
        adapter = self.adapter
        number = series.get(element)
        if number is None:
            number = NO_SERIES
            if self.selection.takes(watched, kind, element):
                place = watched.name, element, watched.chunk
                number = adapter.activation_series(kind, *place, tensor)
            series[element] = number
        if number == NO_SERIES:
            return
        adapter.row(number, tensor, frame.window, frame.accum, call, flags)


class GradientRow(Hook):
    """The row of one gradient, at the place of the forward it comes from. Tensor hook of an output."""

    __slots__ = ("activations", "watched", "element", "frame", "call")

    def __init__(self, activations, watched, element, frame, call):
        self.activations, self.watched, self.element = activations, watched, element
        self.frame, self.call = frame, call

    def __call__(self, gradient):
        part = self.activations.part
        if not part.on:
            return
        try:
            self.observe(gradient)
        except Exception as error:
            part.failed(error)

    def observe(self, gradient) -> None:
        activations, watched, frame, call = self.activations, self.watched, self.frame, self.call
        backward, now = activations.adapter.backward, current_task()
        if backward.now != now:
            backward.enter(now)
        if gradient is None:  # a node with several outputs, of which this one was not used
            return
        if type(call) is not int:  # a recomputed call
            burst, index = call
            call = self.call = burst.call(index)
        activations.observe(
            watched,
            "actv_grad",
            watched.gradients,
            self.element,
            gradient,
            frame,
            call,
            frame.flags,
        )


class InputSum:
    """The gradient of one input of one call: the sum over the nodes that use it."""

    __slots__ = ("row", "parts", "missing", "total")

    def __init__(self, row: GradientRow):
        self.row = row
        self.parts = 0
        self.missing = None
        self.total = None

    def add(self, gradient) -> None:
        if self.parts == 1:
            if gradient is not None:
                self.row.observe(gradient)
            return
        if self.missing is None:
            self.missing = self.parts
            self.row.activations.unfinished.append(self)
        self.missing -= 1
        if gradient is not None:
            with torch.no_grad():
                self.total = gradient if self.total is None else self.total + gradient
        if self.missing == 0:
            self.finish()

    def finish(self) -> None:
        total, self.total, self.missing = self.total, None, None
        if total is not None:
            self.row.observe(total)


class BeforeForward(Hook):
    """Forward pre-hook: reads the inputs and notes their edges, before the module can change them."""

    __slots__ = ("activations", "watched", "__dict__")  # point: Dynamo once could not read slots

    def __init__(self, activations, watched, point):
        self.activations, self.watched, self.point = activations, watched, point

    # Libraries that move hooks to another module register them again without with_kwargs.
    def __call__(self, module, args, kwargs=None):
        if compiling():
            if self.point is not None:
                self.point.enters(module, args, kwargs or {})
            return
        activations = self.activations
        if not (activations.live and module.training and activations.part.on):
            return
        try:
            activations.entered(self.watched, args, kwargs or {})
        except Exception as error:
            activations.part.failed(error)


class AfterForward(Hook):
    __slots__ = ("activations", "watched", "__dict__")  # point: Dynamo once could not read slots

    def __init__(self, activations, watched, point):
        self.activations, self.watched, self.point = activations, watched, point

    def __call__(self, module, args, *rest):  # kwargs and output, or output alone
        if compiling():
            if self.point is not None:
                self.point.leaves(module, args, rest[0] if len(rest) > 1 else {}, rest[-1])
            return
        activations = self.activations
        if not (activations.live and module.training and activations.part.on):
            return
        try:
            activations.left(self.watched, rest[-1])
        except Exception as error:
            activations.part.failed(error)


class InputGradient(Hook):
    """Hook of an autograd node that uses inputs: uses are (index among its gradients, sum)."""

    __slots__ = ("uses",)

    def __init__(self, uses):
        self.uses = uses

    def __call__(self, gradients, _):
        part = self.uses[0][1].row.activations.part
        if not part.on:
            return
        try:
            for index, through in self.uses:
                through.add(gradients[index])
        except Exception as error:
            part.failed(error)
