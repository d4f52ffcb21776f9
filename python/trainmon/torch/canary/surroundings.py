# What a model's functions reach by name outside of it: globals, attributes of classes, closures, defaults.
from __future__ import annotations

import functools
import sys
import types
from collections import deque

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
)

MOST_FUNCTIONS = 5_000  # that are looked into, the nearest first
# What these have is no part of a model, or is kept in another way.
_LEFT_OUT = frozenset({*sys.stdlib_module_names, "torch", "numpy", "trainmon"})
_WRAPPING = (
    staticmethod, classmethod, property, functools.partial, functools.cached_property, types.MethodType,
)  # fmt: skip
_BASES = dict, list, set, deque
_MISSING = object()


def _is_left_out(place: str | None) -> bool:
    return (place or "").partition(".")[0] in _LEFT_OUT


class Surroundings:
    """Names through which functions may reach what changes. CannotTwin: one of them is a module or an optimizer."""

    def __init__(self, functions: list[types.FunctionType], classes: set[type]):
        self.names: list[tuple] = []  # (what has it, its name)
        self.seen: set[int] = set()
        self.kept: list = []  # so that ids of `seen` are of these
        self.open = deque(functions)
        for one in classes:
            self._class(one)
        while self.open and len(self.seen) < MOST_FUNCTIONS:
            self._function(self.open.popleft())

    def _is_new(self, value) -> bool:
        if id(value) in self.seen:
            return False
        self.seen.add(id(value))
        self.kept.append(value)
        return True

    def _function(self, function: types.FunctionType) -> None:
        space = function.__globals__
        if not self._is_new(function.__code__) or _is_left_out(space.get("__name__")):
            return
        for cell in function.__closure__ or ():
            self._name(cell, "cell_contents", content_of(cell))
        for defaults in (function.__defaults__ or (), (function.__kwdefaults__ or {}).values()):
            for one in defaults:
                self._name([one], 0, one)
        names = _names_of(function.__code__)
        for name in names & space.keys():
            value = space[name]
            self._name(space, name, value)
            if isinstance(value, types.ModuleType) and not _is_left_out(value.__name__):
                for one in names & vars(value).keys():
                    self._name(vars(value), one, vars(value)[one])

    def _name(self, owner, name, value) -> None:
        if isinstance(value, type):
            self._class(value)
        elif isinstance(value, (types.FunctionType, *_WRAPPING)):
            self._callable(value)
        elif not is_constant(value) or isinstance(value, (int, float, str, bytes, type(None))):
            self.names.append((owner, name))

    def _class(self, kind: type) -> None:
        for base in kind.__mro__:
            if _is_left_out(base.__module__) or not self._is_new(base):
                continue
            for name, value in vars(base).items():
                if not name.startswith("__"):
                    self._name(base, name, value)
                else:
                    self._callable(value)

    def _callable(self, value) -> None:
        if isinstance(value, types.FunctionType):
            self.open.append(value)
        elif isinstance(value, _WRAPPING):
            for name in ("__func__", "fget", "fset", "func"):
                self._callable(getattr(value, name, None))

    def _values(self):
        for owner, name in self.names:
            value = _read(owner, name)
            if value is not _MISSING:
                yield owner, name, value

    def generators(self) -> dict[str, object]:
        return {
            f"{id(owner)} {name}": value
            for owner, name, value in self._values()
            if is_generator(value)
        }

    def keep(self) -> Kept:
        kept = Kept()
        for owner, name, value in self._values():
            kept.name(owner, name, value)
        return kept


class Kept:
    """What names stand for, and what those objects have. What changed is put back."""

    def __init__(self):
        self.names: list[tuple] = []
        self.contents: list[tuple] = []  # (place, object, base or None of attributes, contents)
        self.tensors: list[tuple] = []  # (place, tensor, its version, a copy)
        self.seen: dict[int, object] = {}

    def name(self, owner, name, value) -> None:
        self.names.append((owner, name, value))
        self._object(value, str(name))

    def _object(self, value, place: str) -> None:
        if id(value) in self.seen or is_constant(value) or is_generator(value):
            return
        refuse_what_acts(value, place)
        self.seen[id(value)] = value
        if len(self.seen) > MOST:
            raise CannotTwin(f"its functions may reach more than {MOST:,} objects")
        if isinstance(value, Tensor):
            self.tensors.append((place, value, value._version, value.detach().clone()))
            return
        base = next((one for one in _BASES if isinstance(value, one)), None)
        for of in (base, None):
            if of is None and base is not None and not attributes_of(value):
                continue
            contents = _contents(value, of)
            self.contents.append((place, value, of, contents))
            for one in contents:
                self._object(one, place)

    @torch.no_grad()
    def put_back(self) -> list[str]:
        """The places of what changed."""
        changed = []
        for owner, name, value in self.names:
            if _read(owner, name) is not value:
                changed.append(str(name))
                _write(owner, name, value)
        for place, value, base, contents in self.contents:
            now = _contents(value, base)
            if len(now) != len(contents) or any(a is not b for a, b in zip(now, contents)):
                changed.append(place)
                _fill(value, base, contents)
        for place, tensor, version, copy in self.tensors:
            if tensor._version != version:
                changed.append(place)
                tensor.copy_(copy)
        return changed


def _contents(value, base) -> list:
    """Items of a container, keys before their values; of no base, attributes."""
    if base is None or base is dict:
        items = dict.items(attributes_of(value) if base is None else value)
        return [one for item in items for one in item]
    return list(base.__iter__(value))


def _fill(value, base, contents: list) -> None:
    if base is None or base is dict:
        held = attributes_of(value) if base is None else value
        dict.clear(held)
        dict.update(held, zip(contents[::2], contents[1::2], strict=True))
    elif base is list:
        list.__setitem__(value, slice(None), contents)
    else:
        base.clear(value)
        (set.update if base is set else deque.extend)(value, contents)


def _names_of(code: types.CodeType) -> set[str]:
    """Of globals and attributes, also in functions inside of it."""
    names = set(code.co_names)
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            names |= _names_of(one)
    return names


def _read(owner, name):
    if isinstance(owner, types.CellType):
        return content_of(owner)
    if isinstance(owner, list):
        return owner[name]
    return (vars(owner) if isinstance(owner, type) else owner).get(name, _MISSING)


def _write(owner, name, value) -> None:
    if isinstance(owner, types.CellType):
        owner.cell_contents = value
    elif isinstance(owner, type):
        setattr(owner, name, value)
    else:
        owner[name] = value
