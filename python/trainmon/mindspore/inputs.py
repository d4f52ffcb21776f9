# What the whole model is given in each forward of the training: rows of kind input and input_entropy.
from __future__ import annotations

import functools

from mindspore.common.api import _pynative_executor as executor

from trainmon.base.arguments import unread
from trainmon.base.calls import Calls
from trainmon.base.rows import ELSEWHERE, REFUSED
from trainmon.mindspore import elements, hooks
from trainmon.mindspore.parameters import dtype_name, replication


def has_gradients() -> bool:
    """Whether the forward under way is one that is differentiated. True where MindSpore does not say."""
    says = getattr(executor, "requires_grad", None)
    return says is None or bool(says())


class Inputs:
    """The part that reads them. One call of a model chunk has the number of its call at this place.
    Evaluation gives no rows: set_train(False), or a forward outside of value_and_grad()."""

    def __init__(self, adapter, part):
        self.adapter, self.part = adapter, part
        self.series: dict[
            tuple, tuple
        ] = {}  # by chunk, element and dtype: (its own, of its entropy)
        self.calls = Calls(len(adapter.roots))
        self.seen = False

    def install(self, handles) -> None:
        """After the hooks that open the place of a forward."""
        for chunk, root in enumerate(self.adapter.roots):
            act = hooks.harmless(self.part, functools.partial(self.given, chunk, root))
            handles.add(root.register_forward_pre_hook(hooks.forward_pre(act), with_kwargs=True))

    def given(self, chunk: int, root, cell, args: tuple, kwargs: dict | None) -> None:
        adapter = self.adapter
        frame = adapter.clock.frame
        # Copies of a root have its hooks, too.
        if cell is not root or not cell.training or not adapter.attached or frame is None:
            return
        if not has_gradients():
            return
        self.seen = True
        if not frame.recording:
            return
        call = self.calls.next(frame, chunk)
        left_out = unread(args, kwargs or {}, elements.Tensor, "mindspore")
        for element, tensor in elements.of_inputs(args, kwargs or {}):
            own, entropy = self._series_of(chunk, element, tensor)
            place = frame.window, frame.accum, call
            done = ELSEWHERE
            if not adapter.is_elsewhere:
                done = adapter.core.observe_input(own, entropy, tensor, *place)
            if done == REFUSED:
                left_out = left_out or element
            if done != ELSEWHERE:
                continue
            adapter.late.add(own, tensor, *place, 0)
            if not dtype_name(tensor).startswith(("float", "bfloat")):
                why = "on a device, or measured by operations"
                adapter.coverage.not_covered(f"the entropy of input {element}", why)
        if left_out is not None:
            adapter.input_unread(chunk, left_out, frame.window)

    def _series_of(self, chunk: int, element: str, tensor) -> tuple:
        key = chunk, element, dtype_name(tensor)
        if key not in self.series:
            adapter = self.adapter
            place = {
                "name": "",
                "element": element,
                "chunk": chunk,
                "optimizer": adapter.clock.index,
                "replication": replication("input", None, adapter.reduces),
            }
            self.series[key] = (
                adapter.add_series(kind="input", dtype=key[2], **place),
                adapter.add_series(kind="input_entropy", dtype="float64", **place),
            )
        return self.series[key]
