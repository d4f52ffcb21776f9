# Rows of collectives: what functions and primitives of communication were given and what they gave back.
"""Functions, and the call of primitives, are replaced for as long as the monitoring lasts. A call that
another one makes inside gives no row. What an asynchronous call gives is read when wait() of its handle
has returned. Inside graphs nothing is seen, nor is what nn.DistributedGradReducer does in C++.
"""

from __future__ import annotations

import threading
import weakref

import mindspore as ms
from mindspore import Tensor
from mindspore.communication import GlobalComm, comm_func
from mindspore.mint import distributed
from mindspore.ops.operations import comm_ops

from trainmon.base.collective_calls import (
    Seen,
    arguments,
    callers_outside,
    captured,
    compiled,
    match,
    parameters,
    tensors_of,
)
from trainmon.mindspore.parameters import dtype_name

FUNCTIONS = (
    "all_gather", "all_gather_into_tensor", "all_gather_into_tensor_uneven", "all_reduce",
    "all_to_all", "all_to_all_single", "all_to_all_single_with_output_shape", "all_to_all_v_c",
    "all_to_all_with_output_shape", "batch_isend_irecv", "broadcast", "gather",
    "gather_into_tensor", "irecv", "isend", "recv", "reduce", "reduce_scatter",
    "reduce_scatter_tensor", "reduce_scatter_tensor_uneven", "scatter", "scatter_tensor", "send",
)  # fmt: skip
PRIMITIVES = (
    "AllGather", "AllGatherV", "AllReduce", "AlltoAll", "AlltoAllV", "Broadcast",
    "CollectiveGather", "CollectiveScatter", "NeighborExchange", "NeighborExchangeV2", "Receive",
    "Reduce", "ReduceScatter", "ReduceScatterV", "Send",
)  # fmt: skip
NOTED_STEPS = 2  # calls are noted until so many steps have ended
COMPILING = False  # python/trainmon/mindspore/hooks.py says how a graph gets the first branch

NOT_CALLERS = ("communication/", "mint/distributed/", "nn/cell.py")  # of MindSpore


def replaced(original, around):
    """In the place of a function, or of the call of a class. No functools.wraps: MindSpore's parser
    would read the source of what is wrapped."""

    def call(*args, **kwargs):
        if COMPILING:  # @jit.cond: True
            return original(*args, **kwargs)
        return around(original, args, kwargs)

    return call


class Inside(threading.local):
    calls = 0  # under way on this thread, of what was replaced


class Collectives:
    """The part that reads collectives. What is called from a training loop catches."""

    def __init__(self, adapter, part, *, inputs: bool, callers: list[str], log_only: bool = False):
        self.adapter, self.part = adapter, part
        self.inputs, self.log_only = inputs, log_only
        self.callers = compiled(callers)
        self.first = adapter.clock.window
        self.inside = Inside()
        self.patches: list[tuple] = []  # (module or class, attribute, what was there or None, ours)
        self.series: dict[tuple, int] = {}
        self.window, self.numbers = -1, {}  # calls of each function in this window
        self.waiting = weakref.WeakKeyDictionary()  # handle -> what to read when it was waited for
        self.on = True
        self.noted = Seen()

    # --- start and end ---------------------------------------------------------------------------

    def install(self) -> None:
        made: dict = {}  # what is one object in several modules stays one
        for space in (distributed, distributed.distributed, comm_func):
            for name in FUNCTIONS:
                original = vars(space).get(name)
                if original is None:
                    continue
                if id(original) not in made:
                    made[id(original)] = self._function(name, original)
                self._patch(space, name, made[id(original)])
        for name in PRIMITIVES:
            if (primitive := getattr(comm_ops, name, None)) is not None:
                self._patch(primitive, "__call__", self._primitive(name, primitive.__call__))
        self._patch(comm_func.CommHandle, "wait", self._wait(comm_func.CommHandle.wait))

    def _patch(self, space, name: str, ours) -> None:
        self.patches.append((space, name, vars(space).get(name), ours))
        setattr(space, name, ours)

    def remove(self) -> None:
        """Puts back what was there. Where something else was put on top of ours, ours stays below it
        and does nothing any more."""
        self.on = False
        for space, name, original, ours in reversed(self.patches):
            if vars(space).get(name) is not ours:
                continue
            if original is None:  # inherited
                delattr(space, name)
            else:
                setattr(space, name, original)
        self.patches.clear()
        for call, _ in list(self.waiting.values()):
            self._gave_unseen(call[0], "wait() of its handle was not called")
        self.waiting.clear()
        self.adapter = None

    # --- what takes the place of functions -------------------------------------------------------

    def _function(self, name: str, original):
        names = parameters(original)

        def around(original, args, kwargs):
            return self._call(name, lambda: arguments(names, args, kwargs), original, args, kwargs)

        return _like(original, replaced(original, around))

    def _primitive(self, name: str, original):
        def around(original, args, kwargs):
            def given():
                own = getattr(args[0], "group", GlobalComm.WORLD_COMM_GROUP)
                return {**{str(i): one for i, one in enumerate(args[1:])}, "group": own}

            return self._call(name, given, original, args, kwargs)

        return _like(original, replaced(original, around))

    def _wait(self, original):
        def around(original, args, kwargs):
            result = original(*args, **kwargs)
            if self.on and self.waiting:
                self._guarded(self._waited, args[0])
            return result

        return _like(original, replaced(original, around))

    def _call(self, name: str, given, original, args: tuple, kwargs: dict):
        if not self.on or not self.part.on or self.inside.calls:
            return original(*args, **kwargs)
        began = self._guarded(self._begins, name, given)
        self.inside.calls += 1
        try:
            result = original(*args, **kwargs)
        finally:
            self.inside.calls -= 1
        if began is not None:
            self._guarded(self._ended, *began, result)
        return result

    def _guarded(self, act, *arguments):
        try:
            return act(*arguments)
        except Exception as error:
            self.part.failed(error)
            return None

    # --- what happens while training -------------------------------------------------------------

    def _begins(self, name: str, given):
        """(its place, what it may have written to), None when it is not recorded."""
        clock = self.adapter.clock
        notes = clock.window - self.first < NOTED_STEPS
        if not (clock.recording or notes):
            return None
        stack = callers_outside(ms.__file__, *NOT_CALLERS) if notes or self.callers else []
        named = given()
        found = captured(Tensor, name, named)
        if notes:
            group = str(named.get("group") or GlobalComm.WORLD_COMM_GROUP)
            self.noted.add(name, stack, group, [tensor for _, tensor, _ in found])
        if self.log_only or not clock.recording:
            return None
        if self.callers and not match(self.callers, stack):
            return None
        call = self._place(name, clock)
        if self.inputs:
            for index, tensor, output in found:
                if not output:
                    self._read(call, f"pre.{index}", tensor)
        return call, [(f"post.{index}", tensor) for index, tensor, _ in found]

    def _place(self, name: str, clock) -> tuple:
        frame, core = clock.frame, self.adapter.core
        if frame is not None:
            accum = frame.accum
        else:
            accum = core.accum(clock.index) if clock.pending else core.next_accum(clock.index)
        if self.window != clock.window:
            self.window, self.numbers = clock.window, {}
        number = self.numbers.get(name, 0)
        self.numbers[name] = number + 1
        return name, clock.window, accum, number

    def _ended(self, call: tuple, reads: list, result) -> None:
        """Reads what a call gave: what it returned, else what it was given to write to."""
        if returned := list(tensors_of(Tensor, result, True)):
            reads = [(f"post.{index}", tensor) for index, (tensor, _) in enumerate(returned)]
        some = result if isinstance(result, (list, tuple)) else [result]
        handles = [one for one in some if isinstance(one, comm_func.CommHandle)]
        if not handles:
            for element, tensor in reads:
                self._read(call, element, tensor)
        elif len(handles) in (1, len(reads)):
            for i, handle in enumerate(handles):
                mine = reads if len(handles) == 1 else reads[i : i + 1]
                weak = [(element, weakref.ref(tensor)) for element, tensor in mine]
                self.waiting[handle] = call, weak
        else:
            self._gave_unseen(call[0], "its handles are not one for each tensor")

    def _waited(self, handle) -> None:
        call, reads = self.waiting.pop(handle, (None, ()))
        for element, reference in reads:
            if (tensor := reference()) is not None:
                self._read(call, element, tensor)

    def _read(self, call: tuple, element: str, tensor: Tensor) -> None:
        adapter, (name, *place) = self.adapter, call
        key = name, element, str(tensor.dtype)
        series = self.series.get(key)
        if series is None:
            series = self.series[key] = adapter.add_series(
                kind="cc",
                name=name,
                element=element,
                chunk=0,
                optimizer=adapter.clock.index,
                dtype=dtype_name(tensor),
                replication="independent",
            )
        adapter.row(series, tensor, *place, 0)

    def _gave_unseen(self, name: str, why: str) -> None:
        self.adapter.coverage.not_covered(f"what {name} gave asynchronously", why)

    def seen(self) -> dict[str, list[dict]]:
        """What was called before the second step ended, recorded or not: per function a list of
        {stack, dtype, group, shape, count}."""
        return self.noted.table()


def _like(original, ours):
    for key in ("__name__", "__qualname__", "__doc__", "__module__"):
        setattr(ours, key, getattr(original, key, None))
    return ours
