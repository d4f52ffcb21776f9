# Optimizers around others, as users write them: SAM's two stages, Lookahead, ScheduleFree, several in one.
import copy
import json

import pytest
import torch
from torch import nn

import trainmon
from adapter_rows import assert_is, healthy, keys, row, rows, run_json


class TwoStages(torch.optim.Optimizer):
    """Goes up by `rho` along the gradient, and lets the base optimizer step with what it finds there."""

    def __init__(self, parameters, base, rho=0.05, **settings):
        super().__init__(parameters, {"rho": rho, **settings})
        self.base_optimizer = base(self.param_groups, **settings)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        self.before = {}
        for group in self.param_groups:
            for p in group["params"]:
                self.before[p] = p.clone()
                p.add_(p.grad, alpha=group["rho"])
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for p, value in self.before.items():
            p.copy_(value)
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        self.first_step(zero_grad=True)
        with torch.enable_grad():
            closure()
        self.second_step()


class Slow(torch.optim.Optimizer):
    """Pulls the weights back half of the way after every second step of the optimizer inside."""

    def __init__(self, inside):
        super().__init__(inside.param_groups, inside.defaults)
        self.inside, self.count = inside, 0
        self.slow = {p: p.detach().clone() for g in self.param_groups for p in g["params"]}

    @torch.no_grad()
    def step(self, closure=None):
        self.inside.step()
        self.count += 1
        if self.count % 2 == 0:
            for p, slow in self.slow.items():
                p.copy_(slow.lerp_(p, 0.5))


class Around:
    """No Optimizer itself, as ScheduleFree's: everything is another's."""

    def __init__(self, base):
        self.base = base

    @property
    def param_groups(self):
        return self.base.param_groups

    def zero_grad(self):
        self.base.zero_grad()

    def step(self):
        self.base.step()


class Several:
    def __init__(self, *optimizers):
        self.optimizers = list(optimizers)

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def loss_of(model, step):
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
    return model(x).pow(2).mean()


def sgd(parameters, **settings):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **settings)


KINDS = ["grad_reduced", "grad_unreduced", "param_updated", "moments", "actv"]


def two_stages(out, way):
    model = linear()
    weight = model[0].weight
    optimizer = TwoStages(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    monitor = out and trainmon.watch(model, optimizer, kinds=KINDS, out=out)
    seen = []
    for step in range(3):
        loss_of(model, step).backward()
        first = weight.grad.clone()

        def again(step=step):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            return loss

        if way == "stages":
            optimizer.first_step(zero_grad=True)
            loss_of(model, step).backward()
            second = weight.grad.clone()
            optimizer.second_step(zero_grad=True)
        else:
            optimizer.step(again)
            second = weight.grad.clone()
            optimizer.zero_grad()
        moment = optimizer.base_optimizer.state[weight]["momentum_buffer"].clone()
        seen.append((first, second, weight.detach().clone(), moment))
    if monitor:
        healthy(monitor)
    return seen, monitor


@pytest.mark.parametrize("way", ["stages", "closure"])
def test_both_stages_are_of_one_step(way, tmp_path, capfd):
    bare, _ = two_stages(None, way)
    seen, monitor = two_stages(tmp_path, way)
    for one, two in zip(bare, seen, strict=True):
        assert all(map(torch.equal, one, two))
    for step, (first, second, after, moment) in enumerate(seen):
        places = {"name": "0.weight", "step": step, "attempt": 0, "fate": "taken"}
        assert_is(row(tmp_path, kind="grad_reduced", **places), second)
        assert_is(row(tmp_path, kind="grad_unreduced", micro_step=0, **places), first)
        assert_is(row(tmp_path, kind="grad_unreduced", micro_step=1, **places), second)
        assert_is(row(tmp_path, kind="param_updated", **places), after)
        assert_is(row(tmp_path, kind="momentum_buffer", **places), moment)
    found = keys(tmp_path, "step", "attempt", "micro_step", kind="actv", name="0", element="output")
    assert found == [(step, 0, micro) for step in range(3) for micro in range(2)]
    assert "follows SGD inside TwoStages" in capfd.readouterr().err
    assert run_json(monitor)["notes"]["optimizers_inside"] == {"0": ["TwoStages", "SGD"]}


def test_gradients_that_reach_no_second_stage_are_another_attempt(tmp_path):
    model = linear()
    optimizer = TwoStages(model.parameters(), torch.optim.SGD, lr=0.1)
    with trainmon.watch(model, optimizer, kinds=["grads", "actv"], out=tmp_path) as monitor:
        for skipped in (False, True, False):
            loss_of(model, 0).backward()
            optimizer.first_step(zero_grad=True)
            loss_of(model, 0).backward()
            if skipped:
                optimizer.zero_grad()
            else:
                optimizer.second_step(zero_grad=True)
        healthy(monitor)
    assert keys(tmp_path, "step", "attempt", kind="grad_reduced", name="0.bias") == [(0, 0), (1, 1)]


def test_weights_are_read_when_the_outer_step_has_ended(tmp_path):
    model = linear()
    weight, inside = model[0].weight, sgd(model.parameters())
    inside = sgd(model.parameters())
    optimizer, seen = Slow(inside), []
    with trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path) as monitor:
        for step in range(4):
            loss_of(model, step).backward()
            gradient = weight.grad.clone()
            optimizer.step()
            optimizer.zero_grad()
            moment = inside.state[weight]["momentum_buffer"].clone()
            seen.append((gradient, weight.detach().clone(), moment))
        healthy(monitor)
    kinds = ("grad_reduced", "param_updated", "momentum_buffer")
    for step, values in enumerate(seen):
        for kind, value in zip(kinds, values, strict=True):
            assert_is(row(tmp_path, kind=kind, name="0.weight", step=step), value)


@pytest.mark.parametrize("wrapper, is_known", [(Slow, False), (TwoStages, True), (Around, True)])
def test_steps_of_wrappers_are_no_findings_of_checks(wrapper, is_known, tmp_path):
    model = linear()
    if wrapper is TwoStages:
        optimizer = TwoStages(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    else:
        optimizer = wrapper(sgd(model.parameters()))
    with trainmon.watch(model, optimizer, checks=True, out=tmp_path):
        for step in range(8):
            loss_of(model, step).backward()
            if wrapper is TwoStages:
                optimizer.first_step(zero_grad=True)
                loss_of(model, step).backward()
                optimizer.second_step(zero_grad=True)
            else:
                optimizer.step()
                optimizer.zero_grad()
    answer = trainmon.diagnose(tmp_path)
    # Two stages are given one batch, which is noticed.
    noticed = ["input"] if wrapper is TwoStages else []
    assert [one["check"] for one in answer["findings"] if not one["certain"]] == noticed
    assert answer["verdict"] is None
    assert answer["checked"]["gap"] == 7 * 4
    assert ("update" in answer["checked"]) == is_known
    whys = [one["why"] for one in answer["not_checked"] if one["check"] == "update"]
    assert any("Slow: its formula is not known" in why for why in whys) != is_known


def test_the_optimizer_given_may_be_the_inner_one(tmp_path):
    model = linear()
    inside = sgd(model.parameters())
    optimizer, seen = Slow(inside), []
    with trainmon.watch(model, inside, kinds=KINDS, out=tmp_path) as monitor:
        for step in range(4):
            loss_of(model, step).backward()
            seen.append(model[0].weight.grad.clone())
            optimizer.step()
            optimizer.zero_grad()
        healthy(monitor)
    for step, gradient in enumerate(seen):
        assert_is(row(tmp_path, kind="grad_reduced", name="0.weight", step=step), gradient)
    assert max(keys(tmp_path, "step"))[0] == 3


def test_an_attribute_of_any_name_is_found(tmp_path):
    model = linear()
    optimizer = Around(sgd(model.parameters()))
    with trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path) as monitor:
        loss_of(model, 0).backward()
        optimizer.step()
        healthy(monitor)
    assert len(rows(tmp_path, kind="momentum_buffer")) == 4


def test_several_inside_one(tmp_path):
    model = linear()
    optimizer = Several(sgd(model[0].parameters()), torch.optim.Adam(model[2].parameters()))
    with trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path) as monitor:
        for step in range(2):
            loss_of(model, step).backward()
            optimizer.step()
            model.zero_grad()
        healthy(monitor)
    assert set(keys(tmp_path, "name", kind="momentum_buffer")) == {("0.weight",), ("0.bias",)}
    assert set(keys(tmp_path, "name", kind="exp_avg")) == {("2.weight",), ("2.bias",)}
    assert set(keys(tmp_path, "step", kind="grad_reduced")) == {(0,), (1,)}


def test_an_object_without_an_optimizer_of_torch_is_refused_with_a_way_out(tmp_path):
    class Own:
        def step(self):
            pass

    with pytest.raises(TypeError, match=r"not Own: .*watch\(model\) .*step\(\)"):
        trainmon.watch(linear(), Own(), out=tmp_path)


def test_hooks_leave_outer_and_inner_as_they_were(tmp_path):
    model = linear()
    optimizer = Slow(sgd(model.parameters()))
    both = optimizer, optimizer.inside
    before = copy.deepcopy([one.state_dict() for one in both])
    trainmon.watch(model, optimizer, out=tmp_path).stop()
    assert all(not one._optimizer_step_pre_hooks for one in both)
    assert all(not one._optimizer_step_post_hooks for one in both)
    assert json.dumps(before, default=str) == json.dumps(
        [o.state_dict() for o in both], default=str
    )


class OwnTables(torch.optim.Optimizer):
    """As older ones around others: nothing of torch's own constructor, and plain dictionaries."""

    def __init__(self, inside):
        self.inside, self.param_groups, self.defaults = inside, inside.param_groups, {}
        self.state = {}
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = {}, {}

    def step(self, closure=None):
        return self.inside.step(closure)


def test_one_with_tables_that_take_no_hook_is_followed_inside(tmp_path, capfd):
    model = nn.Linear(3, 2)
    optimizer = OwnTables(torch.optim.SGD(model.parameters(), lr=0.1))
    with trainmon.watch(model, optimizer, out=tmp_path) as monitor:
        for _ in range(3):
            model(torch.ones(3)).sum().backward()
            optimizer.step()
            optimizer.inside.zero_grad()
    healthy(monitor)
    assert "follows SGD inside OwnTables" in capfd.readouterr().err
    assert len(rows(tmp_path)) == 6
