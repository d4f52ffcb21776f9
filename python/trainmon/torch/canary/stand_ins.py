# What stands in a twin for the values that modules of the model hold.
from __future__ import annotations

import contextlib
import enum
import functools
import io
import logging
import pathlib
import re
import sys
import types
import weakref
from collections import OrderedDict, defaultdict, deque

import torch
from torch import Tensor, nn

from trainmon.torch.canary.random_states import is_generator

MOST = 100_000  # objects of a twin that are copied
# Libraries that compute nothing of a model, but its shapes.
BESIDE_MODELS = frozenset((
    "einops", "einx", "jaxtyping", "beartype", "typeguard", "packaging", "typing_extensions", "PIL", "tqdm",
    "wandb", "tensorboard", "tensorboardX", "mlflow", "swanlab", "loguru", "rich", "IPython", "ipykernel",
    "zmq", "tornado", "debugpy", "pydevd", "grpc",
))  # fmt: skip
PLAIN = frozenset((int, float, bool, str, bytes, type(None), type))
_NUMPY = ("dtype", "generic", "ufunc")  # that nobody changes
# Nobody changes them. A context manager that decorates a function is made anew in each call.
_SHARED = (
    contextlib._GeneratorContextManager,
    int, float, complex, str, bytes, type(None), type(...), type(NotImplemented), range, slice, type,
    enum.Enum, re.Pattern, pathlib.PurePath, logging.Logger, property, types.ModuleType,
    types.MethodDescriptorType, types.WrapperDescriptorType, types.GenericAlias, types.CodeType,
    torch.dtype, torch.device, torch.Size, torch.memory_format,
    torch.layout, torch.finfo, torch.iinfo, torch._ops.OpOverload, torch._ops.OpOverloadPacket,
)  # fmt: skip
_BASES = defaultdict, OrderedDict, dict, list, set, deque, types.SimpleNamespace
_NONE = object()


class CannotTwin(Exception):
    """Why a model has no twin."""


def content_of(cell: types.CellType):
    try:
        return cell.cell_contents
    except ValueError:  # there is none yet
        return None


def is_constant(value) -> bool:
    if type(value) in PLAIN:
        return True
    numpy = sys.modules.get("numpy")
    return (
        isinstance(value, _SHARED)
        or type(value) is object
        or type(value).__module__ == "typing"
        or package_of(type(value).__module__) in BESIDE_MODELS
        or hasattr(type(value), "__members__")  # of an enumeration, also in C++
        or _is_written_alone(value)
        or (numpy is not None and isinstance(value, tuple(getattr(numpy, one) for one in _NUMPY)))
    )


def package_of(module) -> str:
    """Of the name of a module; "" of what a class may have in its place."""
    return module.partition(".")[0] if isinstance(module, str) else ""


def _is_written_alone(value) -> bool:
    """Of a stream as standard output: what a canary prints is printed."""
    return isinstance(value, io.IOBase) and not value.closed and not value.readable()


def refuse_what_acts(value, place: str) -> None:
    """CannotTwin of what does more than compute."""
    if isinstance(value, nn.Module):
        raise CannotTwin(f"{place} is a module that is no child of the model")
    refuse_what_ends(type(value), place)
    if isinstance(value, torch.optim.Optimizer) or package_of(type(value).__module__) == "trainmon":
        raise CannotTwin(f"{place} is a {type(value).__name__}")


def refuse_what_ends(kind: type, place: str) -> None:
    """CannotTwin of a class whose copies would free what they share."""
    if hasattr(kind, "__del__"):
        raise CannotTwin(f"{place} is a {kind.__name__}, which has a __del__")


class StandIns:
    """Copies of all that a forward may change, made where it is met. Random generators stay shared and are
    listed. CannotTwin: of what has no copy, or leads out of the model."""

    def __init__(self, known: dict[int, object]):
        self.known = known  # by id: modules, parameters and buffers first
        self.kept: list = []  # so that no other object has an id of these
        self.generators: dict[str, object] = {}  # by the place that holds it
        self.functions: list[types.FunctionType] = []  # that the model holds, closures copied
        self.classes: set[type] = set()  # that it may make objects of, or has

    def of(self, value, place: str):
        known = self.known.get(id(value), _NONE)
        if known is not _NONE:
            return known
        if isinstance(value, type):
            self.classes.add(value)
        if is_constant(value):
            return value
        if is_generator(value):
            self.generators[place] = value
            return value
        refuse_what_acts(value, place)
        if len(self.kept) > MOST:
            raise CannotTwin(f"it holds more than {MOST:,} objects")
        numpy = sys.modules.get("numpy")
        if isinstance(value, Tensor):
            copy = self._tensor(value, place)
        elif isinstance(value, types.FunctionType):
            return self._function(value, place)
        elif isinstance(value, types.MethodType):
            function = self.of(value.__func__, place)
            copy = types.MethodType(function, self.of(value.__self__, place))
        elif isinstance(value, types.BuiltinFunctionType):
            return self._bound_builtin(value, place)
        elif isinstance(value, functools.partial):
            given = {key: self.of(one, f"{place}({key})") for key, one in value.keywords.items()}
            args = [self.of(one, f"{place}({i})") for i, one in enumerate(value.args)]
            copy = functools.partial(self.of(value.func, place), *args, **given)
        elif type(value) is weakref.ref:
            held = value()
            own = self.of(held, place)
            copy = value if own is held else weakref.ref(own)
        elif isinstance(value, (tuple, frozenset)):
            copy = self._immutable(value, place)
        elif numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject:
            copy = value.copy()
        else:
            return self._object(value, place)
        return self._know(value, copy)

    def _know(self, value, copy):
        self.known[id(value)] = copy
        self.kept.append(value)
        return copy

    def _tensor(self, value: Tensor, place: str) -> Tensor:
        if type(value) not in (Tensor, nn.Parameter):
            raise CannotTwin(f"{place} is a {type(value).__name__}")
        return value.detach().clone().requires_grad_(value.requires_grad)

    def _bound_builtin(self, value, place: str):
        """As random.Random().random or [].append."""
        held = value.__self__
        own = self.of(held, place) if held is not None else None
        return value if own is held else getattr(own, value.__name__)

    def _immutable(self, value, place: str):
        items = list(value)
        own = [self.of(one, f"{place}[{i}]") for i, one in enumerate(items)]
        if all(a is b for a, b in zip(items, own, strict=True)):
            return value
        base = tuple if isinstance(value, tuple) else frozenset
        return base.__new__(type(value), own)

    def _object(self, value, place: str):
        """Of a class that Python code wrote, or a container: with its items and attributes."""
        kind = type(value)
        self.classes.add(kind)
        base = next((one for one in _BASES if isinstance(value, one)), object)
        try:
            copy = base.__new__(kind)
        except TypeError:
            raise CannotTwin(f"{place} is a {kind.__name__}, which has no copy here") from None
        attributes, slots = attributes_of(value), slots_of(value)
        if base is object and not attributes and not slots:
            return value  # a mark that is compared, if anything
        self._know(value, copy)
        if issubclass(base, dict):
            if base is defaultdict:
                copy.default_factory = self.of(value.default_factory, place)
            for key, one in base.items(value):
                own = self.of(one, f"{place}[{key!r:.40}]")
                base.__setitem__(copy, self.of(key, place), own)
        elif base not in (object, types.SimpleNamespace):
            items = [self.of(one, f"{place}[{i}]") for i, one in enumerate(base.__iter__(value))]
            more = (value.maxlen,) if base is deque else ()
            base.__init__(copy, items, *more)
        for name, one in attributes.items():
            attributes_of(copy)[name] = self.of(one, f"{place}.{name}")
        for slot, one in slots:
            slot.__set__(copy, self.of(one, f"{place}.{slot.__name__}"))
        return copy

    def _function(self, function: types.FunctionType, place: str):
        """The same function, with values of the twin where it closes over those of the model. Of one that is
        compiled, the one that was written."""
        written = getattr(function, "_torchdynamo_orig_callable", None)
        if written is not None:
            return self.of(written, place)
        self.functions.append(function)
        self._know(function, function)  # one that holds itself
        cells = function.__closure__ or ()
        held = [content_of(cell) for cell in cells]
        defaults = function.__defaults__, function.__kwdefaults__
        own = [
            self.of(one, f"{place}.{name}")
            for one, name in zip(held, function.__code__.co_freevars, strict=True)
        ]
        own_defaults = [self.of(one, f"{place}.defaults") for one in defaults]
        pairs = zip([*held, *defaults], [*own, *own_defaults], strict=True)
        if all(a is b for a, b in pairs if a is not None):
            return function
        copy = types.FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            own_defaults[0],
            tuple(types.CellType(one) for one in own),
        )
        copy.__kwdefaults__ = own_defaults[1]
        return self._know(function, copy)


def slots_of(value) -> list[tuple]:
    """(descriptor, what it has), of a class that names its attributes."""
    return [
        (one, one.__get__(value)) for one in _slots_of(type(value)) if hasattr(value, one.__name__)
    ]


@functools.lru_cache(maxsize=10_000)
def _slots_of(kind: type) -> tuple:
    return tuple(
        one
        for base in kind.__mro__
        for name, one in vars(base).items()
        if isinstance(one, types.MemberDescriptorType) and not name.startswith("__")
    )


def attributes_of(value) -> dict:
    """Its __dict__; empty without one."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
