# Rows of modules: what goes in and comes out of a forward, and the gradients of both.
from __future__ import annotations

import weakref

import torch

from trainmon import _core
from trainmon.base.rows import NO_SERIES
from trainmon.torch.hooks.dynamo import compiling
from trainmon.torch.hooks.hook import Hook, forget_hooks
from trainmon.torch.modules import elements, gradient_edges
from trainmon.torch.modules.selection import Selection


class Watched(_core.Watched):
    """One module: its name, the series of each element, of its gradient, and of what is recomputed
    (`values`, `gradients`, `recomputed`). It counts how often it was called at its place, and knows
    which calls await a recomputation."""

    __slots__ = ("name", "chunk")

    def __init__(self, name: str, chunk: int):
        super().__init__()
        self.rename(name, chunk)

    def rename(self, name: str, chunk: int) -> None:
        self.name, self.chunk = name, chunk
        self.values, self.gradients, self.recomputed = {}, {}, {}


class Traceable(Hook):
    """A hook on gradients that is nothing in the graph of compiled autograd, which has no elements
    when it is made."""

    __slots__ = ("hook",)

    def __init__(self, hook):
        self.hook = hook

    def __call__(self, gradients, *given):
        return None if compiling() else self.hook(gradients, *given)


class Activations(_core.Forwards):
    """The part that reads forwards. `entered` and `left` are called by the hooks below, which
    catch. They are in C++, as what the hooks on gradients do. They call what is here for the
    first of a series and for what is rare."""

    __slots__ = ("adapter", "selection", "points", "serial", "watched", "leaves", "bare")

    def __init__(self, adapter, part, values: bool, gradients: bool, inputs: bool):
        selection = adapter.selection
        kind = type(selection)
        super().__init__(
            core=adapter.core,
            part=part,
            backward=adapter.backward,
            clock=adapter.clock,
            open_frame=adapter.open_frame,
            find_inputs=selection.inputs,
            find_outputs=selection.outputs,
            sequence_number=gradient_edges.sequence_number,
            is_grad_enabled=torch.is_grad_enabled,
            positional=elements.POSITIONAL,
            values=values,
            gradients=gradients,
            inputs=inputs,
            recomputed=values and "actv_recomputed" in adapter.kinds,
            elsewhere=adapter.is_elsewhere,
            plain_inputs=kind.inputs is Selection.inputs,
            plain_outputs=kind.outputs is Selection.outputs,
            is_timed=adapter.own_time is not None,
            sample=int(adapter.config["sample"][2:] or 0),  # of "1/16"
            rereads=adapter.config["reread"],
        )
        self.adapter, self.selection = adapter, selection
        self.points = adapter.points  # None: compiled code is not looked into
        self.serial = 0 if self.points is None else self.points.next_serial()
        self.watched: dict[int, tuple] = {}  # id of module -> (reference to it, Watched)
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
        hook = self.adapter.timed(BeforeForward(self, watched, point))
        handles.hook(module, "register_forward_pre_hook", hook, with_kwargs=True)
        hook = self.adapter.timed(AfterForward(self, watched, point))
        handles.hook(module, "register_forward_hook", hook, with_kwargs=True)

    def uncalled(self) -> set[int]:
        """Ids of the modules whose hooks no forward has called."""
        return {key for key, (_, watched) in self.watched.items() if not watched.ever}

    # --- called by the core -----------------------------------------------------------------------

    def new_series(self, watched: Watched, kind: str, element: str, tensor) -> int:
        if not self.selection.takes(watched, kind, element):
            return NO_SERIES
        place = watched.name, element, watched.chunk
        return self.adapter.activation_series(kind, *place, tensor)

    def is_elsewhere(self, *row) -> None:
        self.adapter.late.add(*row)

    def found_no_tensor(self, watched: Watched, output) -> None:
        why = f"no tensor is found in a {type(output).__name__}"
        self.adapter.coverage.not_covered(f"actv {watched.name} output", why)

    def not_covered(self, watched: Watched, element: str, why: str) -> None:
        self.adapter.coverage.not_covered(
            f"actv_grad {watched.name} {element}".replace("  ", " "), why
        )

    def traceable(self, hook):
        return Traceable(hook)

    def accumulator(self, leaf):
        return gradient_edges.accumulator(leaf)

    def added(self, total, gradient):
        with torch.no_grad():
            return total + gradient

    def follow_leaf(self, tensor, hook) -> None:
        """A leaf outlives its graph, and a hook on it would too: it is taken off after the backward.
        Its gradient is that of all calls together, so the row is that of the last one."""
        place = hook.watched, hook.element
        if place in self.leaves:
            self._release(*self.leaves.pop(place))
        if tensor._backward_hooks is None:  # torch makes a dictionary for the first
            self.bare.add(id(tensor))
        hook = Traceable(self.adapter.timed(hook))
        self.leaves[place] = tensor.register_hook(hook), tensor

    def backward_ended(self) -> None:
        """Sums whose last part never came (a use that led to no loss) are whole now."""
        for through in self.unfinished:
            through.finish(self)
        self.unfinished.clear()
        self.forget_readings()
        self.release_leaves()

    def release_leaves(self) -> None:
        for handle, tensor in self.leaves.values():
            self._release(handle, tensor)
        self.leaves.clear()

    def _release(self, handle, tensor) -> None:
        handle.remove()
        if id(tensor) in self.bare and not tensor._backward_hooks:
            self.bare.discard(id(tensor))
            forget_hooks(tensor, "_backward_hooks")


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
        if not (activations.active and module.training):
            return
        try:
            activations.entered(self.watched, args, kwargs)
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
        if not (activations.active and module.training):
            return
        try:
            activations.left(self.watched, rest[-1])
        except Exception as error:
            activations.part.failed(error)
