# What a model's functions reach by name outside of it: globals, attributes of classes, closures, defaults.
from __future__ import annotations

import contextlib
import dis
import functools
import pathlib
import sys
import types
from collections import deque

from trainmon.torch.canary.kept import MISSING, Kept, items_of, names_of, read
from trainmon.torch.canary.random_states import is_generator
from trainmon.torch.canary.stand_ins import (
    BESIDE_MODELS,
    PLAIN,
    CannotTwin,
    content_of,
    is_constant,
    package_of,
)

MOST_OPENED = 20_000  # functions, classes and objects that are looked into, the nearest first
# What they have is no part of a model, or is kept in another way.
_LIBRARIES = BESIDE_MODELS.union(
    sys.stdlib_module_names, ("torch", "numpy", "trainmon", "torchvision", "scipy")
)
_WRAPPING = (
    staticmethod, classmethod, property, functools.partial, functools.cached_property, types.MethodType,
    contextlib._GeneratorContextManager,
)  # fmt: skip
_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_STORES = {"STORE_ATTR", "STORE_GLOBAL", "STORE_NAME", "DELETE_ATTR", "DELETE_GLOBAL"}
# What reach what no name tells.
_ANY = {"import_module", "__import__", "eval", "exec"}
_ANY_NAME = {"import_module", "globals", "getattr", "modules"}
_ANY_ATTRIBUTE = {"getattr", "vars", "__dict__", "__getattribute__", "attrgetter", "methodcaller"}
# Methods that torch calls, beside those whose names begin with two underscores.
_CALLED = {"forward", "backward", "setup_context", "jvp", "vmap", "right_inverse"}


def is_of_library(module) -> bool:
    """One whose functions and threads change nothing that a training computes with."""
    return package_of(module) in _LIBRARIES


def _is_of_package(space: dict | None) -> bool:
    """Of a module that was installed. Its locks and counts are its own. It imports parts of its own late, which it
    asks for by a text."""
    parts = pathlib.PurePath(str((space or {}).get("__file__"))).parts
    return "site-packages" in parts or "dist-packages" in parts


def _space_of(kind: type) -> dict | None:
    module = kind.__module__
    return vars(sys.modules[module]) if isinstance(module, str) and module in sys.modules else None


class Surroundings:
    """Names through which functions that a model holds, and methods of classes, may reach what changes. They are
    found in their code. What they reach otherwise is not seen, as through a library in C."""

    def __init__(self, functions: list[types.FunctionType], classes: set[type]):
        self.stored: set[str] = set()  # names that the functions write
        self.functions: list[tuple] = []  # (what has it, its name, what it stood for)
        self.names: list[
            tuple
        ] = []  # (what has it, its name, as people know it, is it of a package)
        self.seen: set[int] = set()
        self.held: list = []  # so that ids of `seen` are of these
        self.called = set(_CALLED)  # names in the functions
        self.calls_any = False  # one asks for attributes by a text
        self.waiting: dict[
            str, list[tuple]
        ] = {}  # by name, of classes: no function has named it yet
        self.own = {id(one) for one in functions}  # the twin has closures of its own
        self.open = deque([*classes, *functions])
        while self.open:
            self._look_into(self.open.popleft())
            if len(self.seen) > MOST_OPENED:
                raise CannotTwin(f"its functions may reach more than {MOST_OPENED:,} objects")

    def is_current(self) -> bool:
        """Whether names of functions stand for the same ones."""
        return all(read(owner, name) is value for owner, name, value in self.functions)

    def keep(self) -> Kept:
        """What the names stand for now. CannotTwin: a module, an optimizer, an iterator."""
        kept = Kept(self.stored)
        for owner, name, place, is_of_package in self.names:
            value = read(owner, name)
            is_as_ever = type(value) in PLAIN and name not in self.stored
            if value is not MISSING and (not is_as_ever or isinstance(owner, types.CellType)):
                kept.name(owner, name, value, place, is_of_package)
        return kept

    def _is_new(self, value) -> bool:
        if id(value) in self.seen:
            return False
        self.seen.add(id(value))
        self.held.append(value)
        return True

    def _look_into(self, value) -> None:
        if isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, _WRAPPING):
            for name in ("__func__", "__self__", "fget", "fset", "func"):
                self.open.append(getattr(value, name, None))
        elif not (is_constant(value) or is_generator(value)) and self._is_new(value):
            self.open.append(type(value))
            self.open.extend(items_of(value))

    def _name(self, owner, name, value, place: str, is_of_package: bool) -> None:
        self.open.append(value)
        if isinstance(value, types.FunctionType):
            self.functions.append((owner, name, value))
        is_rebound = isinstance(value, (int, float, str, bytes, type(None)))
        if is_rebound or not is_constant(value):
            self.names.append((owner, name, place, is_of_package))

    def _function(self, function: types.FunctionType) -> None:
        space = function.__globals__
        if id(function) not in self.own and self._is_new(function):
            self._inside(function)
        if not self._is_new(function.__code__) or is_of_library(space.get("__name__")):
            return
        names = names_of(function.__code__)
        loaded = _loaded_of(function.__code__, self.stored)
        if _is_of_package(space):
            names -= _ANY_NAME
            loaded -= _ANY | _ANY_NAME
        dynamic = (loaded | names & {"import_module"}) & _ANY  # .eval() is of a module
        if dynamic:
            raise CannotTwin(f"{function.__qualname__} calls {min(dynamic)}")
        self._call(names)
        is_open = "globals" in names or {"sys", "modules"} <= names
        self._space(space, space.keys() if is_open else loaded, names)
        for name in names:  # of imports inside of it
            for module in (name, *_below(space.get("__package__") or "", name)):
                if not is_of_library(module) and isinstance(
                    sys.modules.get(module), types.ModuleType
                ):
                    self._space(vars(sys.modules[module]), names, names)

    def _call(self, names: set[str]) -> None:
        calls_any = bool(names & _ANY_ATTRIBUTE)
        again = [*self.waiting] if calls_any > self.calls_any else names & self.waiting.keys()
        self.calls_any |= calls_any
        self.called |= names
        for name in again:
            for owner, value, place, is_of_package in self.waiting.pop(name):
                self._of_class(owner, name, value, place, is_of_package)

    def _of_class(self, owner: type, name: str, value, place: str, is_of_package: bool) -> None:
        if name in self.called or (self.calls_any and not is_of_package):
            self._name(owner, name, value, place, is_of_package)
        else:
            self.waiting.setdefault(name, []).append((owner, value, place, is_of_package))

    def _inside(self, function: types.FunctionType) -> None:
        is_of_package = _is_of_package(function.__globals__)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            self._name(cell, "cell_contents", content_of(cell), name, is_of_package)
        for defaults in (function.__defaults__ or (), (function.__kwdefaults__ or {}).values()):
            for one in defaults:
                place = f"a default of {function.__name__}"
                self._name([one], 0, one, place, is_of_package)

    def _space(self, space: dict, own, names: set[str], depth: int = 4) -> None:
        """Those of `own`, and `names` of modules among them."""
        if "getattr" in names and depth < 4:
            own = space.keys()
        is_of_package = _is_of_package(space)
        for name in list(own & space.keys()):
            value = space[name]
            self._name(space, name, value, name, is_of_package)
            if isinstance(value, types.ModuleType) and depth and not is_of_library(value.__name__):
                self._space(vars(value), names, names, depth - 1)

    def _class(self, kind: type) -> None:
        for base in kind.__mro__:
            if is_of_library(base.__module__) or not self._is_new(base):
                continue
            self.open.append(type(base))
            is_of_package = _is_of_package(_space_of(base))
            for name, value in vars(base).items():
                if name.startswith("__"):
                    self.open.append(value)
                else:
                    place = f"{base.__name__}.{name}"
                    self._of_class(base, name, value, place, is_of_package)


def _below(package: str, name: str) -> list[str]:
    """Names that a relative import may mean, of any number of dots."""
    parts = package.split(".")
    return [".".join([*parts[:i], name]) for i in range(len(parts), 0, -1)]


def _loaded_of(code: types.CodeType, stored: set[str]) -> set[str]:
    """Globals that its code names, also in functions inside of it. Adds names that it writes."""
    loaded = set()
    for one in dis.get_instructions(code):
        if one.opname in _LOADS:
            loaded.add(one.argval)
        elif one.opname in _STORES:
            stored.add(one.argval)
    if {*code.co_names} & {"setattr", "__dict__", "vars", "globals", "__setattr__", "update"}:
        stored.update(code.co_names, (one for one in code.co_consts if isinstance(one, str)))
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            loaded |= _loaded_of(one, stored)
    return loaded
