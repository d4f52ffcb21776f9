# What a step of a configuration would read, before there is one: rows, elements and bytes of each kind.
from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainmon.base.names import listed
from trainmon.torch.adapter import CANARIES, Adapter
from trainmon.torch.expected_rows import features_rows, parameter_rows
from trainmon.torch.features.choice import KINDS as FEATURES
from trainmon.torch.modules.buffers import tensors_of
from trainmon.torch.rehearsal import KINDS as OF_MODULES
from trainmon.torch.rehearsal import CannotRehearse, Row, rehearse, rows_of_inputs
from trainmon.torch.speed import Speed
from trainmon.torch.steps.optimizers import NoOptimizer

# Kinds for whose rows more than one tensor is read, and how many.
READS = {"update": 2, "mg_direction": 2}
# Read by a hook of their own, just after they were written.
AT_ONCE = OF_MODULES | {"grad_unreduced", "grad_micro", "input", "input_entropy"}


@dataclass
class Expected:
    """Of one kind, on one rank, in a step that is recorded."""

    kind: str
    tensors: set = field(default_factory=set)  # (name, element)
    rows: int = 0
    elements: int = 0
    bytes: int = 0  # that are read
    seconds: float | None = 0.0  # None: not estimated
    reads: dict = field(default_factory=dict)  # (dtype, bytes of one) -> how many

    def add(self, row: Row, times: int = 1) -> None:
        self.tensors.add((row.name, row.element))
        self.rows += times
        self.elements += row.elements * times
        self.bytes += row.bytes * times
        key = row.dtype, row.bytes
        self.reads[key] = self.reads.get(key, 0) + times


class Expectation:
    """Of a model, its optimizers, one batch and a checked configuration. Raises what watch() raises
    for the same arguments."""

    @torch.inference_mode(False)
    def __init__(self, model, optimizer, inputs, config: dict):
        self.adapter = adapter = Adapter(model, optimizer, None)
        adapter.prepare(config)
        self.config = adapter.config
        self.identity = adapter.identity()
        self.not_estimated: list[str] = []
        self.kinds: dict[str, Expected] = {}
        self.sums: list[tuple] = []  # (dtype, bytes) of gradients that are added up
        self.hook_seconds = 0.0  # of hooks that give no row
        self.tried: dict[tuple, list] = {}  # what optimizers keep, by what it follows from
        self.device = next((p.tensor.device for p in adapter.parameters), torch.device("cpu"))
        self._of_parameters()
        self._of_buffers()
        self._of_modules(inputs)
        for kind, rows in features_rows(adapter).items():
            if rows:
                self.kinds[kind] = Expected(kind, rows=rows, seconds=None)
        unknown = sorted(adapter.kinds & {"cc", "stack"})
        if FEATURES & self.kinds.keys():
            self.not_estimated.append(
                "the time of attention, spectral and router: it is that of operations"
            )
        if unknown:
            self.not_estimated.append(f"{listed(unknown)}: shapes do not tell it")
        if adapter.kinds & CANARIES:
            self.not_estimated.append("canaries: each takes a forward and a backward")
        self._time()

    def _of(self, kind: str) -> Expected:
        return self.kinds.setdefault(kind, Expected(kind))

    # --- parameters ------------------------------------------------------------------------------

    def _of_parameters(self) -> None:
        adapter = self.adapter
        owner = {
            id(tensor): (optimizer, group)
            for optimizer in adapter.optimizers.values()
            for group in optimizer.param_groups
            for tensor in group["params"]
        }
        for parameter in adapter.parameters:
            parameter.stepped = adapter.wrappers[parameter.chunk].stepped(parameter)
        for kind, parameters, times in parameter_rows(adapter):
            for parameter in parameters:
                local = self._local(parameter)
                if local is None or not adapter.selection.takes_parameter(parameter, kind):
                    continue
                if kind == "moments":
                    self._of_state(parameter, owner.get(id(parameter.stepped)))
                    continue
                name = f"{parameter.chunk} {parameter.name}"
                size = local.numel() * local.element_size() * READS.get(kind, 1)
                self._of(kind).add(Row(kind, name, "", local.dtype, local.numel(), size), times)

    def _of_buffers(self) -> None:
        found = tensors_of(self.adapter) if "buffer" in self.adapter.kinds else []
        for chunk, name, tensor in found:
            size = tensor.numel() * tensor.element_size()
            row = Row("buffer", f"{chunk} {name}", "", tensor.dtype, tensor.numel(), size)
            self._of("buffer").add(row)

    def _local(self, parameter) -> Tensor | None:
        """What this rank has of it, nothing but its shape being asked for."""
        if parameter.stepped is None:
            return None
        wrapper = self.adapter.wrappers[parameter.chunk]
        optimizer = next(iter(self.adapter.optimizers.values()))
        found = wrapper.values("param_updated", [parameter], optimizer)
        if found is None:
            found, _ = wrapper.locals([parameter.stepped])
        return found[0]

    def _of_state(self, parameter, owner: tuple | None) -> None:
        if owner is None or isinstance(owner[0], NoOptimizer):
            return
        optimizer, group = owner
        local = self._local(parameter)
        state = self.adapter.wrappers[parameter.chunk].state(parameter, optimizer)
        if state:
            shapes = (local.shape, parameter.stepped.shape)
            kept = [
                (key, value.dtype)
                for key, value in state.items()
                if isinstance(value, Tensor) and value.shape in shapes
            ]
        else:
            kept = self._tried(optimizer, group, parameter.stepped)
        name = f"{parameter.chunk} {parameter.name}"
        for key, dtype in kept:
            if key != "step" and self.adapter.wants(str(key)):
                size = local.numel() * torch.empty((), dtype=dtype).element_size()
                self._of(str(key)).add(Row(str(key), name, "", dtype, local.numel(), size))

    def _tried(self, optimizer, group: dict, tensor: Tensor) -> list[tuple]:
        """(key, dtype) of what such an optimizer keeps after the first step of a tensor of as many
        dimensions. It steps one of its own."""
        key = id(group), tensor.ndim, tensor.dtype
        if key not in self.tried:
            try:
                self.tried[key] = _kept_after_a_step(type(optimizer), group, tensor)
            except Exception as error:
                self.tried[key] = []
                why = (str(error) or type(error).__name__).splitlines()[0][:200]
                self._cannot(
                    f"moments of {type(optimizer).__name__}: before its first step nothing tells "
                    f"what it keeps ({why})"
                )
        return self.tried[key]

    # --- modules ---------------------------------------------------------------------------------

    def _of_modules(self, inputs) -> None:
        adapter = self.adapter
        wanted = sorted(adapter.kinds & (OF_MODULES | {"input", "input_entropy"}))
        if not wanted:
            return
        if inputs is None:
            self._cannot(f"{listed(wanted)}: their shapes need `inputs`, one batch for the model")
            return
        times = self.config["grad_acc_steps"] or 1
        if "input" in adapter.kinds:
            for row in rows_of_inputs(inputs):
                self._of(row.kind).add(row, times)
        if not adapter.kinds & OF_MODULES:
            return
        try:
            config = {**self.config, "kinds": wanted}
            rows, self.sums = rehearse(adapter.roots, adapter.wrappers, inputs, config)
            for row in rows:
                self._of(row.kind).add(row, times)
        except CannotRehearse as error:
            self._cannot(f"activations: {error}")

    def _cannot(self, text: str) -> None:
        if text not in self.not_estimated:
            self.not_estimated.append(text)

    # --- time ------------------------------------------------------------------------------------

    def _time(self) -> None:
        if self.device.type == "meta":
            self._cannot("times: the model is on the device meta, which reads nothing")
            for expected in self.kinds.values():
                expected.seconds = None
            return
        speed = Speed(self.config, self.device)
        trained = sum(p.tensor.requires_grad for p in self.adapter.parameters)
        self.hook_seconds = trained * speed.per_parameter
        for kind, expected in self.kinds.items():
            if expected.seconds is None:
                continue
            at_once = kind in AT_ONCE
            expected.seconds = expected.rows * (speed.per_hook if at_once else speed.per_swept)
            for (dtype, size), times in expected.reads.items():
                if size:
                    near = size if at_once else expected.bytes
                    expected.seconds += times * speed.seconds(dtype, size, near)
            if kind == "actv_grad":
                times = self.config["grad_acc_steps"] or 1
                expected.seconds += times * sum(speed.adding(*one) for one in self.sums)


def _kept_after_a_step(kind: type, group: Mapping, tensor: Tensor) -> list[tuple]:
    taken = inspect.signature(kind).parameters
    plain = {"fused": None, "foreach": False, "capturable": False, "differentiable": False}
    options = {key: plain.get(key, value) for key, value in group.items() if key in taken}
    options.pop("params", None)
    own = torch.zeros((2,) * tensor.ndim, dtype=tensor.dtype, requires_grad=True)
    own.grad = torch.zeros_like(own)
    optimizer = kind([own], **options)
    optimizer.step()
    return [
        (key, value.dtype)
        for key, value in optimizer.state[own].items()
        if isinstance(value, Tensor) and value.shape == own.shape
    ]
