"""From training to verdict: what GradProbe and PrecisionDebugger wrote, compared."""

import csv
import json
import os

import torch
from torch import nn

import trainmon
from trainmon.compat.msprobe import GradComparator
from trainmon.compat.msprobe.pytorch import PrecisionDebugger


def train(model, step_begins=lambda step: None, steps=10, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(3)
    for step in range(steps):
        data = torch.randn(8, 10, generator=generator)
        optimizer.zero_grad()
        model(data).square().mean().backward()
        step_begins(step)
        optimizer.step()


def linear_and_relu():
    torch.manual_seed(1)
    model = nn.Sequential()
    model.add_module("linear", nn.Linear(10, 5))
    model.add_module("relu", nn.ReLU())
    return model


def similarities(folder):
    with open(os.path.join(folder, "similarities.csv"), encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file))


def test_a_training_compared_with_itself(tmp_path):
    """The peer's own case: Linear(10, 5) and ReLU, SGD, ten steps at L1."""
    config = tmp_path / "config.json"
    block = {"grad_level": "L1", "param_list": [], "bounds": [-1, 0, 1]}
    fields = {"task": "grad_probe", "dump_path": str(tmp_path / "dump"), "rank": [], "step": []}
    config.write_text(json.dumps({**fields, "grad_probe": block}))
    model = linear_and_relu()
    debugger = PrecisionDebugger(str(config))
    debugger.monitor(model)
    train(model)
    debugger.stop()
    dump, out = str(tmp_path / "dump"), str(tmp_path / "out")
    GradComparator.compare_distributed(dump, dump, out)
    assert os.listdir(out) == ["rank0"]
    names = ["linear.weight", "linear.bias", "summary"]
    rows = [["step", *map(str, range(10))], *([name, *["1.0"] * 10] for name in names)]
    assert similarities(os.path.join(out, "rank0")) == rows


def test_a_gradient_of_the_other_sign_is_found(tmp_path):
    """One layer's gradient is turned round from step 4 on; the first run's signs are packed."""
    for name, signs, turned in (("a", "packed", False), ("b", "npy", True)):
        model = linear_and_relu()

        def turn(step, model=model, turned=turned):
            if turned and step >= 4:
                model.linear.bias.grad.neg_()

        with trainmon.GradProbe(model, out=tmp_path / name, signs=signs) as probe:
            train(model, turn)
        assert sum(probe.health()["sinks"][0]["rows_dropped"].values()) == 0
    found = trainmon.compare_directions(
        tmp_path / "a", tmp_path / "b", tmp_path / "out", pictures=False
    )
    assert found.first_bad_step == 4
    (rank,) = found.ranks
    assert [one.parameter for one in rank.suspicions if one.step == 4] == ["linear.bias"]
    weight, bias = rank.similarity
    assert (bias[:4] == 1).all() and (weight[:5] == 1).all() and bias[4] < 0.5


def test_rows_stay_in_the_models_order_whatever_the_names(tmp_path):
    """Names that cannot be a file's name as they are, in an order that is not the alphabet's."""
    torch.manual_seed(1)
    model = nn.Sequential()
    for name in ("z", "a/b", "m" * 250, "c"):
        model.add_module(name, nn.Linear(10, 10, bias=False))
    with trainmon.GradProbe(model, out=tmp_path / "dump"):
        train(model, steps=1)
    trainmon.compare_directions(
        tmp_path / "dump", tmp_path / "dump", tmp_path / "out", pictures=False
    )
    names = [row[0] for row in similarities(tmp_path / "out" / "rank0")[1:]]
    assert names[0] == "z.weight" and names[1] == "a%2Fb.weight"
    assert names[2].startswith("m" * 100) and names[3:] == ["c.weight", "summary"]
