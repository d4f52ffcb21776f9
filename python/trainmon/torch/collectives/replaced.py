# Functions of torch.distributed that others take the place of, for as long as somebody looks at calls.
"""isend and irecv stay: P2POp and batch_isend_irecv compare them by identity. The methods of
ProcessGroup that they call are replaced instead."""

from __future__ import annotations

import functools
import threading
import weakref

import torch

from trainmon.base.signals import pass_on

RECORDED = (
    "send", "recv", "batch_isend_irecv", "broadcast", "all_reduce", "all_reduce_coalesced", "reduce",
    "scatter", "gather", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor",
    "reduce_scatter_single", "reduce_scatter_tensor_coalesced", "all_gather", "_all_gather_base",
    "all_gather_coalesced", "all_gather_into_tensor", "all_gather_single",
    "all_gather_into_tensor_coalesced", "all_to_all", "all_to_all_single",
)  # fmt: skip
SILENT = (
    "all_gather_object", "gather_object", "scatter_object_list", "broadcast_object_list",
    "send_object_list", "recv_object_list",
)  # fmt: skip
METHODS = {"send": "isend", "recv": "irecv", "recv_anysource": "irecv"}  # of ProcessGroup


class Inside(threading.local):
    calls = 0  # under way on this thread, of functions that were replaced


class Replacements:
    """Base of what looks at calls. `on` from the first patch to put_back()."""

    def __init__(self):
        self.on = False
        self.inside = Inside()
        self.patches: list[tuple] = []  # (module or class, attribute, what was there, ours)
        self.behind = None  # puts back once the one that looks is gone

    def put_back_behind(self, owner) -> None:
        """Once `owner` is gone, though nobody said that it ends: torch would hold what it records with."""
        self.behind = weakref.finalize(owner, self.put_back)
        self.behind.atexit = False

    def patch_functions(self, names, make) -> None:
        for name in names:
            # What is one object in both modules stays one.
            made: dict = {}
            self.patch(torch.distributed, name, make, made)
            self.patch(torch.distributed.distributed_c10d, name, make, made)

    def patch(self, space, name: str, make, made: dict) -> None:
        original = vars(space).get(name)
        if original is None:  # not in this version of torch
            return
        if id(original) not in made:
            ours = functools.wraps(original)(make(name, original))
            ours.replacements = self
            made[id(original)] = ours
        ours = made[id(original)]
        self.patches.append((space, name, original, ours))
        setattr(space, name, ours)

    def put_back(self) -> None:
        """What was there. Where another library has put something on top of ours, ours stays below it
        and does nothing any more."""
        self.on = False
        if self.behind is not None:
            self.behind.detach()
        for space, name, original, ours in reversed(self.patches):
            if vars(space).get(name) is ours:
                # What was there may itself be ours, of a monitor that has stopped since.
                while _code(original) == ours.__code__ and not original.replacements.on:
                    original = original.__wrapped__
                setattr(space, name, original)
        self.patches.clear()


def as_method(name: str, original):
    """A function in the place of a method of ProcessGroup that it can be told from by no override."""

    def call(group, tensors, *args, **kwargs):
        return original(group, tensors, *args, **kwargs)

    # By this name, and the first argument, pybind knows that an override is calling its method.
    call.__code__ = call.__code__.replace(co_name=name)
    return call


def group_of(given: dict):
    """The group of a call, None if there is none or this rank is not in it."""
    c10d = torch.distributed.distributed_c10d
    try:
        group = given.get("group")
        if listed := given.get("p2p_op_list"):
            group = listed[0].group
        if group is None:
            group = c10d._get_default_group()
        return group if c10d.get_rank(group) >= 0 else None
    except Exception as error:  # the call itself will say what is wrong
        pass_on(error)
        return None


def _code(function):
    return getattr(function, "__code__", None)
