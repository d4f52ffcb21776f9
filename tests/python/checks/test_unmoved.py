"""Masters that a loop keeps by hand: `diagnose` names the weight that is not copied back, and says nothing of
weights that stay for good reasons."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import trainmon
from test_legitimate import Model, loss_of

STEPS = 40


class Loop:
    """A model in bfloat16, and an optimizer over its masters in float32."""

    dtype = torch.bfloat16
    rate = 1e-3

    def __init__(self, forgotten=None, begin=0, gives_masters=True):
        self.forgotten, self.begin, self.gives_masters = forgotten, begin, gives_masters
        self.model = self.make().to(self.dtype)
        self.masters = [
            p.detach().float().clone().requires_grad_() for p in self.model.parameters()
        ]
        self.optimizer = self.optimizer_of(self.masters)

    def optimizer_of(self, masters):
        return torch.optim.AdamW(masters, lr=self.rate, weight_decay=0.0)

    def make(self):
        return Model()

    def loss(self, step):
        return loss_of(self.model, step)

    def copies(self, step, name):
        return name != self.forgotten or step < self.begin

    def step(self, step):
        self.model.zero_grad()
        self.loss(step).backward()
        named = dict(self.model.named_parameters())
        for master, parameter in zip(self.masters, named.values(), strict=True):
            master.grad = parameter.grad.float()
        self.optimizer.step()
        with torch.no_grad():
            for master, (name, parameter) in zip(self.masters, named.items(), strict=True):
                if self.copies(step, name):
                    parameter.copy_(master)

    def run(self, out):
        optimizer = self.optimizer if self.gives_masters else None
        with trainmon.watch(self.model, optimizer, checks=True, every=1, out=str(out)) as monitor:
            for step in range(STEPS):
                self.step(step)
                if not self.gives_masters:
                    monitor.step()
        answer = trainmon.diagnose(str(out))
        assert answer["verdict"] is None, answer["verdict"]
        return [one for one in answer["findings"] if one["check"] == "update"]


class SlowRate(Loop):
    """The ones of a norm stay where they are for all of the steps, by rounding."""

    rate = 2e-5


class FallingRate(Loop):
    def step(self, step):
        self.optimizer.param_groups[0]["lr"] = 1e-3 * 0.1 ** (step // 10)
        super().step(step)


class BiasOfKeys(Loop):
    """Its gradient is nothing but rounding."""

    dtype = torch.float32

    def optimizer_of(self, masters):
        return torch.optim.SGD(masters, lr=1e-3)

    def make(self):
        torch.manual_seed(4)
        return nn.ModuleDict({name: nn.Linear(8, 8) for name in "qkv"})

    def loss(self, step):
        x = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(step))
        q, k, v = (self.model[name](x) for name in "qkv")
        return (torch.softmax(q @ k.transpose(1, 2), -1) @ v - x.sin()).square().mean()


class Probe(Loop):
    """The head alone is trained, and gradients of all are computed."""

    def copies(self, step, name):
        return name.startswith("head")


class RateOfZero(Loop):
    def step(self, step):
        self.optimizer.param_groups[0]["lr"] = 1e-3 if step < 10 or step >= 30 else 0.0
        super().step(step)


@pytest.mark.parametrize("gives_masters", [True, False])
@pytest.mark.parametrize("begin", [0, 15])
@pytest.mark.parametrize("name", ["body.0.weight", "head.bias"])
def test_a_weight_that_is_not_copied_back_is_noticed(name, begin, gives_masters, tmp_path):
    (one,) = Loop(name, begin, gives_masters).run(tmp_path)
    assert (one["tensors"], one["certain"]) == ([name], False)
    assert begin - 1 <= one["step"] <= begin + 1, one
    assert ("do not move any more" if begin else "did not move in the first 8 steps") in one["text"]


@pytest.mark.parametrize("kind", [Loop, SlowRate, FallingRate, BiasOfKeys, Probe, RateOfZero])
def test_weights_that_stay_for_good_reasons(kind, tmp_path):
    assert kind().run(tmp_path) == []


@pytest.mark.parametrize("begin", [0, 15])
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop])
def test_weights_in_no_group_of_the_optimizer_are_noticed(optimizer, begin, tmp_path):
    model = Model()
    stepped = optimizer(model.head.parameters(), lr=1e-2)
    model.tokens.requires_grad_(False)
    model.body.requires_grad_(False)
    with trainmon.watch(model, stepped, checks=True, every=1, out=str(tmp_path)):
        for step in range(STEPS):
            if step == begin:
                model.body.requires_grad_(True)
            model.zero_grad()
            loss_of(model, step).backward()
            stepped.step()
    (one,) = trainmon.diagnose(str(tmp_path))["findings"]
    names = {f"body.{name}" for name, _ in model.body.named_parameters()}
    assert (set(one["tensors"]), one["step"], one["certain"]) == (names, begin, False)
    assert "in no group of the optimizer" in one["text"]
