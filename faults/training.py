"""A small GPT on real text, in one or several processes, that can be forked: its whole state is saved
and loaded, and the same step from the same state gives the same bits."""

from __future__ import annotations

import copy
import dataclasses
import functools
import sysconfig
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

CONTEXT, WIDTH, HEADS, LAYERS, SYMBOLS = 32, 32, 2, 2, 128


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a training is: each combination is a column of the table."""

    name: str
    ranks: int = 2
    wrapper: str = "ddp"  # ddp, fsdp2, zero (ZeroRedundancyOptimizer under DDP), none
    optimizer: str = "adamw"  # adamw, sgd (with momentum)
    autocast: bool = False
    micros: int = 1
    clip: float | None = None

    @property
    def is_adam(self) -> bool:
        return self.optimizer == "adamw"


SETTINGS = (
    Setting("ddp2_adamw_clip", clip=1.0),
    Setting("ddp3_adamw_accumulation", ranks=3, micros=2),
    Setting("ddp2_adamw_bf16", autocast=True),
    Setting("ddp2_sgd_clip", optimizer="sgd", clip=1.0),
    Setting("one_adamw_bf16", ranks=1, wrapper="none", autocast=True),
    Setting("fsdp2_adamw", wrapper="fsdp2"),
    Setting("zero2_adamw", wrapper="zero"),
)
# Trained without a fault, too.
CLEAN_SETTINGS = (*SETTINGS, Setting("one_adamw_clip", ranks=1, wrapper="none", clip=1.0))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.before_mlp = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, -1).transpose(1, 2)
            for part in self.qkv(self.before_attention(x)).chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-2, -1) / (WIDTH / HEADS) ** 0.5
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(nn.functional.gelu(self.up(self.before_mlp(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(SYMBOLS, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, SYMBOLS, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def text(names: tuple[str, ...] = ("argparse.py", "typing.py", "ast.py")) -> torch.Tensor:
    """Sources of the standard library, as bytes below 128."""
    folder = Path(sysconfig.get_path("stdlib"))
    whole = b"".join((folder / name).read_bytes() for name in names)
    return torch.tensor([byte for byte in whole if byte < SYMBOLS], dtype=torch.long)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of it."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class Training:
    """`points` are called in each step: what is planted and what looks on hang there.

    weights   before the forward       input    before each forward, its batch is drawn
    local     this rank's gradient, before the reduction
    micro     after each backward      reduced  before clipping
    moments   before the step of the optimizer
    update    after it, before what watches it
    """

    POINTS = ("weights", "input", "local", "micro", "reduced", "moments", "update")

    def __init__(self, setting: Setting, seed: int):
        self.setting = setting
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        torch.manual_seed(seed)
        self.text = text()
        self.model = Gpt()
        self.names = [name for name, _ in self.model.named_parameters()]
        self.wrapped = self._wrap()
        self.parameters = dict(zip(self.names, self.wrapped.parameters(), strict=True))
        self.optimizer = self._make_optimizer()
        post_hooks = self.optimizer._optimizer_step_post_hooks
        of_update = self.optimizer.register_step_post_hook(lambda *_: self._at("update"))
        # Before what watches the step, which puts its own hook first.
        self.optimizer.register_step_pre_hook(
            lambda *_: post_hooks.move_to_end(of_update.id, last=False)
        )
        self.data = torch.Generator().manual_seed(1000 * seed + self.rank)
        self.step = 0
        self.watchers: list = []
        self.given: torch.Tensor | None = None  # the newest batch
        self.batch_size = 4
        self.behave()

    def behave(self) -> None:
        """What a fault may change, and what it keeps, as it is without one."""
        self.forgets_to_reduce = self.past_wrapper = self.is_stuck = self.counts_twice = False
        self.loses_transfers = False
        self.loss_factor = 1.0
        self.common: torch.Generator | None = None  # draws the batches of all ranks
        self.has_begun = False
        self.remembered = None

    def _wrap(self) -> nn.Module:
        wrapper = self.setting.wrapper
        if wrapper == "fsdp2":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            self._watch_reduce_scatters()
            mesh = init_device_mesh("cpu", (self.setting.ranks,))
            for block in self.model.blocks:
                fully_shard(block, mesh=mesh)
            return fully_shard(self.model, mesh=mesh)
        if wrapper == "none":
            return self.model
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        wrapped = nn.parallel.DistributedDataParallel(self.model)

        @functools.wraps(allreduce_hook)  # what it says that it does
        def reduce(group, bucket):
            self.bucket = dict(zip(map(id, bucket.parameters()), bucket.gradients(), strict=True))
            self._at("local")
            return allreduce_hook(group, bucket)

        wrapped.register_comm_hook(None, reduce)
        return wrapped

    def _watch_reduce_scatters(self) -> None:
        """What this rank sends may be lost."""
        for name in ("reduce_scatter_single", "reduce_scatter_tensor"):  # newer torch, older
            if hasattr(dist, name):
                break
        send = getattr(dist, name)

        def sent(*args, **kwargs):
            if self.loses_transfers:
                (kwargs["input"] if "input" in kwargs else args[1]).zero_()
            return send(*args, **kwargs)

        setattr(dist, name, sent)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        named = {
            "adamw": (torch.optim.AdamW, {"lr": 2e-3, "betas": (0.9, 0.95), "weight_decay": 0.1}),
            "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
        }
        of, values = named[self.setting.optimizer]
        if self.setting.wrapper == "zero":
            from torch.distributed.optim import ZeroRedundancyOptimizer

            return ZeroRedundancyOptimizer(self.wrapped.parameters(), of, **values)
        return of(self.wrapped.parameters(), **values)

    @property
    def inner(self) -> torch.optim.Optimizer:
        """The one that has the state."""
        return getattr(self.optimizer, "optim", self.optimizer)

    def _at(self, point: str) -> None:
        for watcher in self.watchers:
            watcher(self, point)

    def save(self) -> dict:
        return {
            "weights": {name: local(p).detach().clone() for name, p in self.parameters.items()},
            "state": copy.deepcopy(self.inner.state_dict()),
            "data": self.data.get_state(),
            "step": self.step,
        }

    def load(self, saved: dict) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                local(parameter).copy_(saved["weights"][name])
        self.inner.load_state_dict(copy.deepcopy(saved["state"]))
        self.data.set_state(saved["data"])
        self.step = saved["step"]
        self.behave()
        self.optimizer.zero_grad()

    def batch(self) -> torch.Tensor:
        if self.is_stuck:
            return self.given
        drawn = self.common or self.data
        size = (self.batch_size,)
        starts = torch.randint(len(self.text) - CONTEXT - 1, size, generator=drawn)
        return torch.stack([self.text[start : start + CONTEXT + 1] for start in starts.tolist()])

    def take_step(self) -> float:
        """The loss of this rank's last micro step."""
        self.forgets_to_reduce = self.past_wrapper = self.loses_transfers = False
        self.loss_factor = 1.0
        self._at("weights")
        self.optimizer.zero_grad()
        for micro in range(self.setting.micros):
            is_last = micro == self.setting.micros - 1
            waits = self.setting.wrapper in ("ddp", "zero") and not is_last
            waits = waits or self.forgets_to_reduce
            self.given = self.batch()
            self._at("input")
            batch = self.given
            model = self.model if self.past_wrapper else self.wrapped
            with self.wrapped.no_sync() if waits else nullcontext():
                with torch.autocast("cpu", torch.bfloat16, enabled=self.setting.autocast):
                    scores = model(batch[:, :-1])
                    loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
                (self.loss_factor * loss / self.setting.micros).backward()
            self._at("micro")
        self._at("reduced")
        if self.setting.clip:
            nn.utils.clip_grad_norm_(self.wrapped.parameters(), self.setting.clip)
        self._at("moments")
        self.optimizer.step()
        self.step += 1
        return loss.item()
