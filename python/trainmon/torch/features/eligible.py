# What features are read from: which modules bear their marks, their weights, and what attention is given.
"""Nothing here runs code of the module: only what it plainly holds and was called with is looked at."""

from __future__ import annotations

import inspect
import re

import torch
from torch import Tensor, nn

from trainmon.torch.features.attention import LAYOUTS

QUERIES = ("query", "q", "query_layer", "query_states")
KEYS = ("key", "k", "key_layer", "key_states")
ROUTERS = ("router", "gate", "wg")


def looks_like_attention(name: str, module: nn.Module) -> bool:
    kind = type(module).__name__
    return "attention" in kind.lower() or "Attn" in kind


def has_spectrum(name: str, module: nn.Module) -> bool:
    """Judged by dimensions alone: a sharded weight may be whole when the forward ends."""
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return False
    if any(attribute(module, mark) is not None for mark in ("num_embeddings", "vocab_start_index")):
        return False
    weights = [attribute(module, key) for key in ("weight", "wg")]
    return any(_is_matrix(weight) for weight in weights)


def looks_like_router(name: str, module: nn.Module) -> bool:
    matrix = next((w for w in _router_weights(module) if _is_matrix(w)), None)
    if matrix is None or min(matrix.shape) < 2:
        return False
    # TopKRouter and MoEGate, but neither GatedMLP nor Aggregate.
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", type(module).__name__)
    if any(word.lower() in ("router", "gate") for word in words):
        return True
    named = isinstance(module, nn.Linear) and name.rpartition(".")[2] in ROUTERS
    return named and matrix.shape[0] < matrix.shape[1]


def weight_of(module: nn.Module) -> Tensor | None:
    weights = (attribute(module, key) for key in ("weight", "wg"))
    return next((w for w in weights if _is_matrix(w) and readable(w)), None)


def router_weight_of(module: nn.Module) -> Tensor | None:
    return next((w for w in _router_weights(module) if _is_matrix(w) and readable(w)), None)


def _router_weights(module: nn.Module) -> list:
    """DeepSpeed's gate keeps its matrix in a linear layer `wg`."""
    inner = attribute(module, "wg")
    inner = attribute(inner, "weight") if isinstance(inner, nn.Module) else inner
    return [attribute(module, "weight"), inner]


def attribute(module: nn.Module, *names: str):
    """What the module simply holds. Properties are not asked: that of a parametrized weight may
    compute, and change what it computes the next time."""
    for name in names:
        for held in (module.__dict__, module._parameters, module._buffers, module._modules):
            if held.get(name) is not None:
                return held[name]
        held = getattr(type(module), name, None)
        if isinstance(held, (bool, int, float, str)):
            return held
    return None


def _is_matrix(value) -> bool:
    return isinstance(value, Tensor) and value.dim() == 2 and value.is_floating_point()


def readable(value) -> bool:
    """Whether operations on it are those of its values: not on shards, nor on what only describes."""
    return (
        isinstance(value, Tensor)
        and type(value).__torch_dispatch__ is Tensor.__torch_dispatch__
        and value.layout is torch.strided
        and value.is_floating_point()
        and not value.is_meta
    )


def positional(module: nn.Module) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        return ()


# --- what attention is given ---------------------------------------------------------------------


def queries_and_keys(args: tuple, given: dict) -> tuple[Tensor | None, Tensor | None]:
    if len(args) >= 2:
        found = args[0], args[1]
    else:
        found = tuple(
            next((given[name] for name in names if given.get(name) is not None), None)
            for names in (QUERIES, KEYS)
        )
    return found if all(map(readable, found)) else (None, None)


def causality(module: nn.Module, given: dict) -> tuple[bool, Tensor | None]:
    """(causal, what hides keys besides). Of the first that says so: is_causal of the call, is_causal or
    causal of the module, Megatron's attn_mask_type; else the mask alone."""
    mask = _mask(given)
    told = given.get("is_causal")
    if not isinstance(told, bool):
        told = attribute(module, "is_causal", "causal")
    if isinstance(told, bool):
        return told, mask
    kind = given.get("attn_mask_type")
    kind = attribute(module, "attn_mask_type") if kind is None else kind
    if kind is not None:
        kind = str(getattr(kind, "name", kind))
        return "causal" in kind, None if kind == "causal" else mask  # it would say the same
    return False, mask


def _mask(given: dict) -> Tensor | None:
    """True where a key is visible, or what is added to logits. A mask of bool means the opposite
    under Megatron's name, attention_mask, of what it means under torch's own, attn_mask."""
    for name in ("attention_mask", "attn_mask"):
        mask = given.get(name)
        if isinstance(mask, Tensor):
            opposite = name == "attention_mask" and mask.dtype == torch.bool
            return mask.detach().logical_not() if opposite else mask
    return None


def visible_keys(mask: Tensor, query: Tensor, key: Tensor, layout: str) -> Tensor | None:
    """The mask with four dimensions, if it can be one of these queries and keys."""
    if not (mask.dtype == torch.bool or readable(mask)):
        return None
    order = LAYOUTS[layout]
    b, h, q = (query.shape[order[i]] for i in range(3))
    k = key.shape[order[2]]
    if tuple(mask.shape) == (q, k):
        mask = mask[None, None]
    sizes = zip(mask.shape, (b, h, q, k))
    return mask if mask.dim() == 4 and all(m in (1, s) for m, s in sizes) else None


def scale_of(module: nn.Module, given: dict) -> float | None:
    told = given.get("scale", given.get("softmax_scale"))
    for scale in (told, attribute(module, "softmax_scale", "scale", "scaling")):
        if isinstance(scale, (int, float)) and not isinstance(scale, bool):
            return float(scale)
    return None
