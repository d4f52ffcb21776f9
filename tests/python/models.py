# Four small networks with the traps of real ones, their data, and how to spread them over ranks.
"""Every model maps one input tensor to logits; `loss_of` turns them into a scalar.

Data comes from all three generators (torch, NumPy, Python) on purpose: one extra draw from any of
them changes the training that follows.
"""

import contextlib
import functools
import os
import pathlib
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 256
LENGTH = 12
BATCH = 2
NAMES = ("gpt", "cnn", "lstm", "tied")


class Attention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        rate = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=rate)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.activation, self.dropout = nn.GELU(), nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.down(self.activation(self.up(self.norm2(x)))))


class Gpt(nn.Module):
    def __init__(self, width=16, depth=2, heads=2, length=LENGTH, dropout=0.1):
        super().__init__()
        self.tokens, self.places = (
            nn.Embedding(VOCABULARY, width),
            nn.Embedding(length, width),
        )
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(depth))
        self.norm, self.head = (
            nn.LayerNorm(width),
            nn.Linear(width, VOCABULARY, bias=False),
        )

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class ConvBlock(nn.Module):
    """BatchNorm and an in-place ReLU on a sum, where full backward hooks raise."""

    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)  # called twice

    def forward(self, x):
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += x
        return self.relu(y)


class Cnn(nn.Module):
    def __init__(self, channels=6, depth=2, classes=10):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
        )
        self.blocks = nn.ModuleList(ConvBlock(channels) for _ in range(depth))
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(channels, classes)

    def forward(self, images):
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(self.pool(x).flatten(1))


class Lstm(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids):
        # torch 2.13 raises for a bfloat16 LSTM on a processor without AVX-512: oneDNN has none there.
        with torch.autocast("cpu", enabled=False):
            x, _ = self.lstm(self.tokens(ids))
        return self.head(x)


class Tied(nn.Module):
    """The output layer is the embedding."""

    def __init__(self, width=12, depth=2):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1)) for _ in range(depth)
        )
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def seed(value):
    torch.manual_seed(value)
    np.random.seed(value)
    random.seed(value)


def build(name):
    return {"gpt": Gpt, "cnn": Cnn, "lstm": Lstm, "tied": Tied}[name]()


@functools.cache
def corpus(limit=1 << 18):
    """The first bytes of the Python standard library's own source."""
    files = sorted(pathlib.Path(os.__file__).parent.glob("*.py"))
    text = b""
    for file in files:
        text += file.read_bytes()
        if len(text) >= limit:
            break
    return torch.frombuffer(bytearray(text[:limit]), dtype=torch.uint8).long()


def text_batch(batch=BATCH, length=LENGTH):
    text = corpus()
    starts = torch.randint(len(text) - length - 2, (batch,)) + random.randrange(2)
    if np.random.rand() < 0.5:
        starts = starts.flip(0)
    window = torch.stack([text[i : i + length + 1] for i in starts.tolist()])
    return window[:, :-1], window[:, 1:]


def image_batch(batch=4, side=6):
    images = torch.from_numpy(np.random.rand(batch, 3, side, side).astype(np.float32))
    labels = torch.randint(10, (batch,)) + random.randrange(2)
    return images + 0.1 * torch.randn_like(images), labels % 10


def draw(name):
    return image_batch() if name == "cnn" else text_batch()


def loss_of(logits, target):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), target.reshape(-1))


def spread(model, mode, **options):
    """The model as `mode` trains it: single, ddp or fsdp2 (needs a process group)."""
    if mode == "ddp":
        return nn.parallel.DistributedDataParallel(model, **options)
    if mode == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for block in model.blocks if hasattr(model, "blocks") else [model.lstm]:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


@contextlib.contextmanager
def micro_step(model, mode, last):
    """One micro step: gradients are reduced only in the last one of a step."""
    if mode == "fsdp2":
        model.set_requires_gradient_sync(last)
    with model.no_sync() if mode == "ddp" and not last else contextlib.nullcontext():
        yield


def local(tensor):
    """The part of a (possibly sharded) tensor that this rank holds."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class InPlaceBlock(nn.Module):
    """Writes in place, uses a layer twice and has a residual: what fusion would rather keep to itself."""

    def __init__(self):
        super().__init__()
        self.up, self.relu = nn.Linear(8, 16), nn.ReLU(inplace=True)
        self.twice, self.norm, self.gelu = nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU()
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        h = self.relu(self.up(x))
        h = h + self.norm(self.gelu(self.twice(h)))
        return self.out(h + self.twice(h))


class Around(nn.Module):
    def __init__(self, block=None):
        super().__init__()
        self.first, self.block, self.last = (
            nn.Linear(8, 8),
            block or InPlaceBlock(),
            nn.Linear(4, 2),
        )

    def forward(self, x):
        return self.last(self.block(self.first(x)))


def squares(model, data):
    return model(data).pow(2).mean()


class TiedHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        return self.head(self.tokens(x))


def two_layers(seed=0):
    """For what happens to a watched model, with its optimizer."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def train_step(model, optimizer, data=None):
    """Of a model that takes rows of three."""
    optimizer.zero_grad()
    model(torch.randn(5, 3) if data is None else data).pow(2).sum().backward()
    optimizer.step()
