"""Weights that a program clamps after each step, without a word: noticed once, and what is damaged beside them is
still certain."""

import math

import pytest
import torch
from torch import nn

import trainmon


class Scaled(nn.Module):
    """A temperature, as contrastive models have it, and two layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.one, self.two = nn.Linear(12, 48), nn.Linear(48, 1)
        self.scale = nn.Parameter(torch.tensor(4.55))

    def forward(self, x):
        return self.two(torch.tanh(self.one(x))) * self.scale


def clamped(low, high):
    def after(model):
        for weight in (*model.one.parameters(), *model.two.parameters()):
            weight.clamp_(low, high)

    return after


PROGRAMS = {
    "critic": clamped(-0.2, 0.2),
    "wide": clamped(-0.35, 0.35),
    "not negative": clamped(0.0, None),
    "odd limit": clamped(-0.123456, 0.123456),
    "temperature": lambda model: model.scale.clamp_(0, math.log(100)),
}


def trained(out, after, dtype=torch.float32, damage=None, steps=80):
    model = Scaled().to(dtype)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
    with trainmon.watch(model, optimizer, checks=True, every=1, out=str(out)):
        for step in range(steps):
            optimizer.zero_grad()
            x = torch.randn(32, 12, generator=torch.Generator().manual_seed(step)).to(dtype)
            (model(x).float() - 9.0 * x[:, :1].float()).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                after(model)
                if damage is not None and step == 60:
                    damage(model)
    return trainmon.diagnose(str(out)), model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_limit_is_no_fault(name, dtype, tmp_path):
    answer, _ = trained(tmp_path, PROGRAMS[name], dtype)
    assert answer["verdict"] is None, answer["findings"][:2]
    changed = [one for one in answer["findings"] if one["check"] == "gap"]
    named = [name for one in changed for name in one["tensors"]]
    assert named and len(named) == len(set(named))


def flipped(model):
    bits = model.two.weight.view(torch.int32)
    bits[0, 5] ^= 1 << 20


def shrunk(model):
    """The largest elements get smaller, to no limit."""
    model.one.weight.mul_(0.987)


@pytest.mark.parametrize("damage", [flipped, shrunk])
@pytest.mark.parametrize("name", ["wide", "temperature"])
def test_damage_beside_it_is_certain(name, damage, tmp_path):
    answer, _ = trained(tmp_path, PROGRAMS[name], damage=damage)
    verdict = answer["verdict"]
    tensor = "two.weight" if damage is flipped else "one.weight"
    assert (verdict["check"], verdict["step"], verdict["tensors"]) == ("gap", 61, [tensor])


def test_weights_that_are_pruned_are_noticed(tmp_path):
    """By masks, in the middle of a run; biases are not."""
    masks, step = {}, [0]

    def after(model):
        step[0] += 1
        if step[0] == 40:
            for weight in (model.one.weight, model.two.weight):
                masks[weight] = (weight.abs() > weight.abs().median()).float()
        for weight, mask in masks.items():
            weight.mul_(mask)

    answer, _ = trained(tmp_path, after, steps=60)
    assert answer["verdict"] is None, answer["verdict"]
    found = [one for one in answer["findings"] if one["check"] == "gap"]
    assert {name for one in found for name in one["tensors"]} == {"one.weight", "two.weight"}
    assert all("set to 0 at once" in one["text"] and one["step"] == 40 for one in found)


def test_one_weight_that_loses_elements_is_certain(tmp_path):
    def emptied(model):
        model.one.weight[3].zero_()

    answer, _ = trained(tmp_path, lambda model: None, damage=emptied)
    verdict = answer["verdict"]
    assert (verdict["check"], verdict["step"], verdict["tensors"]) == ("gap", 61, ["one.weight"])


def test_a_clamp_that_is_lost_is_noticed(tmp_path):
    step = [0]

    def after(model):
        if step[0] < 90:
            PROGRAMS["critic"](model)
        step[0] += 1

    answer, _ = trained(tmp_path, after, steps=120)
    assert answer["verdict"] is None
    last = answer["findings"][-1]
    assert (last["check"], last["certain"]) == ("gap", False) and last["step"] in range(91, 96)
    assert last["text"] == "the weights go beyond a limit that a program set them to before"


def test_a_forward_with_a_gradient_more_is_noticed(tmp_path):
    """A target that is computed without no_grad()."""
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with trainmon.watch(model, optimizer, checks=True, every=1, out=str(tmp_path)):
        for step in range(60):
            x = torch.randn(32, 12, generator=torch.Generator().manual_seed(step))
            with torch.set_grad_enabled(step >= 40):
                target = model(x + 1.0)
            (model(x) - target).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    found = trainmon.diagnose(str(tmp_path))["findings"]
    (one,) = [one for one in found if one["check"] == "input"]
    assert (one["step"], one["certain"]) == (40, False)
    said = "before a backward the model makes 2 forwards from here on, and made 1 forward before"
    assert one["text"] == said
