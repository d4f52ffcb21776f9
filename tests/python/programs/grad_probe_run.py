# Trains under a gradient probe while the disk misbehaves as the first argument says; prints one line.
"""grad_probe_run.py FAULT OUT. Prints JSON: the health, the losses, and those of a bare run."""

import json
import os
import pathlib
import resource
import sys

import torch
from torch import nn

import trainmon

COUNT = 12


def train(out=None, fault=None):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(300, 40), nn.Tanh(), nn.Linear(40, 30))
    optimizer = torch.optim.AdamW(model.parameters())
    probe = trainmon.GradProbe(model, optimizer, out=out) if out else None
    losses = []
    for step in range(COUNT):
        if probe is not None and step in (4, 8):
            probe.flush()
            fault(step == 4, pathlib.Path(out))
        optimizer.zero_grad()
        loss = model(torch.randn(5, 300)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, probe.stop() if probe is not None else None


def too_large(on, out):
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000 if on else hard, hard))


def folder_replaced(on, out):
    rank, aside = out / "rank0", out / "aside"
    if on:
        rank.rename(aside)
        rank.write_text("")
    else:
        rank.unlink()
        aside.rename(rank)


def no_descriptors(on, out):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1 if on else hard, hard))


if __name__ == "__main__":
    fault, out = sys.argv[1], sys.argv[2]
    losses, health = train(os.path.abspath(out), globals()[fault])
    bare, _ = train()
    print(json.dumps({"losses": losses, "bare": bare, "health": health, "steps": COUNT}))
