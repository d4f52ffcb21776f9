# Values that a device still computes: copied once per seal, asked for without waiting.
from __future__ import annotations

import collections
import time

import torch
from torch import Tensor

from trainmon.base.locks import fork_safe_lock
from trainmon.base.rows import BY_OPERATIONS
from trainmon.torch.measuring import check_ops, ops
from trainmon.torch.measuring.isolated import isolated
from trainmon.torch.measuring.ops import dtype_name


class Copy:
    """Vectors of one device on their way to the host."""

    def __init__(self, vectors: list[Tensor]):
        stacked = torch.stack(vectors)
        device = stacked.device
        self.event = None
        self.device_copy = None
        if device.type == "cpu":
            self.host = stacked
            return
        module = getattr(torch, device.type, None)
        if not hasattr(module, "Event"):
            self.host, self.device_copy = None, stacked  # fetched at the next look
            return
        self.host = torch.empty(stacked.shape, dtype=stacked.dtype, device="cpu", pin_memory=True)
        self.host.copy_(stacked, non_blocking=True)
        self.event = module.Event()
        self.event.record(module.current_stream(device))

    def ready(self) -> bool:
        return self.event is None or self.event.query()

    def values(self) -> Tensor:
        return self.device_copy.cpu() if self.host is None else self.host


class Late:
    """Rows whose values follow. Rows and their order are known to the core at once."""

    def __init__(self, core, part, eps: float, checks: bool):
        self.core, self.part, self.eps, self.checks = core, part, eps, checks
        # A row and its vector must be added together. What a signal handler raises may leave it held.
        self.lock = fork_safe_lock()
        self.vectors: list[Tensor] = []
        self.waiting = collections.deque()  # (copies with the rows they fill, rows, then)

    def add(
        self,
        series: int,
        tensor: Tensor,
        window: int,
        accum: int,
        call: int,
        flags: int,
        scale=None,
    ):
        """`scale`: a tensor of one number that what is measured is divided by."""
        try:
            vector = ops.measure(tensor, self.eps, scale)
            if self.checks:
                vector = torch.cat([vector, self._check(series, tensor, scale, vector)])
        except ops.Refused as refused:
            self.core.refuse(str(refused))
            return
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError:  # torch lacks an operation for it
            self.core.refuse(dtype_name(tensor))
            return
        with self.lock:
            dtype, shape = dtype_name(tensor), tuple(tensor.shape)
            flags |= BY_OPERATIONS
            try:
                self.core.add_late_row(series, dtype, shape, window, accum, call, flags)
            except ValueError:  # a dtype without a name here
                self.core.refuse(dtype)
                return
            self.vectors.append(vector)

    def _check(self, series: int, tensor: Tensor, scale, state: Tensor) -> Tensor:
        first = self.core.checked_from(series, tensor.shape, tensor.stride())
        if first is None:
            return check_ops.none(state.device, state.dtype)
        return check_ops.check(tensor, first, scale, state.dtype)

    def scalars(self, tensors: list[Tensor], then) -> None:
        """Calls then(list of floats) once the values are here, from a later hook."""
        if tensors:
            vectors = [tensor.detach().reshape(1).to(torch.float32) for tensor in tensors]
            self._send(vectors, lambda values: then(values.flatten().tolist()))

    def seal(self) -> None:
        """Sends what has gathered on its way and hands over what has arrived."""
        with self.lock:
            vectors, self.vectors = self.vectors, []
            ticket = self.core.seal_late() if vectors else 0
        if ticket:
            self._send(vectors, lambda values: self.core.fulfil(ticket, values))
        self.poll()

    def follow(self, copy, then) -> None:
        """Calls then(copy.values()) once copy.ready(), in the order of everything else."""
        self.waiting.append(([(None, copy)], 0, then))

    def poll(self) -> None:
        while self.waiting and all(copy.ready() for _, copy in self.waiting[0][0]):
            copies, rows, then = self.waiting.popleft()
            with isolated():
                parts = [copy.values().to(torch.float64) for _, copy in copies]
            if len(parts) == 1:
                then(parts[0])
                continue
            merged = torch.empty(rows, parts[0].shape[1], dtype=torch.float64, device="cpu")
            for (places, _), part in zip(copies, parts, strict=True):
                merged[places] = part
            then(merged)

    def drain(self, seconds: float) -> None:
        """Waits for everything on its way, but not longer than this."""
        self.seal()
        deadline = time.monotonic() + seconds
        while self.waiting and time.monotonic() < deadline:
            time.sleep(0.001)
            self.poll()

    def _send(self, vectors: list[Tensor], then) -> None:
        with isolated():
            places = collections.defaultdict(list)
            for place, vector in enumerate(vectors):
                places[vector.device].append(place)
            copies = [(at, Copy([vectors[i] for i in at])) for at in places.values()]
        self.waiting.append((copies, len(vectors), then))
