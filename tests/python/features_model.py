# A small GPT with what features are read from: a core attention, linear layers and a router.
import torch
import torch.nn.functional as F
from torch import nn

import models


class CoreAttention(nn.Module):
    """Given queries, keys and values, as Megatron's is. Keys may have fewer heads."""

    is_causal = True

    def __init__(self, layout, dropout):
        super().__init__()
        self.layout, self.dropout = layout, dropout

    def forward(self, query, key, value):
        order = ["bhsd".index(axis) for axis in self.layout]
        back = [self.layout.index(axis) for axis in "bhsd"]
        query, key, value = (x.permute(back) for x in (query, key, value))
        group = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(group, 1) for x in (key, value))
        rate = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=rate)
        return mixed.permute(order)


class PlainAttention(nn.Module):
    """Called as Megatron's is; returns its queries."""

    def forward(self, query, key, value=None, attention_mask=None, **kwargs):
        return query


class Mixer(nn.Module):
    def __init__(self, width, heads, groups, layout, dropout):
        super().__init__()
        self.layout, self.heads, self.groups, self.depth = layout, heads, groups, width // heads
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * groups * self.depth)
        self.core = CoreAttention(layout, dropout)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        order = ["bshd".index(axis) for axis in self.layout]
        q = self.q(x).view(batch, length, self.heads, self.depth).permute(order)
        k, v = self.kv(x).view(batch, length, 2 * self.groups, self.depth).chunk(2, 2)
        mixed = self.core(q, k.permute(order), v.permute(order))
        back = [self.layout.index(axis) for axis in "bshd"]
        return self.out(mixed.permute(back).reshape(batch, length, width))


class TopKRouter(nn.Module):
    """Returns (logits, which expert), as routers do."""

    def __init__(self, width, experts):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, width) / width**0.5)

    def forward(self, x):
        logits = F.linear(x, self.weight)
        return logits, logits.argmax(-1)


class Experts(nn.Module):
    def __init__(self, width, experts):
        super().__init__()
        self.router = TopKRouter(width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))

    def forward(self, x):
        logits, chosen = self.router(x)
        weights = logits.softmax(-1)
        total = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            total = total + expert(x) * (weights[..., index] * (chosen == index)).unsqueeze(-1)
        return total


class Block(nn.Module):
    def __init__(self, width, heads, groups, layout, experts, dropout):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixer = Mixer(width, heads, groups, layout, dropout)
        self.experts = Experts(width, experts)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.dropout(self.mixer(self.norm1(x)))
        return x + self.dropout(self.experts(self.norm2(x)))


class Gpt(nn.Module):
    def __init__(self, width=16, depth=2, heads=4, groups=2, layout="bhsd", experts=3, dropout=0.1):
        super().__init__()
        self.tokens = nn.Embedding(models.VOCABULARY, width)
        self.places = nn.Embedding(models.LENGTH, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, groups, layout, experts, dropout) for _ in range(depth)
        )
        self.head = nn.Linear(width, models.VOCABULARY, bias=False)
        self.checkpointing = None  # or whether it is reentrant

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            if self.checkpointing is None:
                x = block(x)
            else:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.checkpointing)
        return self.head(x)
