# One watched training of a small GPT on real text, clean or with one bug planted at a known step.
"""`python planted_run.py '{"out": ..., "seed": ...}' ...`, one after another; keys and defaults: `Run`.
With several ranks (RANK, WORLD_SIZE, MEETING_POINT in the environment) the model is trained by all."""

import contextlib
import dataclasses
import json
import os
import pathlib
import sys
import types
from functools import partial, wraps

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))

import models
import trainmon

KINDS = ["activations", "grads", "param_updated"]
WIDTH, DEPTH, HEADS, LENGTH, BATCH = 64, 3, 4, 32, 8
RATE = 1e-3


@dataclasses.dataclass
class Run:
    out: str
    seed: int = 1
    steps: int = 30
    # What changes nothing but the order of summation.
    threads: int = 1
    micro_batches: int = 1
    reversed_batch: bool = False  # the same sequences in the opposite order
    mkldnn: bool = True
    math_attention: bool = False
    # With several ranks: how they train, and whether each takes its part of one rank's batch.
    mode: str = "ddp"  # or fsdp2
    one_batch: bool = False
    # The bug: learning_rate, mask, bf16 or all_reduce; in which block, from which step on.
    bug: str = ""
    layer: int = 0
    step: int = 0
    rank: int = 0  # all_reduce: where the gradient stays the rank's own
    factor: float = 10.0  # learning_rate
    transposed: bool = False  # mask: only the future is seen, else one position of it, too


def wrong_mask(attention, transposed):
    """As Attention.forward, but for the mask."""

    def forward(self, x):
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mask = torch.ones(length, length, dtype=torch.bool).tril(0 if transposed else 1)
        mask = mask.T if transposed else mask
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    attention.forward = types.MethodType(forward, attention)


def low_precision(linear):
    """The product of this layer in bfloat16, its result again float32."""

    def forward(self, x):
        return F.linear(x.bfloat16(), self.weight.bfloat16(), self.bias.bfloat16()).float()

    linear.forward = types.MethodType(forward, linear)


class Reduction:
    """DDP's own averaging; once `broken`, this rank keeps its own gradients of some parameters."""

    def __init__(self, parameters):
        self.kept = {id(p) for p in parameters}
        self.broken = False

    def __call__(self, _, bucket):
        world = dist.get_world_size()
        pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
        own = [(g, g.clone()) for p, g in pairs if self.broken and id(p) in self.kept]
        done = dist.all_reduce(bucket.buffer().div_(world), async_op=True).get_future()

        def restore(future):
            for gradient, before in own:
                gradient.copy_(before)
            return future.value()[0]

        return done.then(restore)


def groups_of(model):
    """A parameter group per block, and one of the rest."""
    blocks = [list(block.parameters()) for block in model.blocks]
    inside = {id(p) for block in blocks for p in block}
    rest = [p for p in model.parameters() if id(p) not in inside]
    return [{"params": group} for group in [*blocks, rest]]


def batch_of(run, text, step, rank, world):
    if run.one_batch:
        return [part.chunk(world)[rank] for part in batch_of(Run("", run.seed), text, step, 0, 1)]
    generator = torch.Generator().manual_seed(run.seed * 100_003 + step * 11 + rank)
    starts = torch.randint(len(text) - LENGTH - 1, (BATCH,), generator=generator)
    windows = torch.stack([text[i : i + LENGTH + 1] for i in starts.tolist()])
    windows = windows.flip(0) if run.reversed_batch else windows
    return windows[:, :-1], windows[:, 1:]


def train(run):
    torch.set_num_threads(run.threads)
    world = int(os.environ.get("WORLD_SIZE", 1))
    rank = int(os.environ.get("RANK", 0))
    models.seed(run.seed)
    plain = models.Gpt(width=WIDTH, depth=DEPTH, heads=HEADS, length=LENGTH, dropout=0.0)
    block = plain.blocks[run.layer]
    model, reduction = plain, None
    if world > 1:
        model = models.spread(plain, run.mode)
    if model is not plain:
        reduction = Reduction(block.parameters())
        model.register_comm_hook(None, wraps(allreduce_hook)(partial(reduction)))
    optimizer = torch.optim.AdamW(groups_of(plain), lr=RATE)
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, every=1, out=run.out)
    text = models.corpus()
    attention = contextlib.nullcontext()
    if run.math_attention:
        attention = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    with torch.backends.mkldnn.flags(enabled=run.mkldnn), attention:
        for step in range(run.steps):
            if run.bug and step == run.step:
                plant(run, block, optimizer, reduction, rank)
            ids, target = batch_of(run, text, step, rank, world)
            optimizer.zero_grad()
            parts = run.micro_batches
            for some, wanted in zip(ids.chunk(parts), target.chunk(parts), strict=True):
                (models.loss_of(model(some), wanted) / parts).backward()
            optimizer.step()
    monitor.stop()


def plant(run, block, optimizer, reduction, rank):
    if run.bug == "learning_rate":
        optimizer.param_groups[run.layer]["lr"] *= run.factor
    elif run.bug == "mask":
        wrong_mask(block.attention, run.transposed)
    elif run.bug == "bf16":
        low_precision(block.up)
    elif run.bug == "all_reduce":
        reduction.broken = rank == run.rank
    else:
        raise ValueError(f"bug: {run.bug!r}")


def main():
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        meeting, rank = os.environ["MEETING_POINT"], int(os.environ["RANK"])
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    for text in sys.argv[1:]:
        train(Run(**json.loads(text)))
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
