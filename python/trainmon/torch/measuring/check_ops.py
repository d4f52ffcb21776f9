# Fingerprint and sketch of a tensor by the framework's own operations (docs/formats.md defines both).
"""Integers are multiplied modulo 2^64, so the fingerprint has the bits of the core's. As with states, the
result stays on the device, and nothing waits.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn.functional import pad

from trainmon.base.row_check import CHECK_COLUMNS, FINGERPRINT_COLUMNS, FINGERPRINT_ROWS
from trainmon.torch.measuring.isolated import no_modes

PIECES = 4  # of 16 bits, of the fingerprint: exact as numbers of any width
CHUNK = 1 << 22  # elements at a time: bounds what a large tensor needs besides itself
BLOCK = 8192  # bytes of a block of the fingerprint
SIGNED = 256  # elements of a block of the sketch


def none(device: torch.device, wide: torch.dtype) -> Tensor:
    """Stands where a row has no check."""
    return torch.zeros(CHECK_COLUMNS, dtype=wide, device=device)


def check(tensor: Tensor, first: int, scale: Tensor | None, wide: torch.dtype) -> Tensor:
    """A vector of CHECK_COLUMNS on the device of a tensor that measure() takes. `first` is the index of its
    first element in the full tensor. The sketch is divided by `scale`, a tensor of one number."""
    with torch.no_grad(), no_modes():
        flat = tensor.detach().reshape(-1)
        fingerprint = torch.zeros((), dtype=torch.int64, device=flat.device)
        lanes = torch.zeros(16, dtype=wide, device=flat.device)
        for number, part in enumerate(flat.split(CHUNK)):
            if part.numel() > 0:
                index = first + number * CHUNK
                fingerprint = fingerprint + _fingerprint(part, index)
                lanes = lanes + _lanes(part.to(wide), index)
        sketch = lanes[:8] + lanes[8:] * _constant(lanes, _turns, wide)
        if scale is not None:
            sketch = sketch / scale.detach().reshape(()).to(flat.device, wide, non_blocking=True)
        pieces = [(fingerprint >> (16 * i)) & 0xFFFF for i in range(PIECES)]
        taken = torch.ones(1, dtype=wide, device=flat.device)
        return torch.cat([taken, torch.stack(pieces).to(wide), sketch])


def _fingerprint(part: Tensor, index: int) -> Tensor:
    byte = index * part.element_size()
    data = part.view(torch.uint8)
    before = byte % BLOCK
    after = -(before + data.numel()) % BLOCK
    if before or after:
        data = pad(data, (before, after))
    elif data.storage_offset() % 2:
        data = data.clone()  # it is viewed as numbers of two bytes
    blocks = data.numel() // BLOCK
    halves = data.view(torch.int16).view(blocks, 16, 8, 16, 2).to(torch.int32)
    words = (halves * _constant(data, _of_rows)).sum((2, 4), dtype=torch.int64)
    sums = (words * _constant(data, _of_columns)).sum((1, 2))
    return (sums * _constant(data, _of_blocks, byte // BLOCK, blocks)).sum()


def _lanes(x: Tensor, index: int) -> Tensor:
    before = index % SIGNED
    x = pad(x, (before, -(before + x.numel()) % SIGNED))
    blocks = x.numel() // SIGNED
    of_steps = x.view(blocks, 8, 2, 16).sum(2) * _constant(x, _of_steps, x.dtype)
    return (of_steps.sum(1) * _constant(x, _signs, x.dtype, index // SIGNED, blocks)).sum(0)


def _constant(beside: Tensor, make, *about) -> Tensor:
    """Made on the host, where CUDA copies it without a wait, in the order of any stream."""
    pinned = beside.device.type == "cuda"
    return _kept(make, pinned, *about).to(beside.device, non_blocking=True)


@functools.lru_cache(maxsize=512)
def _kept(make, pinned: bool, *about) -> Tensor:
    return make(*about).pin_memory() if pinned else make(*about)


def _of_rows() -> Tensor:
    """Of row, word and half in a group."""
    return torch.tensor(FINGERPRINT_ROWS, dtype=torch.int32, device="cpu").view(8, 1, 2)


def _of_columns() -> Tensor:
    return torch.tensor(FINGERPRINT_COLUMNS, dtype=torch.int64, device="cpu").view(16, 16)


def _of_blocks(first: int, count: int) -> Tensor:
    return _mix64(torch.arange(first, first + count, device="cpu")) | 1


def _of_steps(dtype: torch.dtype) -> Tensor:
    return torch.tensor([1, 1, -1, 1, 1, 1, -1, -1], dtype=dtype, device="cpu").view(8, 1)


def _signs(dtype: torch.dtype, first: int, count: int) -> Tensor:
    """Of blocks of the sketch: the sequence of Rudin and Shapiro."""
    block = torch.arange(first, first + count, device="cpu")
    pairs = block & (block >> 1)
    for shift in (32, 16, 8, 4, 2, 1):
        pairs = pairs ^ (pairs >> shift)
    return (1 - 2 * (pairs & 1)).to(dtype).view(count, 1)


def _turns(dtype: torch.dtype) -> Tensor:
    """Of the second eight lanes, which are added to the first."""
    return torch.tensor([1, -1] * 4, dtype=dtype, device="cpu")


def _mix64(x: Tensor) -> Tensor:
    """splitmix64, modulo 2^64 in signed numbers."""
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    return (x >> by) & ((1 << (64 - by)) - 1)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits
