# What a model's functions reach by name outside of it: globals, attributes of classes, closures, defaults.
from __future__ import annotations

import dis
import functools
import sys
import types
from collections import deque

from trainmon.torch.canary.kept import MISSING, Kept, items_of, read
from trainmon.torch.canary.random_states import is_generator
from trainmon.torch.canary.stand_ins import CannotTwin, content_of, is_constant

MOST_OPENED = 20_000  # functions, classes and objects that are looked into, the nearest first
# What these have is no part of a model, or is kept in another way.
_LEFT_OUT = frozenset({*sys.stdlib_module_names, "torch", "numpy", "trainmon"})
_WRAPPING = (
    staticmethod, classmethod, property, functools.partial, functools.cached_property, types.MethodType,
)  # fmt: skip
_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_STORES = {"STORE_ATTR", "STORE_GLOBAL", "STORE_NAME", "DELETE_ATTR", "DELETE_GLOBAL"}
_ANY = {"import_module", "__import__", "eval", "exec"}  # which reach what no name tells
# Threads of these draw nothing that a training draws.
_WATCHING = frozenset(
    [
        "tqdm",
        "wandb",
        "tensorboard",
        "tensorboardX",
        "mlflow",
        "swanlab",
        "IPython",
        "ipykernel",
        "zmq",
        "tornado",
        "debugpy",
        "pydevd",
        "grpc",
        "rich",
    ]
)


def is_of_library(module: str | None) -> bool:
    return _is_left_out(module) or (module or "").partition(".")[0] in _WATCHING


def _is_left_out(place: str | None) -> bool:
    return (place or "").partition(".")[0] in _LEFT_OUT


class Surroundings:
    """Names through which functions that a model holds, and methods of classes, may reach what changes. They are
    found in their code. What they reach otherwise is not seen, as through a library in C."""

    def __init__(self, functions: list[types.FunctionType], classes: set[type]):
        self.stored: set[str] = set()  # names that the functions write
        self.functions: list[tuple] = []  # (what has it, its name, what it stood for)
        self.names: list[tuple] = []  # (what has it, its name, as people know it)
        self.seen: set[int] = set()
        self.held: list = []  # so that ids of `seen` are of these
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
        for owner, name, place in self.names:
            value = read(owner, name)
            if value is not MISSING:
                kept.name(owner, name, value, place)
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

    def _name(self, owner, name, value, place: str) -> None:
        self.open.append(value)
        if isinstance(value, types.FunctionType):
            self.functions.append((owner, name, value))
        is_rebound = isinstance(value, (int, float, str, bytes, type(None)))
        if is_rebound or not is_constant(value):
            self.names.append((owner, name, place))

    def _function(self, function: types.FunctionType) -> None:
        space = function.__globals__
        if id(function) not in self.own and self._is_new(function):
            self._inside(function)
        if not self._is_new(function.__code__) or _is_left_out(space.get("__name__")):
            return
        names, loaded = _names_of(function.__code__, self.stored)
        dynamic = (loaded | names & {"import_module"}) & _ANY  # .eval() is of a module
        if dynamic:
            raise CannotTwin(f"{function.__qualname__} calls {min(dynamic)}")
        is_open = "globals" in names or {"sys", "modules"} <= names
        self._space(space, space.keys() if is_open else loaded, names)
        for name in names:  # of imports inside of it
            for module in (name, *_below(space.get("__package__") or "", name)):
                if not _is_left_out(module) and isinstance(
                    sys.modules.get(module), types.ModuleType
                ):
                    self._space(vars(sys.modules[module]), names, names)

    def _inside(self, function: types.FunctionType) -> None:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            self._name(cell, "cell_contents", content_of(cell), name)
        for defaults in (function.__defaults__ or (), (function.__kwdefaults__ or {}).values()):
            for one in defaults:
                self._name([one], 0, one, f"a default of {function.__name__}")

    def _space(self, space: dict, own, names: set[str], depth: int = 4) -> None:
        """Those of `own`, and `names` of modules among them."""
        if "getattr" in names and depth < 4:
            own = space.keys()
        for name in list(own & space.keys()):
            value = space[name]
            self._name(space, name, value, name)
            if isinstance(value, types.ModuleType) and depth and not _is_left_out(value.__name__):
                self._space(vars(value), names, names, depth - 1)

    def _class(self, kind: type) -> None:
        for base in kind.__mro__:
            if _is_left_out(base.__module__) or not self._is_new(base):
                continue
            self.open.append(type(base))
            for name, value in vars(base).items():
                if name.startswith("__"):
                    self.open.append(value)
                else:
                    self._name(base, name, value, f"{base.__name__}.{name}")


def _below(package: str, name: str) -> list[str]:
    """Names that a relative import may mean, of any number of dots."""
    parts = package.split(".")
    return [".".join([*parts[:i], name]) for i in range(len(parts), 0, -1)]


def _names_of(code: types.CodeType, stored: set[str]) -> tuple[set[str], set[str]]:
    """All that its code names, and globals among them; also in functions inside of it. Adds those that it writes."""
    names = set(code.co_names)
    loaded = set()
    for one in dis.get_instructions(code):
        if one.opname in _LOADS:
            loaded.add(one.argval)
        elif one.opname in _STORES:
            stored.add(one.argval)
    if names & {"setattr", "__dict__", "vars", "globals", "__setattr__", "update"}:
        stored.update(code.co_names, (one for one in code.co_consts if isinstance(one, str)))
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            for own, inner in zip((names, loaded), _names_of(one, stored), strict=True):
                own |= inner
    return names, loaded
