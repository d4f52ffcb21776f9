"""The check `update`: weights move by the step that the formula of their optimizer takes. The oracle of a step
is torch's own optimizer in float64, from the state before it."""

from __future__ import annotations

import copy
import inspect

import numpy as np
import pytest
import torch

import log_decoder
import trainmon
from test_checks import segment_of, sketch

optim = torch.optim
ALL = {
    "Adam": (optim.Adam, {}),
    "Adam, L2, foreach": (optim.Adam, {"weight_decay": 0.1, "foreach": True}),
    "Adam, amsgrad, maximize": (optim.Adam, {"amsgrad": True, "maximize": True}),
    "Adam, fused": (optim.Adam, {"fused": True}),
    "Adam, decoupled": (optim.Adam, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    "AdamW": (optim.AdamW, {"weight_decay": 0.1, "betas": (0.8, 0.95)}),
    "AdamW, amsgrad, foreach": (optim.AdamW, {"amsgrad": True, "foreach": True}),
    "SGD": (optim.SGD, {"weight_decay": 0.1}),
    "SGD, maximize, foreach": (optim.SGD, {"maximize": True, "foreach": True}),
    "SGD, momentum": (optim.SGD, {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}),
    "SGD, Nesterov": (optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "SGD, Nesterov, foreach": (optim.SGD, {"momentum": 0.9, "nesterov": True, "foreach": True}),
    "RMSprop": (optim.RMSprop, {}),
    "RMSprop, maximize, foreach": (optim.RMSprop, {"maximize": True, "foreach": True}),
    "RMSprop, momentum": (optim.RMSprop, {"momentum": 0.9, "centered": True, "weight_decay": 0.1}),
    "Adagrad": (optim.Adagrad, {"lr_decay": 0.01}),
    "Adagrad, foreach": (optim.Adagrad, {"foreach": True, "initial_accumulator_value": 0.1}),
    "NAdam": (optim.NAdam, {}),
    "NAdam, decoupled, foreach": (
        optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True, "foreach": True},
    ),
    "RAdam, L2": (optim.RAdam, {"weight_decay": 0.1}),
    "RAdam, decoupled, foreach": (
        optim.RAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True, "foreach": True},
    ),
}  # fmt: skip
# This torch may be older than an argument.
ALL = {
    name: (kind, values)
    for name, (kind, values) in ALL.items()
    if values.keys() <= inspect.signature(kind).parameters.keys()
}
DTYPES = [torch.float32, torch.bfloat16, torch.float64]


class Model(torch.nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(1)
        self.tokens = torch.nn.Embedding(50, 24)
        self.one = torch.nn.Linear(24, 33)
        self.norm = torch.nn.LayerNorm(33)
        self.two = torch.nn.Linear(33, 1)
        self.scale = torch.nn.Parameter(torch.tensor(0.0))
        self.to(dtype)

    def forward(self, tokens):
        x = self.norm(torch.tanh(self.one(self.tokens(tokens))))
        return (self.two(x).float() * (1 + self.scale.float())).pow(2).mean()


def batch(step: int):
    return torch.randint(50, (6, 5), generator=torch.Generator().manual_seed(step))


def by_number(optimizer) -> list:
    return [p for group in optimizer.param_groups for p in group["params"]]


def expected(kind, values, optimizer, stepping) -> list:
    """(step, size) of each parameter, by the same optimizer in float64; stepping() steps the one that
    trains. Rounding moves each element in proportion to its size: more than the step where the terms of
    exp_avg cancel."""
    wide = [p.detach().clone().double().requires_grad_() for p in by_number(optimizer)]
    twin = kind(wide, **{"lr": 0.01, **values, "foreach": False, "fused": None}
                if "fused" in inspect.signature(kind).parameters
                else {"lr": 0.01, **values, "foreach": False})  # fmt: skip
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for group in twin.param_groups:
        group["foreach"] = False
        if "fused" in group:
            group["fused"] = None
    for one, p in zip(wide, by_number(optimizer), strict=True):
        one.grad = p.grad.clone().double()
    before = [w.detach().clone() for w in wide]
    moments = [twin.state[w].get("exp_avg", torch.zeros_like(w)).detach().clone() for w in wide]
    twin.step()
    stepping()
    apart = kind is optim.AdamW or values.get("decoupled_weight_decay")
    decay = twin.param_groups[0].get("weight_decay", 0) if apart else 0
    steps = [(b * (1 - 0.01 * decay) - w.detach()) / 0.01 for b, w in zip(before, wide)]
    return [
        (u, u.abs() * cancelled(twin, w, b, m)) for u, w, b, m in zip(steps, wide, before, moments)
    ]


def cancelled(twin, w, before, moment):
    """By how much the terms of exp_avg are larger than it; 1 without one."""
    state, group = twin.state[w], twin.param_groups[0]
    if "exp_avg" not in state:
        return torch.ones_like(before)
    beta = group["betas"][0]
    gradient = w.grad.abs() + group["weight_decay"] * before.abs()
    terms = beta * moment.abs() + (1 - beta) * gradient
    return torch.where(terms > 0, terms / state["exp_avg"].abs().clamp(min=1e-300), 1.0)


def updates_in(path) -> dict:
    segment = log_decoder.decode(path.read_bytes())
    found = {}
    for one in segment.batches:
        checks = {check["seq"]: check for check in one.get("checks", [])}
        for row in one["rows"]:
            series = segment.series[row["series"]]
            if series["kind"] == "update":
                found[row["window"], series["name"]] = (series["element"], checks[row["seq"]])
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ALL)
def test_the_sketch_is_that_of_the_step_of_torch(name, dtype, tmp_path):
    kind, values = ALL[name]
    model = Model(dtype)
    optimizer = kind(model.parameters(), lr=0.01, **values)
    want = []
    with trainmon.watch(model, optimizer, checks=True, every=1, out=str(tmp_path)):
        for step in range(8):
            optimizer.zero_grad()
            model(batch(step)).backward()
            want.append(expected(kind, values, optimizer, optimizer.step))
    found = updates_in(segment_of(tmp_path))
    names = [name for name, _ in model.named_parameters()]
    assert len(found) == 8 * len(names)
    is_plain = kind is optim.SGD and values.get("nesterov")
    rounding = {torch.float32: 3e-6, torch.bfloat16: 0.1, torch.float64: 1e-9}[dtype]
    for step, steps in enumerate(want):
        for key, (u, size) in zip(names, steps, strict=True):
            element, check = found[step, key]
            assert element == f"{kind.__name__}.0"
            if is_plain:
                continue  # the row is the buffer's, the rest of the equation is in other rows
            u = u.numpy()
            if kind is optim.SGD and values.get("weight_decay") and not values.get("momentum"):
                continue  # likewise
            sums, _ = sketch(u)
            # By the length, for terms of NAdam cancel.
            off = np.linalg.norm(np.array(check["sketch"]) - sums)
            size = np.linalg.norm(size.numpy())
            limit = rounding * size + 2.0**-24 * np.linalg.norm(sums) + 1e-12
            assert off <= limit, (step, key)


def trained(out, kind, values, dtype=torch.float32, steps=120, at=None, **settings):
    """Two groups of different rates, a schedule with restarts, accumulation, clipping, a layer that is frozen
    for a while, a step that is left out, a state that is loaded again."""
    model = Model(dtype)
    decays = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decays}, {"params": others, "lr": 0.003}]
    if "weight_decay" in values:
        groups[1]["weight_decay"] = 0.0
    optimizer = kind(groups, lr=0.02, **values)
    schedule = optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 17)
    step_number = [0]
    if at is not None:
        at(model, optimizer, step_number)
    with trainmon.watch(model, optimizer, checks=True, every=1, out=str(out), **settings):
        for step in range(steps):
            step_number[0] = step
            model.one.weight.requires_grad_(not 30 <= step < 40)
            optimizer.zero_grad()
            for micro in range(2):
                model(batch(2 * step + micro)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            if step == 50:
                continue
            if step == 60:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            optimizer.step()
            schedule.step()
    return trainmon.diagnose(str(out))


@pytest.mark.parametrize("name", ALL)
def test_sound_steps_give_no_finding(name, tmp_path):
    kind, values = ALL[name]
    for dtype, steps in ((torch.float32, 300), (torch.bfloat16, 100), (torch.float64, 30)):
        out = tmp_path / str(dtype)
        answer = trained(out, kind, values, dtype, steps)
        assert answer["findings"] == [], (dtype, answer["findings"][:3])
        # All eight tensors but for the steps in which one is frozen and one step is left out.
        frozen, left_out = (10 if steps > 30 else 0), (1 if steps > 50 else 0)
        count = 8 * (steps - left_out) - frozen
        assert answer["evidence"]["update"] == {"sketches": count}, dtype
        assert not [one for one in answer["not_checked"] if one["check"] == "update"]


def adam_again(group, state, before, eps=None, correct=True):
    """What AdamW makes of a weight, in the arithmetic of torch."""
    step = state["step"].item()
    beta1, beta2 = group["betas"]
    first, second = (1 - beta1**step, 1 - beta2**step) if correct else (1.0, 1.0)
    divisor = (state["exp_avg_sq"].sqrt() / second**0.5).add_(eps or group["eps"])
    weight = before * (1 - group["lr"] * group["weight_decay"])
    return weight.addcdiv_(state["exp_avg"], divisor, value=-group["lr"] / first)


FAULTS = {
    "weight changed": lambda w, before, group, state: w.view(-1)[3:4].add_(1e-4),
    "rate applied twice": lambda w, before, group, state: w.add_(w - before),
    "update left out": lambda w, before, group, state: w.copy_(before),
    "decayed twice": lambda w, before, group, state: w.mul_(1 - group["lr"] * 0.1),
    "eps ten times as large": lambda w, before, group, state: w.copy_(
        adam_again(group, state, before, eps=10 * group["eps"])
    ),
    "bias not corrected": lambda w, before, group, state: w.copy_(
        adam_again(group, state, before, correct=False)
    ),
    "rate of the other group": lambda w, before, group, state: w.copy_(
        before + (w - before) * 0.15
    ),
    "nothing": lambda w, before, group, state: w.copy_(adam_again(group, state, before)),
}


def plant(fault, name):
    def at(model, optimizer, step_number):
        tensor = dict(model.named_parameters())[name]
        kept = []

        def before(*_):
            kept[:] = [tensor.detach().clone()]
            # Next to the step, before what watches it: as a fault of the step itself.
            optimizer._optimizer_step_post_hooks.move_to_end(planted.id, last=False)

        def after(*_):
            if step_number[0] == 7:
                group = next(
                    g for g in optimizer.param_groups if any(p is tensor for p in g["params"])
                )
                with torch.no_grad():
                    FAULTS[fault](tensor, kept[0], group, optimizer.state[tensor])

        optimizer.register_step_pre_hook(before)
        planted = optimizer.register_step_post_hook(after)

    return at


@pytest.mark.parametrize("name", ["tokens.weight", "two.weight", "norm.weight"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_inside_a_step_is_found_there(fault, name, tmp_path):
    values = {"weight_decay": 0.1, "eps": 1e-5}
    answer = trained(tmp_path, optim.AdamW, values, steps=12, at=plant(fault, name))
    if fault == "nothing" or (fault == "rate of the other group" and name == "norm.weight"):
        expected = [] if fault == "nothing" else [7]
        assert [one["step"] for one in answer["findings"]] == expected
        return
    assert answer["verdict"] is not None
    verdict = answer["verdict"]
    verdict = verdict if isinstance(verdict, dict) else answer["findings"][verdict]
    assert (verdict["check"], verdict["step"], verdict["tensors"]) == ("update", 7, [name])
    assert verdict["certain"] and verdict["evidence"] == "sketches"
    assert verdict["value"] > verdict["bound"] > 0
    assert len(answer["findings"]) == 1


@pytest.mark.parametrize("kind, values", [(optim.AdamW, {}), (optim.SGD, {"momentum": 0.9})])
def test_the_rate_of_another_group_is_none(kind, values, tmp_path, monkeypatch):
    """A weight that moves as the other group would have it moved."""
    step_of_torch, number = kind.step, [0]

    def swapping(self, closure=None):
        first, second = self.param_groups
        rates = first["lr"], second["lr"]
        if number[0] == 7:
            first["lr"], second["lr"] = reversed(rates)
        result = step_of_torch(self, closure)
        first["lr"], second["lr"] = rates
        return result

    def at(model, optimizer, step_number):
        nonlocal number
        number = step_number

    monkeypatch.setattr(kind, "step", swapping)
    answer = trained(tmp_path, kind, values, steps=12, at=at)
    assert answer["verdict"]["check"] == "update" and answer["verdict"]["step"] == 7


@pytest.mark.parametrize(
    "kind, values, name",
    [
        (optim.Adadelta, {}, "Adadelta"),
        (optim.Adamax, {}, "Adamax"),
        (optim.RMSprop, {"centered": True}, "RMSprop with centered"),
        (optim.RMSprop, {"weight_decay": 0.1}, "RMSprop with weight_decay"),
        (optim.NAdam, {"weight_decay": 0.1}, "NAdam with weight_decay"),
        (optim.Adagrad, {"weight_decay": 0.1}, "Adagrad with weight_decay"),
    ],
)
def test_what_has_no_formula_is_named(kind, values, name, tmp_path):
    answer = trained(tmp_path, kind, values, steps=12)
    whys = [one["why"] for one in answer["not_checked"] if one["check"] == "update"]
    assert any(why.startswith(f"{name}: ") for why in whys), whys
    assert answer["findings"] == []
    assert answer["evidence"]["gap"] == {"fingerprints": 11 * 8}


class Blending(optim.AdamW):
    """An AdamW with another formula: every so often, weights go back a part of their way."""

    @torch.no_grad()
    def step(self, closure=None):
        self.taken = getattr(self, "taken", 0) + 1
        before = [p.clone() for p in by_number(self)]
        result = super().step(closure)
        if self.taken % self.every == 0:
            for p, old in zip(by_number(self), before, strict=True):
                p.add_(old - p, alpha=0.3)
        return result


class Half(Blending):
    every = 1


class Lookahead(Blending):
    every = 5


class Named(optim.AdamW):
    """The formula of AdamW, though of another name."""


@pytest.mark.parametrize("kind", [Half, Lookahead])
def test_a_class_with_a_step_of_its_own_is_named(kind, tmp_path):
    answer = trained(tmp_path, kind, {}, steps=20)
    assert answer["findings"] == []
    whys = [one["why"] for one in answer["not_checked"] if one["check"] == "update"]
    assert whys == [f"{kind.__name__}: its formula is not known"]


def test_a_class_that_inherits_its_step_is_checked(tmp_path):
    answer = trained(tmp_path, Named, {}, steps=20)
    assert answer["evidence"]["update"] == {"sketches": 8 * 20}


def test_quotients_of_float16_are_not_checked(tmp_path):
    model = torch.nn.Linear(6, 4).half()
    for name, kind in (("adam", optim.Adam), ("sgd", optim.SGD)):
        optimizer = kind(model.parameters(), lr=1e-3, **({"eps": 1e-4} if name == "adam" else {}))
        with trainmon.watch(model, optimizer, checks=True, every=1, out=str(tmp_path / name)):
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.ones(2, 6).half()).float().sum().backward()
                optimizer.step()
    whys = [one["why"] for one in trainmon.diagnose(str(tmp_path / "adam"))["not_checked"]]
    assert any("divisor of float16" in why for why in whys)
    assert trainmon.diagnose(str(tmp_path / "sgd"))["evidence"]["update"] == {"sketches": 8}


@pytest.mark.parametrize("begins", [0, 12])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("how", ["OneCycleLR", "SWALR", "a key of the program"])
def test_keys_that_a_schedule_adds_to_the_groups_of_sgd(tmp_path, how, momentum, begins):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))
    nesterov = momentum > 0.0
    optimizer = optim.SGD(
        model.parameters(), 0.01, momentum=momentum, nesterov=nesterov, weight_decay=0.01
    )
    schedule = None
    with trainmon.watch(model, optimizer, checks=True, every=1, out=tmp_path):
        for step in range(30):
            if step == begins and how == "OneCycleLR":
                schedule = optim.lr_scheduler.OneCycleLR(
                    optimizer, 0.05, total_steps=31, cycle_momentum=nesterov
                )
            elif step == begins and how == "SWALR":
                schedule = optim.swa_utils.SWALR(optimizer, swa_lr=0.02)
            elif step == begins:
                optimizer.param_groups[0]["lr_scale"] = 1.0
            optimizer.zero_grad()
            model(torch.randn(24, 8)).square().mean().backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
    found = trainmon.diagnose(tmp_path)
    assert found["checked"]["update"] == 30 * 4
    assert [
        one for one in found["findings"] if one["check"] == "update" and "move" in one["text"]
    ] == []
    assert found["verdict"] is None
