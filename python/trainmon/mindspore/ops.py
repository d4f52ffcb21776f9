# Measures a tensor with MindSpore's own operations: for devices without a kernel of ours.
"""The result stays on the device: a vector of the fields of a state (trainmon.base.row_state). No
value is looked at here, so nothing waits for the device.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, ops

from trainmon.base.row_state import EMPTY, ordered

INFINITY = float("inf")
# The smallest normal number of each dtype that has smaller ones.
SMALLEST = {
    "float16": 2.0**-14,
    "bfloat16": 2.0**-126,
    "float32": 2.0**-126,
    "float64": 2.0**-1022,
}
WITHOUT = frozenset(
    ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")
)


class Refused(Exception):
    """A dtype that is not measured; the text is a short stable word."""


def measure(tensor: Tensor, eps: float) -> Tensor:
    """The state of one tensor as a vector on its device. Raises Refused."""
    dtype = str(tensor.dtype).lower()
    if dtype not in SMALLEST and dtype not in WITHOUT:
        raise Refused(dtype)
    wide = _widest(tensor)
    if tensor.size == 0:
        return Tensor(EMPTY, wide)
    with ms._no_grad():
        x = ops.reshape(tensor, (-1,)).astype(wide)
        zero = ops.zeros_like(x)
        finite = ops.isfinite(x)
        kept = ops.select(finite, x, zero)
        size = ops.abs(kept)
        smallest = SMALLEST.get(dtype, 0.0)
        masks = {
            "nans": ops.isnan(x),
            "pos_infs": x == INFINITY,
            "neg_infs": x == -INFINITY,
            "zeros": ops.logical_and(finite, size < eps),
            "subnormals": ops.logical_and(finite, ops.logical_and(size > 0, size < smallest)),
        }
        held = finite.astype(wide).sum()
        total = kept.sum()
        mean = total / ops.maximum(held, ops.ones_like(held))
        away = ops.select(finite, x - mean, zero)
        fields = {
            "count": ops.ones_like(total) * tensor.size,
            **{name: mask.astype(wide).sum() for name, mask in masks.items()},
            "sum": total,
            "mean": mean,
            "m2": (away * away).sum(),
            "sum_sq": (kept * kept).sum(),
            "min": ops.select(finite, x, zero + INFINITY).min(),
            "max": ops.select(finite, x, zero - INFINITY).max(),
            "absmax": size.max(),
        }
        return ops.stack(ordered(fields, lambda value: ops.zeros_like(total) + value))


def agreement(one: Tensor, two: Tensor) -> Tensor:
    """The share of elements with equal signs; NaN has the sign 0, as zero has."""
    with ms._no_grad():
        signs = []
        for tensor in (one, two):
            x = tensor.astype(ms.float32)
            signs.append((x > 0).astype(ms.float32) - (x < 0).astype(ms.float32))
        if one.size == 0:
            return Tensor(1.0, ms.float32)
        return ((signs[0] * signs[1]).sum() / one.size + 1) / 2


def _widest(tensor: Tensor):
    return ms.float32 if str(tensor.device).lower().startswith(("npu", "ascend")) else ms.float64
