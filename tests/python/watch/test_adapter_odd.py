"""Odd programs that a newcomer broke the monitor with; each found fault stays here as a test."""

import math
import os

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

import trainmon
from adapter_rows import run_json
from trainmon.torch.steps.calls import step_in_state


def steps_of(run, kind="grad_reduced"):
    table = trainmon.read_table(run, kinds=[kind], stats=["norm"])
    return list(zip(table["step"].tolist(), table["attempt"].tolist(), strict=True))


def test_a_step_inside_a_step_is_one_step(tmp_path):
    class Subclass(SGD):
        def step(self, closure=None):
            return super().step(closure)

    SGD([nn.Parameter(torch.ones(1))], 0.1)  # torch then hooks the base class's step as well
    model = nn.Linear(2, 1, bias=False)
    optimizer = Subclass(model.parameters(), 0.1)
    with trainmon.watch(model, optimizer, out=tmp_path, kinds=["grad_reduced", "param_updated"]):
        for _ in range(3):
            model(torch.ones(2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert steps_of(tmp_path) == [(0, 0), (1, 0), (2, 0)]
    assert steps_of(tmp_path, "param_updated") == [(0, 0), (1, 0), (2, 0)]


def test_a_step_that_raised_is_an_attempt(tmp_path):
    class Fails(SGD):
        fail = True

        def step(self, closure=None):
            if self.fail:
                raise ArithmeticError
            return super().step(closure)

    SGD([nn.Parameter(torch.ones(1))], 0.1)
    model = nn.Linear(2, 1, bias=False)
    optimizer = Fails(model.parameters(), 0.1)
    with trainmon.watch(model, optimizer, out=tmp_path, kinds=["grad_reduced"]):
        model(torch.ones(2)).sum().backward()
        for _ in range(2):
            with pytest.raises(ArithmeticError):
                optimizer.step()
        optimizer.fail = False
        optimizer.step()
        optimizer.step()
    assert steps_of(tmp_path) == [(0, 0), (0, 1), (0, 2), (1, 0)]


class Hostile:
    def __float__(self):
        raise KeyError("hostile")


@pytest.mark.parametrize("value", [10**400, Hostile(), "x", None, torch.ones(2)])
def test_log_never_raises(tmp_path, value):
    model = nn.Linear(2, 1)
    with trainmon.watch(model, SGD(model.parameters(), 0.1), out=tmp_path) as monitor:
        monitor.log(bad=value, good=1.5)
        model(torch.ones(2)).sum().backward()
    scalars = trainmon.read_table(tmp_path).scalars
    assert list(scalars["name"]) == ["good"] and list(scalars["value"]) == [1.5]


def test_optimizer_in_backward_counts_steps_and_says_what_it_cannot_see(tmp_path):
    model = nn.Linear(2, 1, bias=False)
    optimizer = SGD(model.parameters(), 0.1)

    def step_now(parameter):
        optimizer.step()
        optimizer.zero_grad()

    model.weight.register_post_accumulate_grad_hook(step_now)
    kinds = ["grad_unreduced", "grad_reduced"]
    with trainmon.watch(model, optimizer, out=tmp_path, kinds=kinds) as monitor:
        for _ in range(3):
            model(torch.ones(2)).sum().backward()
        directory = monitor.directory
    assert steps_of(tmp_path) == [(0, 0), (1, 0), (2, 0)]
    text = next(iter(tmp_path.glob("rank_*/restart_*/run.json"))).read_text()
    assert directory == str(tmp_path) and "takes gradients away" in text


def test_lists_of_numbers_are_not_walked(tmp_path, monkeypatch):
    from trainmon.torch.modules import elements

    visited = 0
    collect = elements._collect

    def counting(*arguments):
        nonlocal visited
        visited += 1
        return collect(*arguments)

    monkeypatch.setattr(elements, "_collect", counting)
    tensor = torch.ones(1)
    numbers = [[[[0] * 30] * 30] * 30] * 30
    assert elements.of_output(numbers) == [] and visited < 3000
    assert elements.of_output([1, "x", {"y": tensor}]) == [("output.2.y", tensor)]
    assert elements.of_inputs((list(range(100_000)), tensor), {}) == [("input.1", tensor)]


def test_lazy_parameters_are_refused_by_name(tmp_path):
    model = nn.Sequential(nn.LazyLinear(4))
    with pytest.raises(TypeError, match=r"lazy parameter.*0\.weight"):
        trainmon.watch(model, SGD(nn.Linear(1, 1).parameters(), 0.1), out=tmp_path)


def test_a_model_on_meta_says_why_nothing_was_recorded(tmp_path, capfd):
    model = nn.Linear(2, 1, device="meta")
    optimizer = SGD(model.parameters(), 0.1)
    with trainmon.watch(model, optimizer, out=tmp_path):
        model(torch.ones(2, device="meta")).sum().backward()
        optimizer.step()
    assert "no tensor could be measured: meta" in capfd.readouterr().err


def test_names_that_are_not_text_cost_nothing(tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("\ud800", nn.Linear(2, 1))

        def forward(self, x):
            return {"\udfff": getattr(self, "\ud800")(x)}

    model = Odd()
    optimizer = SGD(model.parameters(), 0.1)
    with trainmon.watch(model, optimizer, out=tmp_path, kinds=["grads", "activations"]) as monitor:
        next(iter(model(torch.ones(2)).values())).sum().backward()
        optimizer.step()
        assert monitor.health()["parts_off"] == {}
    names = set(trainmon.read_table(tmp_path)["name"].tolist())
    assert any("ud800" in name for name in names)


def test_a_config_file_is_a_file_of_a_bounded_size(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_text(" " * 2**20 + "{}")
    cases = {"pipe": "is not a file", "large": "is larger than 1 MiB", ".": "is not a file"}
    for name, said in cases.items():
        with pytest.raises(trainmon.ConfigError, match=said):
            trainmon.watch(torch.nn.Linear(1, 1), config=tmp_path / name, out=tmp_path / "run")
    with pytest.raises(trainmon.ConfigError, match="is not a file"):
        trainmon.watch(torch.nn.Linear(1, 1), config="/dev/zero", out=tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        trainmon.watch(torch.nn.Linear(1, 1), config=tmp_path / "none", out=tmp_path / "run")


def test_a_tensor_without_data_is_refused_by_name(tmp_path):
    """A lazy zero of torch: it has elements and no memory."""
    zero = torch._efficientzerotensor((3,))
    with pytest.raises(TypeError, match="no_data"):
        trainmon.tensor_stats(zero)

    class Zero(torch.nn.Module):
        def forward(self, x):
            return torch._efficientzerotensor(x.shape)

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), Zero(), torch.nn.Linear(2, 1))
    monitor = trainmon.watch(model, kinds=["grads", "activations"], out=tmp_path / "run")
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        monitor.step()
    health = monitor.stop()
    assert health["refused"].get("no_data", 0) >= 2 and "observe" not in health["parts_off"]


def test_a_config_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b'\xef\xbb\xbf{"eps": 0.5}')
    model = nn.Linear(2, 1)
    out = tmp_path / "run"
    with trainmon.watch(model, SGD(model.parameters(), 0.1), config=path, out=out, every=1):
        model(torch.full((2,), 0.25)).sum().backward()
    assert np.all(trainmon.read_table(out, stats=["zeros"])["zeros"] >= 0)


class InLists(torch.optim.Optimizer):
    """Keeps what it has of a parameter in a list, which torch allows."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure=None):
        for weight in self.param_groups[0]["params"]:
            state = self.state.setdefault(weight, [torch.zeros_like(weight), 0])
            state[0].mul_(0.9).add_(weight.grad)
            state[1] += 1
            weight.sub_(state[0], alpha=0.01)


@pytest.mark.parametrize("checks", [False, True])
def test_a_state_without_names_is_said_and_costs_no_other_rows(tmp_path, checks, capfd):
    model = nn.Linear(3, 2)
    optimizer = InLists(model.parameters())
    kinds = ["grads", "weights", "moments"]
    options = {"kinds": kinds, "checks": checks, "every": 1}
    with trainmon.watch(model, optimizer, out=tmp_path, **options) as monitor:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(3)).sum().backward()
            optimizer.step()
    for kind in ("grad_reduced", "param_origin", "param_updated"):
        assert len(steps_of(tmp_path, kind)) == 8, kind
    assert "failed" not in capfd.readouterr().err
    said = run_json(monitor)["not_covered"]
    assert [why for what, why in said.items() if "moments" in what] == [
        "the optimizer keeps no such state under its parameters"
    ]


class OfItself(torch.nn.Linear):
    """`model.module.weight` holds with DDP and without."""

    @property
    def module(self):
        return self


def test_a_model_that_is_its_own_attribute_module(tmp_path):
    model = OfItself(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.watch(model, optimizer, out=tmp_path / "run"):
        model(torch.ones(8, 4)).sum().backward()
        optimizer.step()
    assert trainmon.read_table(tmp_path / "run").num_rows > 0
    assert trainmon.estimate(OfItself(4, 2), inputs=torch.ones(8, 4)).kinds


class Closed(torch.nn.Module):
    """What the model says of itself raises; training asks none of it."""

    module = device = config = property(lambda self: 1 / 0)

    def __init__(self, *sizes):
        super().__init__()
        self.layer = torch.nn.Linear(*sizes)

    def forward(self, values):
        return self.layer(values)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise KeyError(name) from None


class ClosedSGD(torch.optim.SGD):
    def __getattr__(self, name):
        raise (AttributeError if name in ("grad_scale", "found_inf") else KeyError)(name)


@pytest.mark.parametrize("checks", [False, True])
def test_what_properties_of_a_model_raise_is_none_of_ours(tmp_path, checks):
    model = torch.nn.Sequential(Closed(4, 4), Closed(4, 2))
    for watched in (model, model[1]):
        optimizer = ClosedSGD(watched.parameters(), lr=0.1)
        out = tmp_path / type(watched).__name__
        with trainmon.watch(watched, optimizer, out=out, kinds="all", checks=checks) as monitor:
            watched(torch.ones(8, 4)).sum().backward()
            optimizer.step()
        assert monitor.health()["parts_off"] == {}
        assert trainmon.read_table(out).num_rows > 0


def test_a_block_of_edits_may_be_entered_again(tmp_path, caplog):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.watch(model, optimizer, out=tmp_path, checks=True) as monitor:
        swap = monitor.edits("an\x1b[31m average\n" + "x" * 10**6)
        for step in range(6):
            model(torch.ones(8, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 2:
                with swap, torch.no_grad():
                    model.bias.add_(1)
    (said,) = (text for text in caplog.messages if "weights are edited" in text)
    assert said.isprintable() and len(said) < 300
    assert trainmon.diagnose(tmp_path)["findings"] == []


@pytest.mark.parametrize("step", [math.inf, math.nan, -5.0, 1e30, 2**80, torch.tensor(1j)])
def test_a_step_count_that_no_optimizer_has_counts_as_none(tmp_path, step):
    """As in a damaged checkpoint; torch trains on."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    for state in optimizer.state.values():
        state["step"] = torch.as_tensor(step) if not isinstance(step, int) else step
    with trainmon.watch(model, optimizer, out=tmp_path):
        model(torch.ones(8, 4)).sum().backward()
    assert step_in_state(optimizer) == 0
