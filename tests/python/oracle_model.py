# A small GPT with every trap of naming and counting, and the training that oracle and watch share.
"""Traps: a module called three times per forward, tied weights, a frozen parameter, a parameter
unused in some micro steps (under DDP even on one rank only), shards of uneven and of zero size,
keyword arguments, nested containers, None, a dataclass, integer and bool inputs, dropout.
"""

import dataclasses
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import launch
import models

STEPS, MICRO_STEPS = 6, 2
WIDTH, HEADS = 12, 2


@dataclasses.dataclass
class Mixed:
    value: torch.Tensor
    weight: torch.Tensor
    note: str = "not a tensor"


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, options):
        batch, length, _ = x.shape
        shape = (batch, length, HEADS, WIDTH // HEADS)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        scores = (q @ k.transpose(-1, -2)).masked_fill(~options["mask"], -1e9).softmax(-1)
        y = self.out((scores @ v).transpose(1, 2).reshape(batch, length, WIDTH))
        return y, None, {"scores": scores.square().sum(-1)}


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, *, hidden, scale=None):
        return self.dropout(self.down(F.gelu(self.up(hidden))))


class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, 1)  # on two ranks one shard is empty

    def forward(self, pair):
        now, start = pair
        weight = torch.sigmoid(self.gate(now))
        return Mixed(now * weight + start * (1 - weight), weight + 0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.mlp = Attention(), Mlp()

    def forward(self, x, options):
        y, _, extra = self.attention(x, options)
        x = x + y
        return x + self.mlp(hidden=x, scale=None), extra["scores"].mean()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(models.VOCABULARY, WIDTH)
        self.places = nn.Embedding(models.LENGTH, WIDTH)
        self.places.weight.requires_grad_(False)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)  # called three times
        self.mix, self.extra = Mix(), nn.Linear(WIDTH, WIDTH)
        self.odd = nn.Linear(WIDTH, 5, bias=False)  # five rows over two ranks
        self.head = nn.Linear(WIDTH, models.VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, use_extra=False):
        length = ids.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        start = self.tokens(ids) + self.places(torch.arange(length))
        x, total = start, 0.0
        for block in self.blocks:
            x, scores = block(self.norm(x), {"mask": mask})
            total = total + scores
        mixed = self.mix((x, start))
        x = self.norm(mixed.value)
        if use_extra:
            x = x + self.extra(x)
        side = total + mixed.weight.mean() + self.odd(x).square().mean()
        return {"logits": self.head(x), "side": side}


def use_extra(mode, step, micro):
    """In which micro steps this rank uses `extra`."""
    if step == 4:  # under DDP ranks may differ
        return micro == 1 and (mode != "ddp" or os.environ["RANK"] == "0")
    return [(True, True), (False, False), (True, False), (False, True), None, (True, True)][step][
        micro
    ]


def batch(step, micro):
    generator = torch.Generator().manual_seed(1000 * int(os.environ["RANK"]) + 10 * step + micro)
    text = models.corpus()
    start = torch.randint(len(text) - 100, (2,), generator=generator).tolist()
    window = torch.stack([text[i : i + models.LENGTH + 1] for i in start])
    return window[:, :-1], window[:, 1:]


def loss_of(outputs, target):
    return (models.loss_of(outputs["logits"], target) + 0.1 * outputs["side"]) / MICRO_STEPS


def begin(mode, views=False):
    """Process group, model and optimizer of one run; the same in every process that calls it."""
    torch.set_num_threads(1)
    if mode != "single":
        launch.join()
    models.seed(11)
    options = {}
    if mode == "ddp":
        options = {"find_unused_parameters": True, "gradient_as_bucket_view": views}
    model = models.spread(Model(), mode, **options)
    models.seed(21 + int(os.environ["RANK"]))
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3)


def end(mode):
    if mode != "single":
        dist.barrier()
        dist.destroy_process_group()
