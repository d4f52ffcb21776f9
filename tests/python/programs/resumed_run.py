"""Trainings of several processes that start again from checkpoints: OUT/<name> is a run of two starts.

resumed_run.py OUT NAME...: the last rank loads what its name says, the others what they saved last.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import launch
import trainmon

OLD, SAVED, STEPS = 10, 15, 10  # steps of the checkpoints, and of the second start
WITHOUT_DDP = "by_hand_"


class Training:
    def __init__(self, name: str):
        torch.manual_seed(3)
        self.model = nn.Sequential(
            nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 24), nn.Linear(24, 4)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.is_ddp = not name.startswith(WITHOUT_DDP)

    def state(self) -> tuple:
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def load(self, state: tuple) -> None:
        self.model.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])

    def run(self, out: Path, steps: range, watch_first=None) -> dict:
        kept = {}
        wrapped = DistributedDataParallel(self.model) if self.is_ddp else self.model
        random = torch.Generator().manual_seed(dist.get_rank() + 10 * steps.start)
        with trainmon.watch(wrapped, self.optimizer, checks=True, every=1, out=out):
            if watch_first:
                watch_first()
            for step in steps:
                self.optimizer.zero_grad()
                x = torch.randn(16, 12, generator=random)
                (wrapped(x) - x[:, :4].sin()).square().mean().backward()
                if not self.is_ddp:
                    for parameter in self.model.parameters():
                        dist.all_reduce(parameter.grad)
                        parameter.grad /= dist.get_world_size()
                self.optimizer.step()
                if step + 1 in (OLD, SAVED):
                    kept[step + 1] = self.state()
        return kept


def train(name: str, out: Path) -> None:
    kept = Training(name).run(out, range(SAVED + 3))
    is_last = dist.get_rank() == dist.get_world_size() - 1
    again = Training(name)
    name = name.removeprefix(WITHOUT_DDP)
    state = kept[SAVED]
    if is_last and name in ("older", "older_late"):
        state = kept[OLD]
    if is_last and name == "older_moments":  # of the newer step, as it says
        old = copy.deepcopy(kept[OLD][1])
        for of_old, of_new in zip(old["state"].values(), state[1]["state"].values(), strict=True):
            of_old["step"] = of_new["step"]
        state = state[0], old
    if is_last and name == "count_alone":
        state = copy.deepcopy(state)
        for one in state[1]["state"].values():
            one["step"] -= SAVED - OLD
    if is_last and name == "no_optimizer":
        again.model.load_state_dict(state[0])
        again.run(out, range(SAVED, SAVED + STEPS))
    elif name == "older_late":  # loaded when it is watched already
        again.run(out, range(SAVED, SAVED + STEPS), lambda: again.load(state))
    else:
        again.load(state)
        again.run(out, range(SAVED, SAVED + STEPS))


def main() -> None:
    out, *names = sys.argv[1:]
    launch.join()
    for name in names:
        train(name, Path(out) / name)
        dist.barrier()
    if dist.get_rank() == 0:
        (Path(out) / "done.json").write_text(json.dumps(names))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
