"""Trainings of two processes, each with one fault or one harmless oddity: OUT/<name> is a run.

diagnose_run.py OUT NAME...: a fault happens in step FAULT_AT, on rank 1 unless its name says more. With
the prefix "checked_" the run is recorded with checks=True.
"""

from __future__ import annotations

import copy
import json
import math
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import launch
import trainmon

STEPS = 24
FAULT_AT = 15
TENSOR = "2.weight"
CHECKED = "checked_"


def flip(tensor: torch.Tensor, bit: int) -> None:
    """Of the element with the largest size: a bit of it that tells."""
    place = int(tensor.abs().argmax())
    tensor.view(-1).view(torch.int32)[place] ^= 1 << bit


class Training:
    def __init__(self, name: str):
        self.name, self.checks = name.removeprefix(CHECKED), name.startswith(CHECKED)
        name = self.name
        self.rank = dist.get_rank()
        torch.manual_seed(3)
        layers = [
            torch.nn.Linear(12, 24),
            torch.nn.Tanh(),
            torch.nn.Linear(24, 24),
            # What a LayerNorm is given has a gradient that sums to zero.
            torch.nn.LayerNorm(24) if name == "zero_sum" else torch.nn.Tanh(),
        ]
        self.model = torch.nn.Sequential(*layers, torch.nn.Linear(24, 4))
        if name == "ignored_by_ddp":  # begins alike, and each rank trains its own
            left = ["4.weight", "4.bias"]
            with torch.no_grad():
                self.model[4].bias.zero_()
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self.model, left)
        if name == "head_outside_ddp":  # likewise
            body = DistributedDataParallel(self.model[:4])
            self.wrapped = torch.nn.Sequential(body, self.model[4])
        else:
            self.wrapped = DistributedDataParallel(self.model)
        self.parameter = self.model.get_parameter(TENSOR)
        if name.startswith("sgd"):
            self.optimizer = torch.optim.SGD(
                self.model.parameters(), lr=0.05, momentum=0.9 if "momentum" in name else 0.0,
                weight_decay=0.01,
            )  # fmt: skip
        else:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, betas=(0.9, 0.95))
        self.schedule = None
        if name == "warm_up_and_cosine":
            self.schedule = torch.optim.lr_scheduler.LambdaLR(
                self.optimizer,
                lambda s: min((s + 1) / 8, 0.5 + 0.5 * math.cos(math.pi * s / STEPS)),
            )
        if name == "step_schedule":
            self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 7, 0.1)
        # Before the reduction: hooks of autograd see what this backward computed.
        self.parameter.register_hook(lambda gradient: setattr(self, "last_local", gradient.clone()))
        self.random = torch.Generator().manual_seed(self.rank)

    def run(self, out: Path) -> None:
        kinds = ["activations"] if self.checks else ["grads", "weights", "moments"]
        self.watched = trainmon.watch(
            self.wrapped, self.optimizer, kinds=kinds, checks=self.checks, every=1, out=out
        )
        for step in range(STEPS):
            if step == FAULT_AT:
                self.before_step()
            if step == 5:
                self.saved = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))
            self.optimizer.zero_grad()
            micros = 3 if "accumulation" in self.name else 1
            for micro in range(micros):
                is_last = micro == micros - 1
                alone = "no_sync" in self.name and not is_last
                with self.wrapped.no_sync() if alone else nullcontext():
                    self.backward()
            if step == FAULT_AT:
                self.after_backward()
            if self.name == "doubled_in_every_step":
                for parameter in self.model.parameters():
                    parameter.grad.mul_(2)
            if self.name == "clipping_by_value":
                torch.nn.utils.clip_grad_value_(self.model.parameters(), 0.02)
            elif self.name == "clipped_in_groups":
                first, *others = (p for p in self.model.children() if list(p.parameters()))
                torch.nn.utils.clip_grad_norm_(first.parameters(), 0.031)
                torch.nn.utils.clip_grad_norm_(
                    [p for layer in others for p in layer.parameters()], 0.057
                )
            elif "clipping" in self.name:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
            self.optimizer.step()
            if self.schedule:
                self.schedule.step()
        self.watched.stop()

    def backward(self) -> None:
        x = torch.randn(16, 12, generator=self.random)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.name == "autocast"):
            y = self.wrapped(x)
        (y.float() - x[:, :4].sin()).square().mean().backward()

    def before_step(self) -> None:
        """Between two steps of the optimizer."""
        if self.name == "lr":
            self.optimizer.param_groups[0]["lr"] *= 10
        if self.name == "groups_that_move":
            moved = self.optimizer.param_groups[0]["params"][2:]
            del self.optimizer.param_groups[0]["params"][2:]
            self.optimizer.add_param_group({"params": moved, "lr": 1e-3, "betas": (0.8, 0.9)})
        if self.name == "second_moments_lost":
            for state in self.optimizer.state.values():
                state["exp_avg_sq"].zero_()
        if self.name == "checkpoint":
            with self.watched.edits("loads a checkpoint"):
                self.model.load_state_dict(self.saved[0])
                self.optimizer.load_state_dict(self.saved[1])
        if self.name == "loaded_state":  # told by the hooks of torch
            self.model.load_state_dict(self.saved[0])
            self.optimizer.load_state_dict(self.saved[1])
        if self.name == "announced_edit":
            with self.watched.edits("halves the weights"), torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.mul_(0.5)
        if self.rank != 1:
            return
        if self.name == "rate_of_a_rank":
            self.optimizer.param_groups[0]["lr"] *= 0.5
        with torch.no_grad():
            if self.name.startswith("weight_bit"):
                flip(self.parameter, int(self.name.rsplit("_", 1)[1]))
            if self.name == "average_of_a_rank":  # swapped in, and not swapped back
                for parameter in self.model.parameters():
                    parameter.mul_(0.99)
            if self.name == "first_moment":
                flip(self.optimizer.state[self.parameter]["exp_avg"], 23)

    def after_backward(self) -> None:
        """Between the reduction and the step."""
        gradient = self.parameter.grad
        if self.name == "lost":  # what all ranks lack is rank 1's part of the mean
            part = self.last_local / 2
            dist.broadcast(part, 1)
            gradient.sub_(part)
        if self.name == "all_doubled":
            for parameter in self.model.parameters():
                parameter.grad.mul_(2)
        if self.name == "zero_sum":
            gradient.mul_(1.5)
        if self.name == "cancelling":
            gradient.view(-1)[7] += 2.0**-6
            gradient.view(-1)[300] -= 2.0**-6
        if self.rank != 1:
            return
        if self.name == "gradient_bit_0":
            flip(gradient, 0)
        if self.name.startswith("dropped"):
            gradient.mul_(0.5)
        if self.name == "nan":
            gradient.view(-1)[3] = math.nan
        if self.name == "gradient_none":
            self.parameter.grad = None


def main() -> None:
    out = Path(sys.argv[1])
    launch.join()
    for name in sys.argv[2:]:
        Training(name).run(out / name)
        dist.barrier()
    if dist.get_rank() == 0:
        (out / "done.json").write_text(json.dumps(sys.argv[2:]))
    dist.destroy_process_group()


main()
