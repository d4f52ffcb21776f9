# The GPT of the equality table, its data and its training: the same whatever wraps it.
"""29 parameters in plain torch. Every wrapper trains it with the same seed, data by rank, step and micro
step, and AdamW; equality_oracle.py does so in one process and without any of them.
"""

import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

VOCABULARY, LENGTH, BATCH = 67, 12, 2  # 67: shards are uneven
WIDTH, HEADS, DEPTH = 32, 4, 2
STEPS, MICRO_STEPS, RANKS = 3, 2, 2
# eps: where a gradient is 0 but for rounding (the bias of keys), an update is not to be noise.
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-5, "weight_decay": 0.1}
KINDS = (
    "grad_unreduced", "grad_reduced", "param_origin", "param_updated", "exp_avg", "exp_avg_sq",
)  # fmt: skip


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.out(self.attend(self.qkv(self.norm1(x))))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def attend(self, qkv):
        """Rows of qkv are ordered by head, so that a rank may have some of the heads."""
        batch, length, width = qkv.shape
        heads = qkv.view(batch, length, width // (3 * WIDTH // HEADS), -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(*heads.chunk(3, dim=-1), is_causal=True)
        return y.transpose(1, 2).reshape(batch, length, -1)


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make() -> Gpt:
    torch.set_num_threads(1)
    torch.manual_seed(1234)
    return Gpt()


def batch(rank: int, step: int, micro: int) -> tuple:
    """(ids, targets)"""
    generator = torch.Generator().manual_seed(10_000 * rank + 100 * step + micro)
    text = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    return text[:, :-1], text[:, 1:]


def loss_of(logits, targets):
    """Of one micro step; the loss of a step is their mean."""
    return F.cross_entropy(logits.float().reshape(-1, logits.shape[-1]), targets.reshape(-1))


def begin() -> int:
    """Joins the process group, as launch.py or torchrun started it. Its rank."""
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1 and not dist.is_initialized():
        meeting = os.environ.get("MEETING_POINT", "env://")
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    return rank


def train(model, optimizer, data_rank: int, micro_step=None, after_backward=None) -> list:
    """The losses. micro_step(is_last) is a context for each micro step."""
    losses = []
    for step in range(STEPS):
        for micro in range(MICRO_STEPS):
            ids, targets = batch(data_rank, step, micro)
            is_last = micro == MICRO_STEPS - 1
            with micro_step(is_last) if micro_step else contextlib.nullcontext():
                loss = loss_of(model(ids), targets) / MICRO_STEPS
                scale_loss = getattr(optimizer, "scale_loss", None)  # Megatron's
                (scale_loss(loss) if scale_loss else loss).backward()
            losses.append(loss.detach())
        if after_backward is not None:
            after_backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses
