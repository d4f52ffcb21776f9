# How alike the experts' rows of a router are, and how sure it is of each token's experts.
from __future__ import annotations

import torch
from torch import Tensor

from trainmon.torch.measuring.isolated import isolated


def router_weight_similarity(weight: Tensor) -> Tensor:
    """Mean cosine similarity over the pairs of experts, the smaller dimension of the matrix (the first
    of a square one). 0 with fewer than two; a row of zeros is like none. NaN with a NaN or an
    infinity in it. Needs two copies of the matrix in float32 (float64 of float64).

    With unit rows u, the pairs' sum is (|sum u|^2 - sum |u|^2) / 2: no matrix of pairs is made.
    """
    with isolated():
        weight = weight.detach()
        wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
        if weight.dim() == 2 and weight.shape[0] > weight.shape[1]:
            weight = weight.t()
        experts = weight.shape[0] if weight.dim() == 2 else 0
        if experts < 2 or weight.numel() == 0:
            return torch.zeros((), dtype=wide, device=weight.device)
        largest = weight.to(wide).abs().amax(1, keepdim=True)
        units = weight.to(wide) / torch.where(largest == 0, torch.ones_like(largest), largest)
        lengths = torch.linalg.vector_norm(units, dim=1, keepdim=True)
        units = units.div_(torch.where(lengths == 0, torch.ones_like(lengths), lengths))
        together = torch.linalg.vector_norm(units.sum(0)).square()
        alone = torch.linalg.vector_norm(units).square()
        return (together - alone) / (experts * (experts - 1))


def per_token_expert_entropy(logits: Tensor) -> Tensor | None:
    """Entropy of each token's softmax over the last dimension, of the shape of the others; None with
    fewer than two dimensions. Terms that are NaN count 0. Needs three float32 copies of the logits."""
    if logits.dim() < 2:
        return None
    with isolated():
        logits = logits.detach()
        if logits.dtype != torch.float64:
            logits = logits.to(torch.float32)
        chances = torch.log_softmax(logits, -1)
        return chances.mul(chances.exp()).nansum(-1).neg_()
