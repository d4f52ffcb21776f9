# What names stand for and what those objects have, put back where a forward changed it.
from __future__ import annotations

import _thread
import contextvars
import functools
import operator
import sys
import threading
import types
from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor

from trainmon.torch.canary.random_states import is_generator
from trainmon.torch.canary.stand_ins import (
    MOST,
    CannotTwin,
    attributes_of,
    content_of,
    is_constant,
    refuse_what_acts,
    slots_of,
)

MISSING = object()
_BASES = dict, list, set, deque
_RANDOM = "rand", "normal", "uniform", "bernoulli", "multinomial", "choice", "shuffle", "sample"
_CACHED = type(functools.lru_cache(len))
_SHARED_BY_THREADS = _thread.LockType, _thread.RLock, threading.Thread


class Kept:
    """`stored` are names that the functions write: what others change in the meantime stays, as a signal handler."""

    def __init__(self, stored: set[str]):
        self.stored = stored
        self.names: list[tuple] = []
        self.contents: list[tuple] = []  # (place, object, how it is read and filled, contents)
        self.arrays: list[tuple] = []  # (place, tensor or array, a copy)
        self.generators: dict[str, object] = {}  # by place
        self.caches: list[tuple] = []  # (place, function with a cache, how often it had to compute)
        self.seen: dict[int, object] = {}

    def name(self, owner, name, value, place: str, is_of_package: bool) -> None:
        """CannotTwin, but for what a package has: it keeps locks and counts of its own."""
        self.names.append((owner, name, value, place))
        try:
            self._keep(value, place, f"{id(owner)}")
        except CannotTwin:
            if not is_of_package:
                raise

    def _keep(self, value, place: str, path: str) -> None:
        if id(value) in self.seen or is_constant(value):
            return
        if is_generator(value):
            self.generators[path + place] = value
            return
        refuse_what_acts(value, place)
        why = _why_not(value)
        if why:
            raise CannotTwin(f"its functions may {why} {place}, a {type(value).__name__}")
        self.seen[id(value)] = value
        if len(self.seen) > MOST:
            raise CannotTwin(f"its functions may reach more than {MOST:,} objects")
        if isinstance(value, _CACHED):
            self.caches.append((place, value, value.cache_info().misses))
        if _is_array(value):
            copy = value.detach().clone() if isinstance(value, Tensor) else value.copy()
            self.arrays.append((place, value, copy))
            return
        for way in _ways_of(value):
            contents = way.read(value)
            self.contents.append((place, value, way, contents))
            for i, one in enumerate(contents):
                self._keep(one, place, f"{path}.{i}")

    def put_back(self) -> list[str]:
        """The places of what changed."""
        changed = []
        for owner, name, value, place in self.names:
            is_written = isinstance(owner, types.CellType) or name in self.stored
            if is_written and read(owner, name) is not value:
                changed.append(place)
                _write(owner, name, value)
        for place, value, way, contents in self.contents:
            if way.put_back(value, contents, self.stored):
                changed.append(place)
        for place, value, copy in self.arrays:
            if not are_same_bits(value, copy):
                changed.append(place)
                put_values(value, copy)
        for place, function, misses in self.caches:
            if function.cache_info().misses != misses:
                changed.append(f"the cache of {place}")
        return changed


def _is_array(value) -> bool:
    numpy = sys.modules.get("numpy")
    return isinstance(value, Tensor) or (numpy is not None and isinstance(value, numpy.ndarray))


def _why_not(value) -> str:
    """What it does that cannot be undone: it goes on where it is used, or threads wait for it."""
    if isinstance(value, (contextvars.ContextVar, types.GeneratorType, types.CoroutineType)):
        return "advance"
    if isinstance(value, Iterator) and not attributes_of(value) and not slots_of(value):
        return "advance"
    if isinstance(value, _SHARED_BY_THREADS):
        return "wait for"
    if isinstance(value, _CACHED) and draws(value.__wrapped__):
        return "draw the random numbers that stay in the cache of"
    if isinstance(value, Tensor):
        return "" if value.layout is torch.strided and not value.is_meta else "change"
    return "change" if _is_array(value) and value.dtype.hasobject else ""


def draws(function) -> bool:
    """Whether it names what draws random numbers, as far as its own code tells."""
    names = names_of(getattr(function, "__code__", None))
    return any(part in name for name in names for part in _RANDOM)


def names_of(code: types.CodeType | None) -> set[str]:
    """All that its code names, also in functions inside of it."""
    names = set() if code is None else set(code.co_names)
    for one in () if code is None else code.co_consts:
        if isinstance(one, types.CodeType):
            names |= names_of(one)
    return names


@torch.no_grad()
def are_same_bits(value, copy) -> bool:
    """Of tensors or of arrays. A NaN is as another one."""
    if value.shape != copy.shape:
        return False
    same = (value == copy) | ((value != value) & (copy != copy))
    return bool(same.all())


@torch.no_grad()
def put_values(value, copy) -> None:
    if isinstance(value, Tensor) and value.shape != copy.shape:
        value.data = copy
    elif isinstance(value, Tensor):
        value.data.copy_(copy)  # graphs that saved it hold: it has the values again
    else:
        value[...] = copy


# --- contents of objects ----------------------------------------------------------------------------


class _Attributes:
    @staticmethod
    def read(value) -> list:
        return [one for item in attributes_of(value).items() for one in item]

    @staticmethod
    def put_back(value, contents: list, stored: set[str]) -> bool:
        now, before = attributes_of(value), dict(zip(contents[::2], contents[1::2], strict=True))
        changed = [
            name
            for name in {*now, *before} & stored
            if now.get(name, MISSING) is not before.get(name, MISSING)
        ]
        for name in changed:
            if name in before:
                now[name] = before[name]
            else:
                del now[name]
        return bool(changed)


class _Slots:
    @staticmethod
    def read(value) -> list:
        return [one for item in slots_of(value) for one in item]

    @staticmethod
    def put_back(value, contents: list, stored: set[str]) -> bool:
        now, before = slots_of(value), list(zip(contents[::2], contents[1::2], strict=True))
        held = dict(now)
        changed = [(slot, one) for slot, one in before if held.get(slot, MISSING) is not one]
        changed = [(slot, one) for slot, one in changed if slot.__name__ in stored]
        for slot, one in changed:
            slot.__set__(value, one)
        return bool(changed)


class _Items:
    def __init__(self, base: type):
        self.base = base

    def read(self, value) -> list:
        if self.base is dict:
            return [one for item in dict.items(value) for one in item]
        return list(self.base.__iter__(value))

    def put_back(self, value, contents: list, stored: set[str]) -> bool:
        now = self.read(value)
        if len(now) == len(contents) and all(map(operator.is_, now, contents)):
            return False
        self.base.clear(value)
        if self.base is dict:
            dict.update(value, zip(contents[::2], contents[1::2], strict=True))
        else:
            (set.update if self.base is set else self.base.extend)(value, contents)
        return True


class _Held:
    """Of what is never another one: a method's object, a partial's arguments, items of a tuple."""

    @staticmethod
    def read(value) -> list:
        if isinstance(value, types.MethodType):
            return [value.__self__, value.__func__]
        if isinstance(value, types.BuiltinFunctionType):
            return [value.__self__]
        if isinstance(value, functools.partial):
            return [value.func, *value.args, *value.keywords.values()]
        return list(value)

    @staticmethod
    def put_back(value, contents: list, stored: set[str]) -> bool:
        return False


_HELD = types.MethodType, types.BuiltinFunctionType, functools.partial, tuple, frozenset


def _ways_of(value) -> list:
    if isinstance(value, _HELD):
        return [_Held]
    base = next((one for one in _BASES if isinstance(value, one)), None)
    ways = [] if base is None else [_Items(base)]
    return [*ways, _Attributes, _Slots]


def items_of(value) -> list:
    """All that it has."""
    if _is_array(value) or is_generator(value):
        return []
    return [one for way in _ways_of(value) for one in way.read(value)]


# --- names ------------------------------------------------------------------------------------------


def read(owner, name):
    """What a name of a cell, a class, a list or a dictionary stands for; MISSING without it."""
    if isinstance(owner, types.CellType):
        return content_of(owner)
    if isinstance(owner, list):
        return owner[name]
    return (vars(owner) if isinstance(owner, type) else owner).get(name, MISSING)


def _write(owner, name, value) -> None:
    if isinstance(owner, types.CellType):
        owner.cell_contents = value
    elif isinstance(owner, type):
        setattr(owner, name, value)
    else:
        owner[name] = value
