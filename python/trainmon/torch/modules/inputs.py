# What the whole model is given in each forward of the training: rows of kind input and input_entropy.
"""Evaluation (eval(), no_grad) and a forward that is run again inside a backward give no rows. Tensors of
a device are not read, for training would wait for them."""

from __future__ import annotations

import torch

from trainmon.base.arguments import unread
from trainmon.base.calls import Calls
from trainmon.base.rows import ELSEWHERE, REFUSED
from trainmon.torch.hooks.backward import IDLE, current_task
from trainmon.torch.hooks.dynamo import compiling
from trainmon.torch.hooks.hook import Hook
from trainmon.torch.hooks.unseen import unseen
from trainmon.torch.modules import elements


class Inputs:
    """The part that reads them. One call of a model chunk has the number of its call at this place."""

    def __init__(self, adapter, part):
        self.adapter, self.part = adapter, part
        self.series: dict[tuple, tuple] = {}  # by chunk and element: (its own, of its entropy)
        self.calls = Calls(len(adapter.roots))
        self.evaluated_in: dict[float, int] = {}  # the newest window in which this was said

    def install(self, handles) -> None:
        for chunk, root in enumerate(self.adapter.roots):
            if not isinstance(root, torch.jit.ScriptModule):
                hook = self.adapter.timed(BeforeForward(self, chunk))
                handles.hook(root, "register_forward_pre_hook", hook, with_kwargs=True)

    def given(self, chunk: int, args: tuple, kwargs: dict) -> None:
        adapter = self.adapter
        frame = adapter.clock.frame or adapter.open_frame()
        if not frame.recording:
            return
        call = self.calls.next(frame, chunk)
        left_out = unread(args, kwargs, torch.Tensor, "torch")
        for element, tensor in elements.of_inputs(args, kwargs):
            own, entropy = self._series_of(chunk, element, tensor)
            place = frame.window, frame.accum, call
            done = ELSEWHERE
            if not adapter.is_elsewhere:
                done = adapter.core.observe_input(own, entropy, tensor, *place)
            if done == ELSEWHERE:
                adapter.late.add(own, tensor, *place, 0)
            if done == REFUSED:
                left_out = left_out or element
            is_far = done == ELSEWHERE or tensor.device.type != "cpu"
            if is_far and not tensor.is_floating_point():
                why = "on a device, or measured by operations"
                adapter.coverage.not_covered(f"the entropy of input {element}", why)
        if left_out is not None:
            adapter.input_unread(chunk, left_out, frame.window)

    def evaluated(self, chunk: int, is_inside: bool = False) -> None:
        """A forward in evaluation mode, with gradients: of all, or of what is inside a wrapper alone.
        It is said once a window, of a model that was trained."""
        adapter = self.adapter
        window = adapter.clock.window
        what = float(-1 - chunk if is_inside else chunk)
        was_trained = any(key[0] == chunk for key in self.series)
        if was_trained and adapter.clock.recording and self.evaluated_in.get(what) != window:
            self.evaluated_in[what] = window
            adapter.core.add_scalar("trainmon/evaluation", what, window)

    def _series_of(self, chunk: int, element: str, tensor) -> tuple:
        key = chunk, element, tensor.dtype
        found = self.series.get(key)
        if found is None:
            found = self.series[key] = self.adapter.input_series(
                element, chunk, tensor, self._replication(chunk)
            )
        return found

    def _replication(self, chunk: int) -> str:
        """Whether ranks are given parts of one batch ("union"). It is not known where a parameter
        is cut along two dimensions of ranks, of which one is of tensor parallelism."""
        found = self.adapter.wrappers[chunk].placement("input", None).replication
        for parameter in self.adapter.parameters if found == "union" else ():
            placements = getattr(parameter.tensor, "placements", ())
            if sum(not placement.is_replicate() for placement in placements) > 1:
                return "independent"
        return found


class BeforeForward(Hook):
    """Forward pre-hook of a model chunk, after the one that opens its place."""

    __slots__ = ("inputs", "chunk")

    def __init__(self, inputs, chunk):
        self.inputs, self.chunk = inputs, chunk

    # Libraries that move hooks to another module register them again without with_kwargs.
    def __call__(self, module, args, kwargs=None):
        if compiling() or not self.inputs.part.on:
            return
        try:
            if current_task() != IDLE or not torch.is_grad_enabled():
                return
            if not module.training:
                self.inputs.evaluated(self.chunk)
                return
            with unseen(from_tensors=True):
                self.inputs.given(self.chunk, args, kwargs or {})
            is_around = isinstance(module, torch.nn.parallel.DistributedDataParallel)
            if is_around and not module.module.training:
                self.inputs.evaluated(self.chunk, is_inside=True)
        except Exception as error:
            self.inputs.part.failed(error)
