# Rows of collectives: what the functions of torch.distributed were given and what they gave back.
"""Functions are replaced for as long as the monitoring lasts. Four things follow from how c10d works:

- isend and irecv stay, and the methods of ProcessGroup that they call are replaced (METHODS).
- A call that another one makes inside gives no row, nor does one made by an object collective.
- What an asynchronous call gives is read when wait() of its Work has returned, so Work.wait is
  replaced, too. Until then Work and tensors are held weakly.
- Buffers that a call only writes to are not read before it: they hold whatever was there.
"""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from trainmon.base.collective_calls import (
    Seen,
    arguments,
    callers_outside,
    captured,
    compiled,
    match,
    parameters,
)
from trainmon.base.locks import fork_safe_lock
from trainmon.torch.collectives.replaced import (
    METHODS,
    RECORDED,
    SILENT,
    Replacements,
    as_method,
    group_of,
)
from trainmon.torch.hooks.dynamo import compiling
from trainmon.torch.measuring.ops import dtype_name

NOTED_STEPS = 2  # calls are noted until so many steps have ended
NOT_CALLERS = ("distributed/", "nn/modules/module.py")  # of torch


class Call:
    """One recorded call: its name and where its rows belong."""

    __slots__ = ("name", "window", "accum", "number")

    def __init__(self, name: str, window: int, accum: int, number: int):
        self.name, self.window, self.accum, self.number = name, window, accum, number


class Collectives(Replacements):
    """The part that reads collectives. What is called from a training loop catches."""

    def __init__(self, adapter, part, *, inputs: bool, callers: list[str], log_only: bool = False):
        super().__init__()
        # What takes the place of a function lives as long as torch does. A model that is dropped does not.
        self.adapter, self.part = weakref.proxy(adapter), part
        self.inputs, self.log_only = inputs, log_only
        self.callers = compiled(callers)
        self.lock = fork_safe_lock()
        self.series: dict[tuple, int] = {}
        self.window, self.numbers = -1, {}  # calls of each function in this window
        self.waiting: dict[int, tuple] = {}  # id of a Work -> (reference to it, what to read then)
        self.unwaited: set[str] = set()
        self.noted = Seen()

    # --- start and end ---------------------------------------------------------------------------

    def install(self, everything: bool = False) -> None:
        """everything: the setting collectives="all"."""
        coverage = self.adapter.coverage
        if not torch.distributed.is_available():
            coverage.not_covered("cc", "this torch has no torch.distributed")
            return
        self.c10d = c10d = torch.distributed.distributed_c10d
        self.first = self.adapter.clock.window
        self.on = True
        self.patch_functions(RECORDED, self._recorded)
        self.patch_functions(SILENT, self._silent)
        for name in METHODS:
            self.patch(c10d.ProcessGroup, name, self._recorded_method, {})
        self.patch(c10d.Work, "wait", self._wait, {})
        if everything:
            from trainmon.torch.collectives import (
                dispatch_mode,  # imports what older versions do not have
            )

            if not dispatch_mode.install(self):
                coverage.not_covered("cc of calls from C++", "needs a newer torch (2.13 is enough)")
        elif any(wrapper.name == "ddp" for wrapper in self.adapter.wrappers):
            why = 'done in C++, which only collectives="all" sees'
            coverage.not_covered("cc of DDP's own reduction", why)

    def remove(self) -> None:
        if not self.on:
            return
        self.put_back()
        waiting = list(self.waiting.values())
        self.waiting.clear()
        self.unwaited.update(call.name for _, reads in waiting for call, _, _ in reads)
        for name in sorted(self.unwaited):
            self.gave_unseen(name, "asynchronously", "some was not waited for with Work.wait()")
        self.adapter = None

    # --- what takes the place of functions -------------------------------------------------------

    def _recorded(self, name: str, original):
        names = parameters(original)

        def collective(*args, **kwargs):
            if compiling() or not self.on or self.inside.calls:
                return original(*args, **kwargs)
            began = self._function_begins(name, names, args, kwargs)
            self.inside.calls += 1
            try:
                result = original(*args, **kwargs)
            finally:
                self.inside.calls -= 1
            if began is not None:
                self.ended(*began, result)
            return result

        return collective

    def _recorded_method(self, name: str, original):
        return self._recorded(METHODS[name], as_method(name, original))

    def _silent(self, name: str, original):
        def silent(*args, **kwargs):
            if compiling() or not self.on:
                return original(*args, **kwargs)
            self.inside.calls += 1
            try:
                return original(*args, **kwargs)
            finally:
                self.inside.calls -= 1

        return silent

    def _wait(self, name: str, original):
        def wait(work, *args, **kwargs):
            result = original(work, *args, **kwargs)
            if self.waiting:
                self.waited(work)
            return result

        return wait

    # --- what happens while training -------------------------------------------------------------

    def _function_begins(self, name: str, names: tuple, args: tuple, kwargs: dict):
        try:
            if not self._looks():
                return None
            given = arguments(names, args, kwargs)
            group = group_of(given)
            if group is None:
                return None
            inputs = self.inputs
            if name == "broadcast" and inputs:
                inputs = self._is_source(given, group)
            return self.begins(name, given, group, inputs)
        except Exception as error:
            self.failed(error)
            return None

    def _looks(self) -> bool:
        return self.part.on and (self.adapter.clock.recording or self._notes())

    def _notes(self) -> bool:
        return self.adapter.clock.window - self.first < NOTED_STEPS

    def begins(self, name: str, given: dict, group, inputs: bool):
        """Before a call: (its Call, what to read after it), None when it is not recorded."""
        notes, clock = self._notes(), self.adapter.clock
        stack = callers_outside(torch.__file__, *NOT_CALLERS) if notes or self.callers else []
        found = captured(Tensor, name, given)
        if notes:
            tensors = [tensor for _, tensor, _ in found]
            self.noted.add(name, stack, _described(group), tensors)
        if self.log_only or not clock.recording:
            return None
        if self.callers and not match(self.callers, stack):
            return None
        call = self._call(name, clock)
        if inputs:
            for index, tensor, output in found:
                if not output:
                    self.read(call, f"pre.{index}", tensor)
        if group in getattr(getattr(self.c10d, "_world", None), "pg_coalesce_state", ()):
            self.gave_unseen(name, "inside _coalescing_manager", "when it is done is not seen")
            return None
        return call, [(f"post.{index}", tensor) for index, tensor, _ in found]

    def _call(self, name: str, clock) -> Call:
        frame, core = clock.frame, self.adapter.core
        if frame is not None:  # of a forward, or of a backward that has accumulated nothing yet
            accum = frame.accum
        elif clock.pending:  # in or after a backward
            accum = core.accum(clock.index)
        else:
            accum = core.next_accum(clock.index)
        with self.lock:
            if self.window != clock.window:
                self.window, self.numbers = clock.window, {}
            number = self.numbers.get(name, 0)
            self.numbers[name] = number + 1
        return Call(name, clock.window, accum, number)

    def ended(self, call: Call, reads: list, result) -> None:
        """After a call: reads what it gave, or remembers to."""
        try:
            works = result if isinstance(result, list) else [result]
            if result is None or isinstance(result, int):
                for element, tensor in reads:
                    self.read(call, element, tensor)
            elif not all(map(self._seen_waiting, works)) or len(works) not in (1, len(reads)):
                kind = type(works[0] if works else result).__name__
                self.gave_unseen(call.name, f"as a {kind}", "its wait() is not that of Work")
            elif len(works) == 1:
                self._wait_for(works[0], call, reads)
            else:
                for work, read in zip(works, reads):
                    self._wait_for(work, call, [read])
        except Exception as error:
            self.failed(error)

    def _seen_waiting(self, work) -> bool:
        """Whether its wait() is the one that was replaced."""
        if not isinstance(work, self.c10d.Work):
            return False
        return next(c for c in type(work).__mro__ if "wait" in vars(c)) is self.c10d.Work

    def _wait_for(self, work, call: Call, reads: list) -> None:
        place = id(work)

        def gone(_):
            # Nothing of the core from here: the garbage collector calls this anywhere.
            if self.waiting.pop(place, None) is not None:
                self.unwaited.add(call.name)

        weak = [(call, element, weakref.ref(tensor)) for element, tensor in reads]
        self.waiting[place] = weakref.ref(work, gone), weak

    def waited(self, work) -> None:
        try:
            _, reads = self.waiting.pop(id(work), (None, ()))
            for call, element, reference in reads:
                tensor = reference()
                if tensor is not None:
                    self.read(call, element, tensor)
                else:
                    self.unwaited.add(call.name)
        except Exception as error:
            self.failed(error)

    def read(self, call: Call, element: str, tensor: Tensor) -> None:
        if not self.on or not self.part.on:
            return
        adapter, key = self.adapter, (call.name, element, tensor.dtype)
        number = self.series.get(key)
        if number is None:
            number = self.series[key] = adapter.add_series(
                kind="cc",
                name=call.name,
                element=element,
                chunk=0,
                optimizer=adapter.clock.index,
                dtype=dtype_name(tensor),
                replication="independent",
            )
        place = call.window, call.accum, call.number
        adapter.row(number, tensor, *place, 0)

    def _is_source(self, given: dict, group) -> bool:
        if given.get("group_src") is not None:
            return given["group_src"] == self.c10d.get_rank(group)
        return given.get("src") == self.c10d.get_rank()

    def gave_unseen(self, name: str, how: str, why: str) -> None:
        self.adapter.coverage.not_covered(f"what {name} gave {how}", why)

    def failed(self, error: Exception) -> None:
        if isinstance(error, ReferenceError):  # the adapter is gone, with its model
            self.on = False
        if self.on:
            self.part.failed(error)

    def seen(self) -> dict[str, list[dict]]:
        """What was called before the second step ended, recorded or not: per function a list of
        {stack, dtype, group, shape, count}."""
        return self.noted.table()


def _described(group) -> str:
    ranks = " ".join(map(str, torch.distributed.get_process_group_ranks(group)))
    return f"{torch.distributed.get_backend(group)}, ranks {ranks}"
