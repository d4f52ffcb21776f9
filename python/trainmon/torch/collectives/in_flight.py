# Calls of torch.distributed as the flight recorder sees them: when a thread enters one, and leaves it.
"""Every call is told, whatever steps are recorded: numbers of calls must agree between ranks. No tensor
is read. Calls that C++ makes itself (DDP's reduction, those of compiled code) are not seen."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from trainmon.base.collective_calls import arguments, captured, parameters
from trainmon.torch.collectives.replaced import (
    METHODS,
    RECORDED,
    SILENT,
    Replacements,
    as_method,
    group_of,
)
from trainmon.torch.hooks.dynamo import compiling

POINT_TO_POINT = frozenset(
    ("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list")
)
BARRIERS = ("barrier", "monitored_barrier")


class CallsSoFar:
    """Of each group; kept by who takes hooks off and puts them on again. Where a process destroys its groups
    and makes others, torch gives these the same names: what came before says nothing of them."""

    def __init__(self):
        self.numbers: dict[tuple, int] = {}  # (name of a group, point to point) -> calls
        self.worlds = 0
        self.world = None  # reference to the group of all processes

    def name(self, group) -> str:
        world = torch.distributed.group.WORLD
        if self.world is None or self.world() is not world:
            self.worlds += 1
            self.world = weakref.ref(world)
        return group.group_name if self.worlds == 1 else f"{group.group_name}#{self.worlds}"

    def next(self, name: str, sent: bool) -> int:
        number = self.numbers[name, sent] = self.numbers.get((name, sent), 0) + 1
        return number


class InFlight(Replacements):
    """What is called from a training loop catches."""

    def __init__(self, core, part, calls: CallsSoFar):
        super().__init__()
        self.core, self.part, self.calls = core, part, calls
        self.words: dict[str, int] = {}
        self.groups: dict[str, int] = {}  # name -> number in the recorder
        self.works: dict[int, tuple] = {}  # id of a Work -> (reference to it, call)

    def install(self) -> None:
        if not torch.distributed.is_available():
            return
        self.on = True
        self.patch_functions((*RECORDED, *SILENT, *BARRIERS), self._seen)
        c10d = torch.distributed.distributed_c10d
        for name in METHODS:
            self.patch(c10d.ProcessGroup, name, self._seen_method, {})
        self.patch(c10d.Work, "wait", self._wait, {})

    def remove(self) -> None:
        self.put_back()
        self.works.clear()

    def _seen(self, name: str, original):
        names = parameters(original)

        def seen(*args, **kwargs):
            if compiling() or not self.on or self.inside.calls:
                return original(*args, **kwargs)
            call = self._enters(name, names, args, kwargs)
            result = None
            self.inside.calls += 1
            try:
                result = original(*args, **kwargs)
                return result
            finally:
                self.inside.calls -= 1
                if call is not None:
                    self._leaves(call, result)

        return seen

    def _seen_method(self, name: str, original):
        return self._seen(METHODS[name], as_method(name, original))

    def _wait(self, name: str, original):
        def wait(work, *args, **kwargs):
            call = self._waited(work) if self.works else None
            if call is None:
                return original(work, *args, **kwargs)
            try:
                return original(work, *args, **kwargs)
            finally:
                self.part.run(self._tell, False, True, call)

        return wait

    def _enters(self, name: str, names: tuple, args: tuple, kwargs: dict):
        if not self.part.on:
            return None
        try:
            given = arguments(names, args, kwargs)
            group = group_of(given)
            if group is None:
                return None
            sent = name in POINT_TO_POINT
            label = self.calls.name(group)
            number = self.calls.next(label, sent)
            tensors = captured(Tensor, name, given)
            bytes_ = sum(tensor.nbytes for _, tensor, _ in tensors)
            call = sent, self._word(name), self._group(group, label), number, bytes_
            self._tell(True, False, call)
            return call
        except Exception as error:
            self.part.failed(error)
            return None

    def _leaves(self, call: tuple, result) -> None:
        try:
            self._tell(False, False, call)
            works = result if isinstance(result, list) else [result]  # of batch_isend_irecv
            for work in works:
                if isinstance(work, torch.distributed.Work):
                    self._expect(work, call)
        except Exception as error:
            self.part.failed(error)

    def _expect(self, work, call: tuple) -> None:
        place = id(work)
        gone = weakref.ref(work, lambda _: self.works.pop(place, None))
        self.works[place] = gone, call

    def _waited(self, work):
        """The call whose Work it is, which a thread waits for from now on."""
        _, call = self.works.pop(id(work), (None, None))
        if call is not None:
            self.part.run(self._tell, True, True, call)
        return call

    def _tell(self, enters: bool, waits: bool, call: tuple) -> None:
        self.core.note_collective(enters, waits, *call)

    def _word(self, name: str) -> int:
        number = self.words.get(name)
        if number is None:
            number = self.words[name] = self.core.flight_word(name)
        return number

    def _group(self, group, name: str) -> int:
        number = self.groups.get(name)
        if number is None:
            ranks = torch.distributed.get_process_group_ranks(group)
            is_all = len(ranks) == torch.distributed.get_world_size()
            text = "*" if is_all else ",".join(map(str, ranks))
            number = self.groups[name] = self.core.flight_group(name, text)
        return number
