"""Trainings of several processes without a wrapper, which reduce by hand or not at all: OUT/<name> is a run.

by_hand_run.py OUT NAME...: what goes wrong does so in step BEGIN, or from the start.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import launch
import trainmon

STEPS = 24
BEGIN = 12
TENSOR = "2.weight"
ALIKE = 8  # steps with one batch for all, where ranks train alike at first


class Training:
    """Ranks begin alike, have batches of their own and reduce each gradient to its mean."""

    def __init__(self, name: str):
        self.name, self.rank, self.ranks = name, dist.get_rank(), dist.get_world_size()
        self.seed = 3
        self.make()

    def make(self) -> None:
        torch.manual_seed(self.seed)
        self.model = nn.Sequential(
            nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 24), nn.LayerNorm(24), nn.Linear(24, 4)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.random = torch.Generator().manual_seed(self.rank)

    def batch(self, step: int) -> torch.Tensor:
        return torch.randn(16, 12, generator=self.random)

    def backward(self, step: int) -> None:
        x = self.batch(step)
        (self.model(x) - x[:, :4].sin()).square().mean().backward()

    def reduce(self, step: int) -> None:
        for name, parameter in self.model.named_parameters():
            self.reduce_one(step, name, parameter)

    def reduce_one(self, step: int, name: str, parameter: nn.Parameter) -> None:
        dist.all_reduce(parameter.grad)
        parameter.grad /= self.ranks

    def after(self, step: int) -> None:
        """Behind the optimizer's step."""

    def average(self) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                dist.all_reduce(parameter)
                parameter /= self.ranks

    def watch(self, out: Path):
        return trainmon.watch(self.model, self.optimizer, checks=True, every=1, out=out)

    def run(self, out: Path) -> None:
        with self.watch(out):
            for step in range(STEPS):
                self.optimizer.zero_grad()
                self.backward(step)
                self.reduce(step)
                self.optimizer.step()
                self.after(step)


class Forgets(Training):
    """One parameter, as in a list that somebody wrote; its name says from when on."""

    def reduce_one(self, step, name, parameter):
        if name != TENSOR or (self.name.endswith("from_12") and step < BEGIN):
            super().reduce_one(step, name, parameter)


class ForgetsABias(Training):
    """It is zero at first, and so it is everywhere."""

    def make(self):
        super().make()
        with torch.no_grad():
            self.model[2].bias.zero_()

    def reduce_one(self, step, name, parameter):
        if name != "2.bias":
            super().reduce_one(step, name, parameter)


class LeavesOut(Training):
    """Rank 1 uses its own gradient of one tensor in one step."""

    def reduce_one(self, step, name, parameter):
        own = parameter.grad.clone()
        super().reduce_one(step, name, parameter)
        if (step, name, self.rank) == (BEGIN, TENSOR, 1):
            parameter.grad.copy_(own)


class Undivided(Training):
    def reduce_one(self, step, name, parameter):
        dist.all_reduce(parameter.grad)
        if name != TENSOR or (self.name.endswith("from_12") and step < BEGIN):
            parameter.grad /= self.ranks


class RateOfARank(Training):
    def after(self, step):
        if step == BEGIN - 1 and self.rank == 1:
            self.optimizer.param_groups[0]["lr"] *= 0.9


class ReducedInHooks(Training):
    """Where gradients have accumulated: these come before those of trainmon."""

    def make(self):
        super().make()
        for parameter in self.model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))

    def reduce_one(self, step, name, parameter):
        parameter.grad /= self.ranks


class SharesBatches(Training):
    """Rank 1 begins to read what rank 0 does."""

    def batch(self, step):
        if step == BEGIN:
            self.random.manual_seed(99)
        return super().batch(step)


class Clipped(Training):
    def reduce(self, step):
        super().reduce(step)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)


class Sum(Training):
    def reduce_one(self, step, name, parameter):
        dist.all_reduce(parameter.grad)


class Accumulated(Training):
    def backward(self, step):
        for _ in range(3):
            super().backward(step)


class RateOfALayer(Training):
    """Gradients of one tensor are multiplied from a step on."""

    def reduce(self, step):
        super().reduce(step)
        if step >= BEGIN:
            self.model[4].weight.grad *= 3


class LocalSgd(Training):
    def reduce(self, step):
        pass

    def after(self, step):
        if step % 4 == 3:
            self.average()


class LocalSgdLater(Training):
    def reduce(self, step):
        if step < BEGIN:
            super().reduce(step)

    def after(self, step):
        if step >= BEGIN and step % 4 == 3:
            self.average()


class ReducedInTurn(Training):
    """A part of the model in each step, another one in the next."""

    def reduce_one(self, step, name, parameter):
        if step % 3 != int(name[0]) // 2:
            super().reduce_one(step, name, parameter)


class Own(Training):
    """A model of its own."""

    def make(self):
        self.seed = 3 + self.rank
        super().make()

    def reduce(self, step):
        pass


class OneSeed(Training):
    """One seed for all. Later each rank goes its own way: with other batches, or with another rate."""

    def batch(self, step):
        if step < ALIKE or self.name.endswith("rate"):
            return torch.randn(16, 12, generator=torch.Generator().manual_seed(step))
        return super().batch(step)

    def reduce(self, step):
        if self.name.endswith("rate") and step == ALIKE:
            self.optimizer.param_groups[0]["lr"] *= 1 + self.rank


class OneSeedAndAHead(OneSeed):
    """The body has one batch throughout, and is frozen but for a layer; the head learns a task of each rank."""

    def backward(self, step):
        x = super().batch(step if step < ALIKE else 0)
        hidden = self.model[:4](x)
        task = self.rank if step >= ALIKE else 0
        loss = (self.model[4](hidden.detach()) - (x[:, :4] + task).sin()).square().mean()
        (loss + hidden.square().mean()).backward()


class OwnHead(Training):
    """Of each rank from a step on, as in personalized federated learning."""

    def reduce_one(self, step, name, parameter):
        if not name.startswith("4.") or step < BEGIN:
            super().reduce_one(step, name, parameter)


class Experts(Training):
    """The layer in the middle is another one on each rank, and so is its gradient."""

    def make(self):
        super().make()
        torch.manual_seed(20 + self.rank)
        self.model[2].reset_parameters()
        with torch.no_grad():
            self.model[2].bias.zero_()

    def reduce_one(self, step, name, parameter):
        if not name.startswith("2."):
            super().reduce_one(step, name, parameter)


class Server(Training):
    """Rank 0 steps, and all take its weights."""

    def reduce(self, step):
        for parameter in self.model.parameters():
            dist.reduce(parameter.grad, 0)
            parameter.grad /= self.ranks

    def after(self, step):
        with torch.no_grad():
            for parameter in self.model.parameters():
                dist.broadcast(parameter, 0)


class Gan(Training):
    """Two models and their optimizers, reduced by hand; every second step is one of the generator."""

    def make(self):
        super().make()
        self.critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        self.second = torch.optim.Adam(self.critic.parameters(), lr=2e-3)

    def watch(self, out):
        models, optimizers = [self.model, self.critic], [self.optimizer, self.second]
        return trainmon.watch(models, optimizers, checks=True, every=1, out=out)

    def run(self, out):
        with self.watch(out):
            for step in range(STEPS):
                self.second.zero_grad()
                x = self.batch(step)
                fake = self.model(x)
                (self.critic(fake.detach()) - self.critic(x[:, :4])).mean().backward()
                for name, parameter in self.critic.named_parameters():
                    self.reduce_one(step, name, parameter)
                self.second.step()
                if step % 2:
                    self.optimizer.zero_grad()
                    (-self.critic(fake).mean()).backward()
                    self.reduce(step)
                    self.optimizer.step()


class TensorParallel(Training):
    """The layer in the middle is cut over ranks, drawn with one seed on all; norms and biases are whole."""

    def make(self):
        super().make()
        if self.name.endswith("seeds"):
            torch.manual_seed(20 + self.rank)
            self.model[2].reset_parameters()

    def backward(self, step):
        x = torch.randn(16, 12, generator=torch.Generator().manual_seed(step))
        hidden = self.model[:3](x) * (1.0 + self.rank)
        whole = hidden.detach().clone()
        dist.all_reduce(whole)
        hidden = hidden + (whole - hidden).detach()
        y = self.model[4](self.model[3](hidden))
        (y - x[:, :4].sin()).square().mean().backward()

    def reduce_one(self, step, name, parameter):
        if name.startswith("0."):
            super().reduce_one(step, name, parameter)


TRAININGS = {
    "by_hand": Training, "forgets": Forgets, "forgets_from_12": Forgets, "forgets_a_bias": ForgetsABias,
    "leaves_out": LeavesOut, "undivided": Undivided, "undivided_from_12": Undivided,
    "rate_of_a_rank": RateOfARank, "clipped": Clipped, "sum": Sum, "accumulated": Accumulated,
    "rate_of_a_layer": RateOfALayer, "local_sgd": LocalSgd, "local_sgd_later": LocalSgdLater,
    "reduced_in_turn": ReducedInTurn, "own": Own, "one_seed": OneSeed, "one_seed_rate": OneSeed,
    "one_seed_head": OneSeedAndAHead, "own_head": OwnHead, "experts": Experts, "server": Server, "gan": Gan,
    "tensor_parallel": TensorParallel, "tensor_parallel_seeds": TensorParallel,
    "reduced_in_hooks": ReducedInHooks, "shares_batches": SharesBatches,
}  # fmt: skip


def main() -> None:
    out, *names = sys.argv[1:]
    launch.join()
    for name in names:
        TRAININGS[name](name).run(Path(out) / name)
        dist.barrier()
    if dist.get_rank() == 0:
        (Path(out) / "done.json").write_text(json.dumps(names))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
