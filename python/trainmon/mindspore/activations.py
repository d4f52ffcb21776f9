# Rows of cells: what goes in and comes out of a forward, and the gradients of both.
from __future__ import annotations

import collections
import functools

from mindspore import Tensor

from trainmon.base.rows import NO_SERIES
from trainmon.mindspore import hooks
from trainmon.mindspore.parameters import dtype_name, replication

MOST_PENDING = 256  # calls of a cell that no backward has met yet, and that one may still meet


class Watched:
    """One cell: its name, its series, and how often it was called at its place."""

    __slots__ = (
        "cell",
        "name",
        "chunk",
        "is_root",
        "series",
        "frame",
        "calls",
        "open",
        "pending",
        "ever",
    )

    def __init__(self, cell, name: str, chunk: int, is_root: bool):
        self.cell = cell  # its copies have the same hooks
        self.name, self.chunk, self.is_root = name, chunk, is_root
        self.series: dict[tuple, int] = {}
        self.frame, self.calls, self.ever = None, 0, False
        self.open: list = []  # names of the inputs of calls under way, None where nothing is recorded
        self.pending = collections.deque(maxlen=MOST_PENDING)  # forwards whose gradients come


class Activations:
    def __init__(self, adapter, part, values: bool, gradients: bool):
        self.adapter, self.part = adapter, part
        self.values, self.gradients = values, gradients
        self.watched: list[Watched] = []

    def install(self, name: str, cell, chunk: int, is_root: bool, handles) -> None:
        watched = Watched(cell, name, chunk, is_root)
        self.watched.append(watched)

        entered, left, returned = (
            hooks.harmless(self.part, functools.partial(act, watched))
            for act in (self.entered, self.left, self.returned)
        )
        pre_hook = hooks.forward_pre(entered)
        handles.add(cell.register_forward_pre_hook(pre_hook, with_kwargs=True))
        handles.add(cell.register_forward_hook(hooks.forward(left)))
        if self.gradients:
            handles.add(hooks.register_backward(cell, hooks.backward(returned)))

    def entered(self, watched: Watched, cell, args: tuple, kwargs: dict | None) -> None:
        adapter = self.adapter
        if cell is not watched.cell or not cell.training or not adapter.attached:
            return
        if watched.is_root:
            self._forget_open()
        if adapter.is_recomputing(watched.is_root):
            watched.open.append(None)
            return
        watched.ever = True
        frame = adapter.forward_of_cell()
        if watched.frame is not frame:
            watched.frame, watched.calls = frame, 0
        call = watched.calls
        watched.calls += 1
        if not frame.recording:
            watched.open.append(None)
            return
        inputs = adapter.selection.inputs(watched, args, kwargs or {})
        if self.values:
            for element, tensor in inputs:
                self.row(watched, "actv", element, tensor, frame, call)
        by_id = {id(tensor): element for element, tensor in inputs}
        names = [by_id.get(id(argument)) for argument in args]
        watched.open.append((frame, call, names))

    def _forget_open(self) -> None:
        """Of a forward before that raised."""
        for watched in self.watched:
            watched.open.clear()

    def left(self, watched: Watched, cell, args: tuple, output) -> None:
        if cell is not watched.cell:
            return
        entry = watched.open.pop() if watched.open else None
        if entry is None:
            return
        frame, call, names = entry
        outputs = self.adapter.selection.outputs(watched, output)
        if not outputs:
            why = f"no tensor is found in a {type(output).__name__}"
            self.adapter.coverage.not_covered(f"actv {watched.name} output", why)
        if self.values:
            for element, tensor in outputs:
                self.row(watched, "actv", element, tensor, frame, call)
        if self.gradients:
            by_id = {id(tensor): element for element, tensor in outputs}
            flat = output if isinstance(output, (tuple, list)) else [output]
            outs = [by_id.get(id(one)) for one in flat]
            watched.pending.append((frame, call, names, outs))

    def returned(self, watched: Watched, cell, of_inputs, of_outputs) -> None:
        """Backward meets the calls of a cell in reverse."""
        is_ours = cell is watched.cell and self.adapter.activations is self
        if not is_ours or not cell.training:
            return
        self.adapter.backward_goes_on()
        if not watched.pending:
            return
        frame, call, inputs, outputs = watched.pending.pop()
        self._gradients(watched, "output", outputs, of_outputs, frame, call)
        self._gradients(watched, "input", inputs, of_inputs, frame, call)

    def _gradients(self, watched, side: str, names: list, gradients, frame, call: int) -> None:
        if not isinstance(gradients, (tuple, list)):
            gradients = [gradients]
        if len(gradients) != len(names):
            self.adapter.coverage.not_covered(
                f"actv_grad {watched.name} {side}",
                f"MindSpore gives {len(gradients)} gradients for {len(names)} tensors",
            )
            return
        for element, gradient in zip(names, gradients):
            if element is not None and isinstance(gradient, Tensor):
                self.row(watched, "actv_grad", element, gradient, frame, call)

    def row(self, watched: Watched, kind: str, element: str, tensor, frame, call: int) -> None:
        adapter = self.adapter
        series = watched.series.get((kind, element))
        if series is None:
            series = watched.series[kind, element] = self._new_series(
                watched, kind, element, tensor
            )
        if series == NO_SERIES:
            return
        flags = adapter.clock.flags if kind == "actv_grad" else 0
        adapter.row(series, tensor, frame.window, frame.accum, call, flags)

    def _new_series(self, watched: Watched, kind: str, element: str, tensor) -> int:
        adapter = self.adapter
        if not adapter.selection.takes(watched, kind, element):
            return NO_SERIES
        return adapter.add_series(
            kind=kind,
            name=watched.name,
            element=element,
            chunk=watched.chunk,
            optimizer=adapter.clock.index,
            dtype=dtype_name(tensor),
            replication=replication(kind, None, adapter.reduces),
        )
