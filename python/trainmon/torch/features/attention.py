# How attention spreads: per query its entropy, its largest weight and its largest logit.
"""Computed apart from the model, in blocks, so that the q x k weights never exist as a whole."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainmon.torch.measuring.isolated import isolated

# Dimensions of each layout, in the order batch, heads, sequence, depth.
LAYOUTS = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3), "sbhd": (1, 2, 0, 3)}

# What a block of logits may take: about a second-level cache; on devices enough to fill them.
CPU_BYTES = 2 << 20
DEVICE_BYTES = 64 << 20
QUERIES = 64  # most queries of a block: with a causal mask, half a block's square is for nothing

HIDDEN = -1e4  # a shifted logit whose weight is zero in every dtype


def why_not(query: Tensor, key: Tensor, layout: str) -> str:
    """Why these are no queries and keys of one attention; "" if they can be."""
    if query.dim() != 4 or key.dim() != 4:
        return "queries and keys have not four dimensions"
    b, h, _, d = (query.shape[i] for i in LAYOUTS[layout])
    key_b, key_h, _, key_d = (key.shape[i] for i in LAYOUTS[layout])
    if b != key_b or d != key_d or key_h == 0 or h % key_h:
        return f"queries {tuple(query.shape)} do not fit keys {tuple(key.shape)} as {layout}"
    if query.device != key.device:
        return "queries and keys are on different devices"
    return ""


def attention_features(
    query: Tensor,
    key: Tensor,
    *,
    layout: str = "bhsd",
    causal: bool,
    scale: float | None = None,
    mask: Tensor | None = None,
    most_bytes: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(entropy, largest weight, largest logit), each [batch, heads, queries], on the same device.

    Weights are softmax(query key^T scale) over visible keys. scale is 1/sqrt(depth) unless given.
    Keys may have fewer heads, each for a group of neighbouring query heads. causal: the last query
    sees all keys, each one before it one less. mask broadcasts to [batch, heads, queries, keys]: of
    bool, True where a key is visible; of floats, added to the logits. A query that sees no key
    attends to nothing: all three are 0, so that padding does not look like an infinity. A NaN in a
    query or a key that it sees makes all three NaN.

    float32 (float64 of float64), with the device's own precision of float32 products. Beside the
    results it needs three buffers and the keys of the heads in a block in that dtype. A buffer
    has most_bytes, or the logits of one query of one group of heads if that is more.
    """
    if reason := why_not(query, key, layout):
        raise ValueError(reason)
    with isolated():
        query = query.detach().permute(LAYOUTS[layout])
        key = key.detach().permute(LAYOUTS[layout])
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        b, h, q, d = query.shape
        groups, k = key.shape[1], key.shape[2]
        found = torch.zeros(3, h, b, q, dtype=wide, device=query.device)
        results = found.permute(0, 2, 1, 3)
        if found.numel() == 0 or k == 0:
            return tuple(results)
        size = h // groups  # query heads of a key head
        query = query.unflatten(1, (groups, size))
        if mask is not None:
            mask = _by_group(mask.detach(), groups, size)
        scale = 1.0 / math.sqrt(max(d, 1)) if scale is None else scale
        if most_bytes is None:
            most_bytes = CPU_BYTES if query.device.type == "cpu" else DEVICE_BYTES
        rows = max(1, most_bytes // wide.itemsize // k)  # logits of this many queries in a block
        queries = max(1, min(q, QUERIES, rows // size))
        heads = max(1, rows // (queries * size))
        out = results.unflatten(2, (groups, size))
        for at in _pieces(b, groups, heads):
            keys = key[at].to(wide).flatten(0, 1).transpose(1, 2)
            for first in range(0, q, queries):
                last = min(first + queries, q)
                seen = min(k, last + k - q) if causal else k
                if seen <= 0:
                    continue
                part = query[at][:, :, :, first:last].to(wide, copy=True).mul_(scale)
                shape = part.shape
                logits = torch.bmm(part.flatten(2, 3).flatten(0, 1), keys[:, :, :seen])
                logits = logits.view(*shape[:-1], seen)
                if causal:
                    _hide_later(logits, first + k - q)
                lowest = -math.inf
                if mask is not None:
                    lowest = _apply(logits, _part(mask, at, first, last, seen))
                values = _of_logits(logits, lowest)
                for whole, piece in zip(out, values):
                    whole[at][:, :, :, first:last] = piece
        return tuple(results)


def _of_logits(logits: Tensor, lowest: float) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row; the logits are overwritten. Rows whose largest is `lowest` see nothing.

    With z = logit - largest, the entropy is -log(largest weight) - sum(weight z).
    """
    weights = torch.softmax(logits, -1)
    largest = logits.amax(-1, keepdim=True)
    most = weights.amax(-1)
    logits.sub_(largest).clamp_(min=HIDDEN)
    entropy = logits.mul_(weights).sum(-1).add_(most.log()).neg_().clamp_(min=0)
    largest = largest.squeeze(-1)
    blind = largest <= lowest
    return tuple(values.masked_fill_(blind, 0.0) for values in (entropy, most, largest))


def _hide_later(logits: Tensor, latest: int) -> None:
    """Row i sees the keys up to latest + i. tril_ clears what is hidden, be it NaN."""
    rows, seen = logits.shape[-2:]
    start = max(0, latest + 1)
    if start >= seen:
        return
    hidden = torch.full(
        (rows, seen - start), -math.inf, dtype=logits.dtype, device=logits.device
    ).triu_(latest - start + 1)
    logits[..., start:].tril_(latest - start).add_(hidden)


def _apply(logits: Tensor, mask: Tensor) -> float:
    """The logit at and below which a row sees nothing."""
    if mask.dtype == torch.bool:
        logits.masked_fill_(mask.logical_not(), -math.inf)
        return -math.inf
    logits.add_(mask)
    # Masks of floats hide with -inf or their most negative number, and so do rows that see nothing.
    return torch.finfo(mask.dtype).min / 2


def _by_group(mask: Tensor, groups: int, size: int) -> Tensor:
    """As [batch, groups, heads of a group, queries, keys], where 1 stands for all."""
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    return mask.unflatten(1, (1, 1) if mask.shape[1] == 1 else (groups, size))


def _part(mask: Tensor, at: tuple, first: int, last: int, seen: int) -> Tensor:
    batches, heads = at
    if mask.shape[0] > 1:
        mask = mask[batches]
    if mask.shape[1] > 1:
        mask = mask[:, heads]
    if mask.shape[3] > 1:
        mask = mask[:, :, :, first:last]
    return mask[..., :seen] if mask.shape[4] > 1 else mask


def _pieces(b: int, groups: int, heads: int):
    """Slices of batch and key heads with at most `heads` key heads: whole batches, or part of one."""
    if heads >= groups:
        step = heads // groups
        for first in range(0, b, step):
            yield slice(first, first + step), slice(None)
        return
    for batch in range(b):
        for first in range(0, groups, heads):
            yield slice(batch, batch + 1), slice(first, first + heads)
