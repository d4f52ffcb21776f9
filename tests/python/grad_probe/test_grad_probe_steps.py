# GradProbe: which gradients it looks at, when, and which it cannot read.
import math

import pytest
import torch
from torch import nn

import trainmon
import versions
from grad_probe_case import Still, assert_numbers, assert_signs, net, steps, summary, train

# --- which gradients -----------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [True, False])
def test_the_gradients_of_each_step(tmp_path, bound):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    given = (optimizer,) if bound else ()
    with trainmon.GradProbe(model, *given, out=tmp_path) as probe:
        seen = train(model, optimizer, 4, micro=3)  # accumulated
        assert probe.flush()
        assert steps(probe.directory) == [0, 1, 2, 3]
    for step, gradients_of_step in enumerate(seen):
        lines = summary(probe.directory, step)
        assert list(lines) == [name for name, _ in model.named_parameters()]
        for name, gradient in gradients_of_step.items():
            assert_numbers(lines[name], gradient)
            assert_signs(probe.directory, step, name, gradient, "packed")
    health = probe.health()
    assert health["rows_produced"] == 16 and health["sinks"][0]["rows_written"] == 16


@pytest.mark.parametrize("bound", [True, False])
def test_gradients_are_read_after_what_the_users_own_hooks_do(tmp_path, bound):
    """Whoever came first, from the first step on."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []

    def clip(*_):
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        seen.append(model[0].weight.grad.clone())

    with trainmon.GradProbe(model, *([optimizer] if bound else []), out=tmp_path) as probe:
        hook = optimizer.register_step_pre_hook(clip)
        train(model, optimizer, 2)
        hook.remove()
        optimizer.register_step_pre_hook(clip)
        train(model, optimizer, 1)
    for step, gradient in enumerate(seen):
        assert_numbers(summary(probe.directory, step)["0.weight"], gradient)
    assert steps(probe.directory) == [0, 1, 2]


def test_a_users_hook_may_call_step_itself(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = []

    def again(*_):
        calls.append(0)
        if len(calls) % 2:
            optimizer.step()

    with trainmon.GradProbe(model, optimizer, out=tmp_path) as probe:
        optimizer.register_step_pre_hook(again)
        train(model, optimizer, 2)
        assert len(calls) == 4 and probe.flush()
    assert steps(probe.directory) == [0, 1, 2, 3]


def test_steps_params_and_ranks_choose(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.GradProbe(model, out=tmp_path, steps=[1, 3], params=["2.bias", "0.weight"]) as p:
        train(model, optimizer, 5)
    assert steps(p.directory) == [1, 3]
    assert list(summary(p.directory, 3)) == ["0.weight", "2.bias"]
    # One process is rank 0, whichever ranks are asked for.
    with trainmon.GradProbe(model, out=tmp_path / "ranks", ranks=[5]) as p:
        train(model, optimizer, 1)
    assert steps(p.directory) == [0] and p.directory.endswith("rank0")


def test_parameters_without_a_gradient_have_no_line(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        train(model, optimizer, 1)
        model[0].weight.grad = None
        optimizer.step()
        optimizer.zero_grad()
        optimizer.step()
        train(model, optimizer, 1)
    assert "0.weight" not in summary(probe.directory, 1)
    assert steps(probe.directory) == [0, 1, 3]  # step 2 had no gradient at all


def test_main_grad_is_taken_before_grad(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[0].bias.main_grad = torch.full((5,), 7.0)
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        train(model, optimizer, 1)
    assert summary(probe.directory, 0)["0.bias"]["max"] == "7.0"


@versions.cpu_scaler
def test_a_step_that_the_scaler_skips_is_no_step(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    unscaled = []
    with trainmon.GradProbe(model, optimizer, out=tmp_path) as probe:
        for step in range(4):
            optimizer.zero_grad()
            loss = model(torch.randn(3, 6)).square().mean()
            scaler.scale(loss * (math.inf if step == 1 else 1.0)).backward()
            scaler.unscale_(optimizer)
            unscaled.append(model[0].weight.grad.clone())
            scaler.step(optimizer)
            scaler.update()
    assert steps(probe.directory) == [0, 1, 2]
    for step, gradient in enumerate([unscaled[0], unscaled[2], unscaled[3]]):
        assert_numbers(summary(probe.directory, step)["0.weight"], gradient)


def test_closures_are_looked_at_when_the_step_has_ended(tmp_path):
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    seen = []

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(3, 6)).square().mean()
        loss.backward()
        seen.append(model[0].weight.grad.clone())
        return loss

    with trainmon.GradProbe(model, out=tmp_path) as probe:
        left = []
        for _ in range(2):
            optimizer.step(closure)
            left.append(seen[-1])
        optimizer.step(closure=closure)
        left.append(seen[-1])
    assert steps(probe.directory) == [0, 1, 2] and len(seen) > 3
    for step, gradient in enumerate(left):
        assert_numbers(summary(probe.directory, step)["0.weight"], gradient)


def test_what_step_is_given_arrives_as_it_is(tmp_path):
    class OfModel(torch.optim.SGD):
        def step(self, model=None, *, hint=None):
            got.append((model, hint))
            return super().step()

    model, other, hint, got = net(), net(), str.upper, []
    mine, foreign = OfModel(model.parameters(), lr=0.1), OfModel(other.parameters(), lr=0.1)
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        for step in range(2):  # callables that nobody calls
            model.zero_grad()
            model(torch.randn(3, 6)).square().mean().backward()
            gradient = model[0].weight.grad.clone()
            foreign.step(other)
            mine.step(model, hint=hint)
            assert probe.flush()
            assert_numbers(summary(probe.directory, step)["0.weight"], gradient)
    assert steps(probe.directory) == [0, 1]
    for given_model, given_hint in got:
        assert given_model in (model, other) and given_hint in (None, hint)
    assert [place is model for place, _ in got] == [False, True, False, True]


@versions.cpu_fused
@pytest.mark.parametrize("bound", [True, False])
def test_a_fused_optimizer_under_the_scaler_is_seen_unscaled(tmp_path, bound):
    model, twin = net(), net()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    true = []
    given = (optimizer,) if bound else ()
    with trainmon.GradProbe(model, *given, out=tmp_path) as probe:
        for step in range(4):
            data = torch.randn(3, 6)
            twin.load_state_dict(model.state_dict())
            twin.zero_grad()
            twin(data).square().mean().backward()
            optimizer.zero_grad()
            infinite = math.inf if step == 1 else 1.0
            scaler.scale(model(data).square().mean() * infinite).backward()
            scaler.step(optimizer)
            scaler.update()
            if step != 1:
                true.append(twin[0].weight.grad.clone())
    assert steps(probe.directory) == [0, 1, 2]
    for step, gradient in enumerate(true):  # scales are powers of two
        assert_numbers(summary(probe.directory, step)["0.weight"], gradient)


def test_a_tied_parameter_has_any_of_its_names(tmp_path, caplog):
    model = nn.ModuleDict({"table": nn.Embedding(5, 3), "head": nn.Linear(3, 5)})
    model["head"].weight = model["table"].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.GradProbe(model, out=tmp_path, params=["head.weight"]) as probe:
        model["head"](model["table"](torch.tensor([1, 2]))).sum().backward()
        optimizer.step()
    assert list(summary(probe.directory, 0)) == ["table.weight"]
    assert "head.weight is table.weight" in caplog.text
    assert "has no parameter" not in caplog.text


def test_odd_gradients_are_counted_and_the_others_written(tmp_path, caplog):
    model = nn.ModuleDict({"table": nn.Embedding(8, 3, sparse=True), "head": nn.Linear(3, 2)})
    model.register_parameter("turn", nn.Parameter(torch.zeros(2, dtype=torch.complex64)))
    model.register_parameter("none", nn.Parameter(torch.zeros(2, device="meta")))
    optimizer = Still(model.parameters())
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        for _ in range(3):
            model.zero_grad()
            out = model["head"](model["table"](torch.tensor([1, 2, 1]))).sum()
            (out + model.turn.abs().sum()).backward()
            model.none.grad = torch.zeros(2, device="meta")
            optimizer.step()
    for step in range(3):
        assert list(summary(probe.directory, step)) == ["head.weight", "head.bias"]
    assert probe.health()["refused"] == {"sparse_coo": 3, "complex64": 3, "meta": 3}
    assert sum("sparse_coo" in record.message for record in caplog.records) == 1


def test_odd_main_grads_are_counted_and_the_others_written(tmp_path, caplog):
    class Property(nn.Parameter):
        @property
        def main_grad(self):
            raise RuntimeError("not yet")

    model = net()
    model[0].weight.main_grad = "later"
    model[0].bias.main_grad = 0
    model[2].bias = Property(torch.zeros(4))
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    assert [list(summary(probe.directory, step)) for step in (0, 1)] == [["2.weight"]] * 2
    assert probe.health()["refused"] == {"str": 2, "int": 2, "runtimeerror": 2}
    assert not probe.health()["parts_off"] and "gradient of 0.weight is not measured" in caplog.text
