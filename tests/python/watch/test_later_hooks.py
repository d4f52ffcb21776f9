"""Step pre-hooks that come in while a training runs: rows are of what the step itself begins with."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import trainmon

STEPS, AT = 20, 10


def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


class Scales(torch.optim.Optimizer):
    """One of the user's own whose step changes gradients in place."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"])
                p.grad.mul_(7.0)


def train(out, make, hook, closure=False):
    """Norms of the first weight and of its gradient, as each step begins with them."""
    model = linear()
    optimizer = make(model.parameters())
    monitor = trainmon.watch(model, optimizer, out=str(out), checks=True, every=1)
    weight, seen = model[0].weight, []
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        if step == AT:
            optimizer.register_step_pre_hook(hook)
        x = torch.randn(5, 6, generator=generator)

        def loss_of(x=x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        if closure:
            optimizer.step(loss_of)
        else:
            loss_of()
            before = weight.detach().clone()
            gradient = weight.grad.norm().item()
            optimizer.step()
            factor = 0.5 if step >= AT and hook is halve else 1.0
            seen.append(((before * factor).norm().item(), gradient))
    monitor.stop()
    return seen


def halve(optimizer, args, kwargs):
    with torch.no_grad():
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.mul_(0.5)


def nothing(optimizer, args, kwargs):
    pass


def norms(run, kind):
    rows = trainmon.read(str(run), kinds=[kind])
    return rows[rows.name == "0.weight"].sort_values("step").norm.tolist()


@pytest.mark.parametrize("hook", [nothing, halve])
@pytest.mark.parametrize("make", [Scales, torch.optim.SGD, torch.optim.AdamW])
def test_rows_are_of_what_the_step_begins_with(tmp_path, make, hook):
    seen = train(tmp_path / "run", make, hook)
    weights, gradients = zip(*seen, strict=True)
    assert norms(tmp_path / "run", "grad_reduced") == pytest.approx(gradients, rel=1e-6)
    assert norms(tmp_path / "run", "param_origin") == pytest.approx(weights, rel=1e-6)
    found = trainmon.diagnose(str(tmp_path / "run"))
    assert found["verdict"] is None, found["verdict"]


def test_a_hook_that_edits_weights_before_a_closure_runs(tmp_path):
    train(tmp_path / "run", torch.optim.AdamW, halve, closure=True)
    assert len(norms(tmp_path / "run", "param_origin")) == STEPS
    found = trainmon.diagnose(str(tmp_path / "run"))
    assert found["verdict"] is None, found["verdict"]


def test_what_a_later_hook_raises_reaches_the_loop_and_its_place_stays(tmp_path):
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tries = []

    def raises(*given):
        tries.append(given)
        if len(tries) == 1:
            raise OSError("no disk")
        return None

    with trainmon.watch(model, optimizer, out=str(tmp_path / "run"), every=1):
        handle = optimizer.register_step_pre_hook(raises)
        model(torch.ones(2, 6)).sum().backward()
        with pytest.raises(OSError, match="no disk"):
            optimizer.step()
        assert optimizer._optimizer_step_pre_hooks[handle.id] is raises
        optimizer.step()
        assert optimizer._optimizer_step_pre_hooks[handle.id] is raises
        optimizer.zero_grad()
    assert list(optimizer._optimizer_step_pre_hooks.values()) == [raises]
    assert len(norms(tmp_path / "run", "grad_reduced")) == 1


def test_a_hook_on_an_optimizer_that_steps_no_more_costs_no_rows(tmp_path):
    model = linear()
    first = torch.optim.AdamW(model.parameters(), lr=1e-2)
    second = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with trainmon.watch(model, first, out=str(tmp_path / "run"), checks=True, every=1):
        for step in range(12):
            optimizer = first if step < 4 else second
            if step == 7:
                handle = first.register_step_pre_hook(nothing)
            model(torch.full((2, 6), 0.1 + step)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert first._optimizer_step_pre_hooks[handle.id] is nothing
    assert len(norms(tmp_path / "run", "grad_reduced")) == 12
    assert len(norms(tmp_path / "run", "param_origin")) == 12


class MayLeaveOut(torch.optim.Optimizer):
    """It calls the step of another one, but in each third step."""

    def __init__(self, optimizer):
        self.optimizer, self.calls = optimizer, 0
        super().__init__(optimizer.param_groups, {})
        self.param_groups, self.state = optimizer.param_groups, optimizer.state

    def step(self, closure=None):
        self.calls += 1
        if self.calls % 3:
            self.optimizer.step()


def test_a_later_hook_of_an_inner_optimizer_whose_step_is_left_out_stays_as_it_is(tmp_path):
    model = linear()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = MayLeaveOut(inner)
    with trainmon.watch(model, outer, out=str(tmp_path / "run"), every=1):
        for step in range(9):
            if step == 2:  # the inner one does not step
                handle = inner.register_step_pre_hook(nothing)
            model(torch.full((2, 6), 0.1 + step)).square().sum().backward()
            outer.step()
            outer.zero_grad()
            if step >= 2:
                assert inner._optimizer_step_pre_hooks[handle.id] is nothing
    rows = trainmon.read(str(tmp_path / "run"), kinds=["grad_reduced"])
    steps = rows[rows.name == "0.weight"].step
    assert steps.is_unique and set(range(9)) - {2} <= set(steps)
