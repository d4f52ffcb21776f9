# The reference model of the overhead measurements, one training step of it, and paired statistics.
"""A byte-level GPT on the Python standard library's text: 2.79 M parameters in 77 tensors,
6 blocks, 67 modules, 8 x 128 tokens, fp32, dropout 0.1, AdamW, one torch thread.
"""

import pathlib
import random
import statistics
import sys
import time

import torch
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "python"))
import models


class Trainer:
    def __init__(self, seed=1):
        torch.set_num_threads(1)
        models.seed(seed)
        self.model = models.Gpt(width=192, depth=6, heads=6, length=128, dropout=0.1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        assert sum(p.numel() for p in self.model.parameters()) // 10_000 == 279
        assert len(list(self.model.parameters())) == 77 and len(list(self.model.modules())) == 67

    def step(self, batch):
        """Seconds of: wall clock, this thread's CPU, CPU of this process's other threads."""
        ids, target = batch
        wall, mine, all_threads = time.perf_counter(), time.thread_time(), time.process_time()
        loss = models.loss_of(self.model(ids), target)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        wall, mine = time.perf_counter() - wall, time.thread_time() - mine
        return wall, mine, max(0.0, time.process_time() - all_threads - mine)


class CoreAttention(nn.Module):
    """Attention as a module of its own, given queries, keys and values."""

    is_causal = True

    def forward(self, query, key, value, dropout):
        return nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=dropout
        )


class SplitAttention(models.Attention):
    """The same with its core in a module, as Megatron and others have it."""

    def forward(self, x):
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        query, key, value = (
            part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        y = self.core(query, key, value, self.dropout if self.training else 0.0)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class SplitTrainer(Trainer):
    """The reference model with the cores of its attention as modules."""

    def __init__(self, seed=1):
        super().__init__(seed)
        for module in self.model.modules():
            if type(module) is models.Attention:
                module.__class__ = SplitAttention
                module.core = CoreAttention()


def batch():
    return models.text_batch(8, 128)


def paired(bare, watched, rounds=4000):
    """Median of the paired relative differences in per cent, with its 5th and 95th percentile."""
    shares = [100 * (w - b) / b for b, w in zip(bare, watched, strict=True)]
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(shares, k=len(shares))) for _ in range(rounds))
    return {
        "bare_ms": 1000 * statistics.median(bare),
        "median_percent": statistics.median(shares),
        "low_percent": medians[rounds // 20],
        "high_percent": medians[-rounds // 20],
        "pairs": len(shares),
    }


def line(name, result):
    return (
        f"{name:44s} {result['bare_ms']:8.1f} ms {result['median_percent']:+8.2f} %"
        f"   [{result['low_percent']:+.2f}, {result['high_percent']:+.2f}]  n={result['pairs']}"
    )


def machine():
    cpu = pathlib.Path("/proc/cpuinfo").read_text().split("model name")[1].split("\n")[0]
    return {
        "cpu": cpu.lstrip("\t :"),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "load": pathlib.Path("/proc/loadavg").read_text().split()[:3],
    }
