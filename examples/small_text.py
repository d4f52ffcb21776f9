# What the examples share: a byte-level GPT, text to learn from, two processes, what is said at the end.
from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

CONTEXT = 128


def build_gpt(width: int = 192, heads: int = 6, depth: int = 6):
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln1 = nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.proj = nn.Linear(width, width)
            self.ln2 = nn.LayerNorm(width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width),
                nn.GELU(),
                nn.Linear(4 * width, width),
                nn.Dropout(0.1),
            )

        def forward(self, x):
            shape = (x.shape[0], x.shape[1], heads, width // heads)
            q, k, v = (t.view(shape).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, -1))
            attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(attended.transpose(1, 2).flatten(2))
            return x + self.mlp(self.ln2(x))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(256, width)
            self.positions = nn.Embedding(CONTEXT, width)
            self.blocks = nn.ModuleList(Block() for _ in range(depth))
            self.ln = nn.LayerNorm(width)
            self.head = nn.Linear(width, 256, bias=False)

        def forward(self, bytes_):
            x = self.tokens(bytes_) + self.positions(torch.arange(bytes_.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(self.ln(x))

    return GPT()


def corpus() -> bytes:
    """Python's standard library, as text to learn from: every machine that runs this has it."""
    library = Path(sysconfig.get_path("stdlib"))
    return b"\n".join(file.read_bytes() for file in sorted(library.glob("*.py")))


def texts(length: int, count: int):
    """That many pieces of the corpus, in a fixed random order: bytes, one longer than `length`, so
    that each has its next one as a target."""
    import torch

    text = torch.frombuffer(bytearray(corpus()), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(len(text) - length - 1, (count,), generator=generator)
    return [text[start : start + length + 1].long() for start in starts.tolist()]


def batches(rank: int, ranks: int, size: int, length: int, count: int):
    """(inputs, targets) of one rank, which shares the pieces with the others."""
    import torch

    pieces = texts(length, size * count * ranks)[rank::ranks]
    for index in range(count):
        piece = torch.stack(pieces[index * size : (index + 1) * size])
        yield piece[:, :-1], piece[:, 1:]


def loss_of(logits, targets):
    import torch

    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def arguments(doc: str, steps: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    name = Path(sys.argv[0]).stem
    parser.add_argument("--out", default=f"trainmon_runs/{name}", help="run directory")
    parser.add_argument("--steps", type=int, default=steps)
    return parser.parse_args()


def start(train, doc: str, steps: int) -> int:
    """Runs train(out, steps) on each of two processes: starts the script again under torchrun."""
    options = arguments(doc, steps)
    if "RANK" in os.environ:
        train(options.out, options.steps)
        return 0
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([*launch, *sys.argv], env=environment)
    if ended.returncode == 0:
        print(f"the run is in {options.out}\nnext: trainmon top {options.out}")
    return ended.returncode


def show(rank: int, step: int, loss: float) -> None:
    if rank == 0 and step % 5 == 0:
        print(f"step {step:3d}  loss {loss:.3f}", flush=True)
