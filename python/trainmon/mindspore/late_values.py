# Values that a device still computes: fetched at the next seal, when the device is done with them.
from __future__ import annotations

import numpy as np

from trainmon.base.rows import BY_OPERATIONS
from trainmon.mindspore import ops
from trainmon.mindspore.parameters import dtype_name


class Late:
    """Rows whose values follow. Rows and their order are known to the core at once."""

    def __init__(self, core, part, eps: float):
        self.core, self.part, self.eps = core, part, eps
        self.vectors: list = []
        self.waiting: list[tuple] = []  # (ticket, vectors)

    def add(self, series: int, tensor, window: int, accum: int, call: int, flags: int) -> None:
        try:
            vector = ops.measure(tensor, self.eps)
        except ops.Refused as refused:
            self.core.refuse(str(refused))
            return
        shape = tuple(tensor.shape)
        flags |= BY_OPERATIONS
        self.core.add_late_row(series, dtype_name(tensor), shape, window, accum, call, flags)
        self.vectors.append(vector)

    def add_direction(self, series: int, one, two, steps) -> None:
        accum = self.core.accum(steps.index)
        self.add(series, ops.agreement(one, two), steps.window, accum, 0, 0)

    def seal(self) -> None:
        """Hands over what was sent on its way at the seal before, and sends what has gathered."""
        self._fulfil()
        if self.vectors:
            self.waiting.append((self.core.seal_late(), self.vectors))
            self.vectors = []

    def drain(self, seconds: float) -> None:
        """Hands over everything; MindSpore has no way to wait for less than the values."""
        if self.part.on:
            self.seal()
            self._fulfil()

    def _fulfil(self) -> None:
        waiting, self.waiting = self.waiting, []
        for ticket, vectors in waiting:
            values = np.stack([vector.asnumpy().astype(np.float64) for vector in vectors])
            self.core.fulfil(ticket, np.ascontiguousarray(values))
