# Measures a tensor with the framework's own operations: for devices without a kernel of ours.
"""The result stays on the device: a vector of the fields of a state (trainmon.base.row_state). No
value is looked at here, so nothing waits for the device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainmon.base.row_state import DEGREES, EMPTY, ordered
from trainmon.torch.measuring.isolated import no_modes, why_not

COUNTS = ("count", "nans", "pos_infs", "neg_infs", "zeros", "subnormals")  # of _first_pass
CHUNK = 1 << 24  # elements widened at a time: bounds what a large tensor needs besides itself
# A view of more elements that names each of its storage more often is not read: it would take seconds.
MOST_OVERLAPPING, OVERLAPS = 1 << 24, 8
# A tensor that a transform of torch.func has wrapped, which may outlive the transform.
_is_of_functorch = getattr(
    getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", lambda tensor: False
)


def dtype_name(tensor: Tensor) -> str:
    """As the core and its readers name it."""
    return str(tensor.dtype).removeprefix("torch.")


def all_elsewhere(handle, series, tensors, attribute, flags=0, scale=None):
    """sweep() of the setting backend="ops": the core measures nothing."""
    values = tensors if attribute is None else [getattr(t, attribute) for t in tensors]
    return [i for i, value in enumerate(values) if value is not None]


class Refused(Exception):
    """A dtype or layout that is not measured; the text is a short stable word."""


def measure(tensor: Tensor, eps: float, scale: Tensor | None = None) -> Tensor:
    """The state of one tensor, divided by `scale`, as a vector on its device. Raises Refused."""
    _refuse(tensor)
    with torch.no_grad(), no_modes():
        values, times = _dense(tensor.detach())
        wide = _widest(values.device)
        if scale is not None:
            scale = scale.detach().reshape(()).to(values.device, wide, non_blocking=True)
            eps = eps * scale
        if values.numel() == 0:
            return torch.tensor(EMPTY, dtype=wide, device=values.device)
        chunks = values.split(CHUNK)
        smallest = torch.finfo(values.dtype).smallest_normal if values.is_floating_point() else 0
        firsts = [_first_pass(chunk.to(wide), eps, smallest) for chunk in chunks]
        total = torch.stack(firsts) if len(firsts) > 1 else firsts[0].unsqueeze(0)
        counts, rest = total[:, : len(COUNTS)].sum(0), total[:, len(COUNTS) :]
        sums = rest[:, :2].sum(0)
        finite = counts[0] - counts[1] - counts[2] - counts[3]
        mean = torch.where(finite > 0, sums[0] / finite.clamp(min=1), 0.0)
        m2 = sum(_second_pass(chunk.to(wide), mean) for chunk in chunks)
        times_each = torch.cat([counts, sums[:1]]) * times
        fields = dict(zip((*COUNTS, "sum"), times_each.unbind(), strict=True))
        fields |= {
            "mean": mean,
            "m2": m2 * times,
            "sum_sq": sums[1] * times,
            "min": rest[:, 2].amin(),
            "max": rest[:, 3].amax(),
            "absmax": rest[:, 4].amax(),
        }
        state = torch.stack(
            ordered(fields, lambda x: torch.full((), x, dtype=wide, device=values.device))
        )
        return state if scale is None else state / _powers(scale)


def _powers(scale: Tensor) -> Tensor:
    """What each field of a state is divided by."""
    powers = (torch.ones_like(scale), scale, scale * scale)
    return torch.stack([powers[degree] for degree in DEGREES])


def _first_pass(x: Tensor, eps: float, smallest: float) -> Tensor:
    """COUNTS, sum, sum_sq, min, max, absmax"""
    finite = torch.isfinite(x)
    kept = torch.where(finite, x, 0.0)
    size = kept.abs()
    infinity = float("inf")
    counts = [
        torch.full((), x.numel(), dtype=x.dtype, device=x.device),
        torch.isnan(x).sum(),
        (x == infinity).sum(),
        (x == -infinity).sum(),
        (finite & (size < eps)).sum(),
        (finite & (size > 0) & (size < smallest)).sum(),
    ]
    return torch.stack(
        [c.to(x.dtype) for c in counts]
        + [
            kept.sum(),
            (kept * kept).sum(),
            torch.where(finite, x, infinity).amin(),
            torch.where(finite, x, -infinity).amax(),
            size.amax(),
        ]
    )


def _second_pass(x: Tensor, mean: Tensor) -> Tensor:
    away = torch.where(torch.isfinite(x), x - mean, 0.0)
    return (away * away).sum()


def _refuse(tensor: Tensor) -> None:
    if (why := why_not()) is not None:
        raise Refused(why)
    # The class decides what operations do, and its tensors may have no memory, as FakeTensor.
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        raise Refused("dtensor" if hasattr(tensor, "placements") else type(tensor).__name__)
    if _is_of_functorch(tensor):
        raise Refused("transformed")
    if tensor.is_nested:
        raise Refused("nested")
    if tensor.layout is not torch.strided:
        raise Refused(str(tensor.layout).removeprefix("torch."))
    if tensor.is_meta:
        raise Refused("meta")
    if tensor.is_quantized:
        raise Refused("quantized")
    if tensor.is_complex():
        raise Refused(dtype_name(tensor))
    if tensor.is_neg():
        raise Refused("neg_view")
    if _end(tensor) > tensor.untyped_storage().nbytes():
        raise Refused("storage_too_small")
    named = math.prod(size for size, stride in zip(tensor.shape, tensor.stride()) if stride)
    if named > MOST_OVERLAPPING and named > OVERLAPS * _span(tensor):
        raise Refused("overlapping")


def _span(x: Tensor) -> int:
    """How many elements lie between its first and its last one, in its storage."""
    return 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))


def _end(x: Tensor) -> int:
    """Where its last element ends in its storage, in bytes."""
    return 0 if x.numel() == 0 else (x.storage_offset() + _span(x)) * x.element_size()


def _dense(x: Tensor) -> tuple[Tensor, int]:
    """The stored elements as one dimension, and how many times each one counts (expanded views)."""
    times = 1
    for dim in range(x.ndim):
        if x.stride(dim) == 0 and x.size(dim) > 1:
            times *= x.size(dim)
            x = x.narrow(dim, 0, 1)
    # Sums do not care about the order, so neither does a permuted layout need a copy.
    return x.permute(sorted(range(x.ndim), key=x.stride, reverse=True)).reshape(-1), times


def _widest(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64
