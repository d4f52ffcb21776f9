# Tables that ranks show each other beside the training, without waiting for anybody. They use a
# process group of the monitor's own, which training's collectives never meet.
from __future__ import annotations

import collections
import ctypes
import hashlib
import time
from datetime import timedelta

import numpy
import torch
from torch import distributed

MEETING = timedelta(seconds=60)  # for all ranks to come to monitor()
PATIENCE = timedelta(seconds=300)  # for a rank that is behind, in a long checkpoint say
FAREWELL = 2.0  # seconds, for ranks that stop at the same time
LEFT = -1.0  # the place of a rank that has stopped
_met: collections.Counter = collections.Counter()  # exchanges made, by their ranks
_left: list[Left] = []


class Exchange:
    """Among `ranks` (global ones), made by all of them at the same place of their program; `terms`
    must be the same on all. RuntimeError, on all of them, where they are not or one does not come.
    Closing it anywhere lets the tables sent elsewhere come to an end."""

    def __init__(self, ranks: list[int], terms: str, shape: tuple[int, int]):
        mine = distributed.get_rank()
        who = hashlib.sha256(repr(ranks).encode()).hexdigest()[:16]
        _met[who] += 1
        self.shape = shape[0] + 1, shape[1]  # the last row is the place
        self.ranks = ranks
        store = distributed.distributed_c10d._get_default_store()
        store = distributed.PrefixStore(f"trainmon/{who}/{_met[who]}", store)
        _agree(store, ranks, mine, hashlib.sha256(repr((terms, shape)).encode()).hexdigest())
        place = ranks.index(mine)
        self.group = distributed.ProcessGroupGloo(store, place, len(ranks), PATIENCE)
        self.underway: list[Sent] = []

    def send(self, table: numpy.ndarray, place: tuple[int, int]) -> Sent:
        """`table` to all, float64, with where training is: two numbers that must agree."""
        whole = numpy.zeros(self.shape)
        whole[:-1] = table
        whole[-1, :2] = place
        self.underway = [sent for sent in self.underway if not sent.ready()]
        self.underway.append(Sent(self.group, self.ranks, whole))
        return self.underway[-1]

    def close(self, seconds: float) -> None:
        """Says so to the others, and waits for them so long."""
        if self.group is None:
            return
        left = Left(self.group, self.underway)
        _left.append(left)
        self.group, self.underway = None, []
        whole = numpy.zeros(self.shape)
        whole[-1, 0] = LEFT
        farewell = Sent(left.group, self.ranks, whole)
        left.underway.append(farewell)
        end = time.monotonic() + seconds
        while not farewell.ready() and time.monotonic() < end:
            time.sleep(0.001)
        for done in [left for left in _left if left.is_over()]:
            _left.remove(done)
            done.free()


class Sent:
    """Tables of all ranks on their way."""

    def __init__(self, group, ranks: list[int], whole: numpy.ndarray):
        self.place, self.ranks = whole[-1, :2].copy(), ranks
        self.work, self.tables = _all_gather(group, whole, len(ranks))

    def ready(self) -> bool:
        return self.work.is_completed()

    def values(self) -> list[numpy.ndarray]:
        """Without waiting once ready(). RuntimeError if a rank is gone, behind or elsewhere."""
        self.work.wait()
        tables = [table.numpy() for table in self.tables]
        for rank, table in zip(self.ranks, tables, strict=True):
            if table[-1, 0] == LEFT:
                raise RuntimeError(f"rank {rank} has stopped its monitor")
            if (table[-1, :2] != self.place).any():
                raise RuntimeError(
                    f"rank {rank} ended {table[-1, 0]:.0f} steps with {table[-1, 1]:.0f} of its "
                    f"optimizers, this rank {self.place[0]:.0f} with {self.place[1]:.0f}"
                )
        return [table[:-1] for table in tables]


class Left:
    """A closed group with what is on its way. It is free() when all of that is over, and otherwise
    never. Its destructor would wait for the other ranks. A thread of gloo that is the last to hold
    a tensor would want the interpreter, which aborts a process that is ending."""

    def __init__(self, group, underway: list[Sent]):
        self.group, self.underway = group, underway
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def is_over(self) -> bool:
        return all(sent.ready() for sent in self.underway)

    def free(self) -> None:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(self))


def _agree(store, ranks: list[int], mine: int, terms: str) -> None:
    store.set(f"terms{mine}", terms)
    keys = [f"terms{rank}" for rank in ranks]
    try:
        store.wait(keys, MEETING)
    except RuntimeError:
        store.set("off", "")
        absent = [rank for rank, key in zip(ranks, keys, strict=True) if not store.check([key])]
        raise RuntimeError(f"ranks {absent} did not come to monitor()") from None
    if store.check(["off"]):
        raise RuntimeError("this rank came to monitor() too late")
    others = [
        rank for rank, key in zip(ranks, keys, strict=True) if store.get(key) != terms.encode()
    ]
    if others:
        raise RuntimeError(f"ranks {others} have other parameters than rank {mine}")


def _all_gather(group, whole: numpy.ndarray, count: int):
    with torch.no_grad():
        table = torch.from_numpy(whole)
        tables = [torch.empty_like(table) for _ in range(count)]
        return group.allgather([tables], [table]), tables
