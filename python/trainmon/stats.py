# The bare measure: statistics of tensors and the probe of one, without a monitor.
from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmon import _core
from trainmon.checks import arguments as checks

if TYPE_CHECKING:
    import numpy as np

# Names of all statistics, in the order of docs/statistics.md.
STATS = tuple(line["name"] for line in _core.stat_table())
_INTEGERS = frozenset(line["name"] for line in _core.stat_table() if line["type"] == "int64")


def tensor_stats(
    tensors: Any,
    stats: Iterable[str] | None = None,
    eps: float = _core.DEFAULT_EPS,
    threads: int = 1,
) -> dict[str, np.ndarray]:
    """Statistics of one tensor or of several: {statistic: array with one value per tensor}.

    `tensors` is a torch.Tensor, a numpy.ndarray, a mindspore.Tensor or anything with `__dlpack__`,
    or an iterable of them. Each is read once, whatever the number of statistics; `stats` defaults to all of them
    (docs/statistics.md defines each). Counts come as int64, the rest as float64. `eps` is the
    threshold of `zeros`. `threads` changes the speed only. CPU tensors are measured with the GIL
    released and must not be written meanwhile; tensors on other devices with the framework's operations.

    Raises TypeError for a tensor that cannot be measured (complex, sparse, quantised, meta, a
    negative view, a subclass such as DTensor). Raises TypeError or ValueError for the rest. Each
    names the argument.

    >>> tensors = [torch.tensor([3.0, 4.0]), torch.tensor([[1.0, float("nan")]])]
    >>> found = trainmon.tensor_stats(tensors, stats=["norm", "nans"])
    >>> found["norm"].tolist(), found["nans"].tolist()
    ([5.0, nan], [0, 1])
    """
    names = _checked_stats(stats)
    eps = checks.eps(eps)
    threads = checks.threads(threads)
    values = _checked_tensors(tensors)
    states, elsewhere, refused = _core.measure_tensors(values, eps, threads)
    if refused:
        place, reason = refused[0]
        raise TypeError(f"{_named(tensors, place)} cannot be measured: {reason}")
    for place in elsewhere:
        states[place] = _measured_elsewhere(values[place], eps, _named(tensors, place))
    out = dict(zip(names, _core.derive(names, states), strict=True))
    for name in _INTEGERS.intersection(names):
        out[name] = out[name].astype("int64")
    return out


# Planes of bits for each kind of signs.
_SIGNS = {"none": 0, "positive": 1, "ternary": 2}


class TensorProbe(NamedTuple):
    """What `probe_tensor` found; None for what was not asked for."""

    stats: dict[str, float | int]  # every statistic of docs/statistics.md
    intervals: np.ndarray | None  # int64, len(bounds) + 1 counts: x <= b0, b0 < x <= b1, ...
    exact_zeros: int | None  # elements equal to 0, counted with the intervals
    signs: np.ndarray | None  # uint8, a row of ceil(count / 8) bytes per plane
    digest: str | None  # lower-case hex


def probe_tensor(
    tensor: Any,
    *,
    bounds: Iterable[float] | None = None,
    signs: str = "none",
    digest: str = "none",
    eps: float = _core.DEFAULT_EPS,
    threads: int = 1,
) -> TensorProbe:
    """Statistics, interval counts, signs and a digest of one CPU tensor, in one pass.

    `bounds` ascend strictly; NaN and +inf are in the last interval. `signs` is "positive" (one
    plane of bits, x > 0) or "ternary" (x > 0, then x < 0). Element i of the C order is bit i % 8 of
    byte i // 8: `numpy.unpackbits(p.signs, axis=1, count=n, bitorder="little")`. `digest` is "md5"
    or "crc32", of the elements as little-endian float32, or "fast64", of the elements as they are
    stored, each in C order. `eps` is the threshold of the statistic `zeros`; `threads` changes the
    speed only. The GIL is released; the tensor must not be written meanwhile.

    Raises TypeError for a tensor that cannot be read (those of `tensor_stats`, and those of another
    device). Raises TypeError or ValueError for the rest. Each names the argument.

    >>> probe = trainmon.probe_tensor(
    ...     torch.tensor([-2.0, 0.0, 0.5, 3.0]), bounds=[-1, 1], signs="positive", digest="crc32"
    ... )
    >>> probe.stats["max"], probe.intervals.tolist(), probe.exact_zeros
    (3.0, [1, 2, 1], 1)
    >>> probe.signs.tolist()  # elements 2 and 3 are positive: bits 2 and 3
    [[12]]
    >>> probe.digest
    '5488de2b'
    """
    if tensor is None:
        raise TypeError("tensor cannot be probed: it is NoneType")
    found = _core.probe_tensor(
        tensor,
        None if bounds is None else list(map(float, checks.real_numbers("bounds", bounds))),
        _SIGNS[checks.choice("signs", signs, _SIGNS)],
        checks.choice("digest", digest, _core.DIGESTS),
        checks.eps(eps),
        checks.threads(threads),
    )
    if isinstance(found, str):
        raise TypeError(
            "tensor is on another device; only CPU tensors are probed"
            if found == "device"
            else f"tensor cannot be probed: {found}"
        )
    state, *rest = found
    values = zip(STATS, _core.derive(STATS, state)[:, 0], strict=True)
    stats = {name: int(x) if name in _INTEGERS else float(x) for name, x in values}
    return TensorProbe(stats, *rest)


def _measured_elsewhere(tensor: Any, eps: float, name: str):
    ops = _operations_for(tensor)
    if ops is None:
        raise TypeError(f"{name} is on a device that only torch tensors can be measured on")
    try:
        state = ops.measure(tensor, eps)
    except ops.Refused as refused:
        raise TypeError(f"{name} cannot be measured: {refused}") from None
    if hasattr(state, "asnumpy"):
        return state.asnumpy().astype("float64")
    return state.cpu().to(ops.torch.float64).numpy()


def _operations_for(tensor: Any):
    """The operations of the framework that the tensor is of."""
    torch, mindspore = sys.modules.get("torch"), sys.modules.get("mindspore")
    if torch is not None and isinstance(tensor, torch.Tensor):
        from trainmon.torch.measuring import ops

        return ops
    if mindspore is not None and isinstance(tensor, mindspore.Tensor):
        from trainmon.mindspore import ops as of_mindspore

        return of_mindspore
    return None


def _is_tensor(value: Any) -> bool:
    return any(hasattr(value, key) for key in ("__dlpack__", "__array_interface__", "data_ptr"))


def _named(tensors: Any, place: int) -> str:
    return "tensors" if _is_tensor(tensors) else f"tensors[{place}]"


def _checked_tensors(tensors: Any) -> list:
    if _is_tensor(tensors):
        return [tensors]
    if isinstance(tensors, (str, bytes, dict)) or not isinstance(tensors, Iterable):
        raise TypeError(
            f"tensors must be a tensor or an iterable of tensors, not {type(tensors).__name__}"
        )
    return list(tensors)


def _checked_stats(stats: Iterable[str] | None) -> tuple[str, ...]:
    if stats is None:
        return STATS
    if isinstance(stats, (str, bytes)) or not isinstance(stats, Iterable):
        raise TypeError(f"stats must be an iterable of names, not {type(stats).__name__}")
    names = tuple(stats)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"stats must hold names, not {type(name).__name__}")
        if name not in STATS:
            near = difflib.get_close_matches(name, STATS, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(f"stats: {name!r} is none of {', '.join(STATS)}{hint}")
    return names
