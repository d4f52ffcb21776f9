# A forward and backward of a copy without values, under the hooks of a run: which rows activations would give.
"""The copy has fake tensors: shapes, dtypes and a graph, and no memory. So nothing is computed, and what
the model holds stays as it is. The hooks are those of the adapter, with backend="ops", and what they
would have measured is noted instead."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import tempfile
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trainmon import _core
from trainmon.base.parts import Part
from trainmon.torch.adapter import Adapter
from trainmon.torch.canary.random_states import RandomStates
from trainmon.torch.hooks.hook import leave_hooks_of_torch
from trainmon.torch.measuring.late_values import Late
from trainmon.torch.modules.activations import Activations
from trainmon.torch.modules.elements import of_inputs, of_output
from trainmon.torch.wrappers.module_names import innermost
from trainmon.torch.wrappers.plain import Plain

KINDS = frozenset(("actv", "actv_grad"))
_OF_IDS = (torch.int64, torch.int32, torch.int16)
# Beside what is rehearsed, so that the core only gives numbers to series.
_QUIET = {"sinks": [], "every": 1, "start_step": 0, "stop_step": None, "budget": None, "ranks": [],
          "recorder_mb": 0.0, "clock": 0, "start_iteration": 0, "alert_deviation": 0.0,
          "alert_limit": 0.0}  # fmt: skip


class CannotRehearse(Exception):
    """The text says why, for a person."""


class Row(NamedTuple):
    kind: str
    name: str
    element: str
    dtype: torch.dtype
    elements: int
    bytes: int


class Noted(Late):
    """In the place of the rows whose values follow: none ever does."""

    def __init__(self, core, part, series: dict[int, tuple]):
        super().__init__(core, part, 0.0, checks=False)
        self.series, self.rows = series, []

    def add(self, series, tensor, window, accum, call, flags, scale=None) -> None:
        size = tensor.numel()
        row = Row(*self.series[series], tensor.dtype, size, size * tensor.element_size())
        if not (tensor.is_complex() or tensor.layout is not torch.strided or tensor.is_quantized):
            self.rows.append(row)


class Adding(Activations):
    """Knows what it adds up: gradients of an input that is used more than once."""

    __slots__ = ()

    def added(self, total, gradient):
        self.adapter.sums.append((total.dtype, total.numel() * total.element_size()))
        return super().added(total, gradient)


class Rehearsal(Adapter):
    """An adapter that knows what each of its series is of."""

    activations_type = Adding

    def __init__(self, model):
        super().__init__(model, None, None)
        self.told: dict[int, tuple] = {}
        self.sums: list[tuple] = []  # (dtype, bytes)

    def add_series(self, **arguments) -> int:
        number = super().add_series(**arguments)
        self.told[number] = arguments["kind"], arguments["name"], arguments.get("element", "")
        return number


@contextlib.contextmanager
def watched(model: nn.Module, config: dict, kinds: list[str]) -> Iterator[Rehearsal]:
    """An adapter at work that leaves nothing behind: its run directory goes with it."""
    with tempfile.TemporaryDirectory() as folder:
        config = {**config, **_QUIET, "kinds": kinds, "out": folder}
        adapter = Rehearsal(model)
        adapter.prepare(config)
        core = _core.Monitor(json.dumps(config), json.dumps({"rank": 0, "world_size": 1}))
        try:
            adapter.install(core)
            try:
                yield adapter
            finally:
                adapter.remove()
        finally:
            core.stop()
            adapter.forget()


def rehearse(roots: list[nn.Module], wrappers: list, inputs, config: dict) -> tuple[list, list]:
    """What the first forward and backward give of KINDS, in order, and (dtype, bytes) of what is added
    up for gradients of inputs. `inputs`: a tensor, a tuple of
    arguments, or a mapping of keyword arguments. Raises CannotRehearse."""
    if len(roots) > 1:
        raise CannotRehearse("there are several models, and `inputs` are those of one")
    if type(wrappers[0]) is not Plain:
        why = f"the model is under {wrappers[0].name}: estimate it before it is spread"
        raise CannotRehearse(why)
    mode, copying = _fake()
    try:
        with _as_before():
            with copying(mode):
                model = copy.deepcopy(innermost(roots[0]))
            _clean(model)
            if not roots[0].training:
                model.train()
            args, kwargs = arguments_of(_faked(inputs, mode))
            config = {**config, "backend": "ops", "checks": False}
            kinds = sorted(KINDS & set(config["kinds"]))
            with mode, watched(model, config, kinds) as adapter:
                return _rows(adapter, model, args, kwargs), adapter.sums
    except CannotRehearse:
        raise
    except Exception as error:
        text = (str(error) or type(error).__name__).splitlines()[0]
        raise CannotRehearse(f"it does not run without values ({text[:200]})") from None


def arguments_of(inputs) -> tuple[tuple, dict]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), {}


def _fake():
    try:
        from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
    except ImportError:
        raise CannotRehearse(f"torch {torch.__version__} has no fake tensors") from None
    return FakeTensorMode(allow_fallback_kernels=False), FakeCopyMode


def _faked(inputs, mode):
    """The same with fake tensors, of plain containers."""
    if isinstance(inputs, Tensor):
        return mode.from_tensor(inputs)
    if isinstance(inputs, Mapping):
        return {key: _faked(value, mode) for key, value in inputs.items()}
    if type(inputs) in (tuple, list):
        return type(inputs)(_faked(value, mode) for value in inputs)
    return inputs


def _clean(model: nn.Module) -> None:
    """Hooks of anybody but torch go, as they may change more than this copy. Compiled modules become
    what they were."""
    for module in list(model.modules()):
        leave_hooks_of_torch(module)
        for key, child in module._modules.items():
            seen = {id(child)}
            while isinstance(inner := getattr(child, "_orig_mod", None), nn.Module):
                if id(inner) in seen:
                    break
                seen.add(id(inner))
                child = module._modules[key] = inner


@contextlib.contextmanager
def _as_before() -> Iterator[None]:
    """Random states stay, whatever the model's own code draws. What torch logs of an operation that
    has no such shapes is said by CannotRehearse."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    states = RandomStates([*devices], {})
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, log.disabled = log.disabled, True
    try:
        with torch.enable_grad():
            yield
    finally:
        log.disabled = was_disabled
        states.set({})


def _rows(adapter: Rehearsal, model: nn.Module, args: tuple, kwargs: dict) -> list[Row]:
    noted = adapter.late = Noted(adapter.core, Part(adapter.core, "rehearsal"), adapter.told)
    output = model(*args, **kwargs)
    if "actv_grad" in adapter.kinds:
        found = of_output(output)
        losses = [t for name, t in found if name == "output.loss"] or [t for _, t in found]
        losses = [t.float().sum() for t in losses if t.requires_grad]
        if losses:
            sum(losses).backward()
    adapter.backward.settle()
    if off := adapter.core.health()["parts_off"]:
        raise CannotRehearse(next(iter(off.values())))
    return noted.rows


def rows_of_inputs(inputs) -> list[Row]:
    """Of what the whole model is given: kind input, and of ids input_entropy, which is one number."""
    args, kwargs = arguments_of(inputs)
    rows = []
    for element, tensor in of_inputs(args, kwargs):
        if tensor.device.type == "cpu":  # others are not read
            size = tensor.numel()
            rows.append(Row("input", "", element, tensor.dtype, size, size * tensor.element_size()))
            if tensor.dtype in _OF_IDS and size:
                rows.append(Row("input_entropy", "", element, tensor.dtype, 1, size * 8))
    return rows
