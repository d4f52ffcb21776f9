# GradProbe: which gradients of which optimizers it looks at, and how it counts their steps.
import math

import pytest
import torch
from torch import nn

import trainmon
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


def test_each_parameter_at_the_steps_of_its_own_optimizer(tmp_path):
    model = net()
    one = torch.optim.SGD(model[0].parameters(), lr=0.1)
    two = torch.optim.SGD(model[2].parameters(), lr=0.1)
    torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        values = {"0.weight": [], "2.weight": []}
        for step in range(6):
            model.zero_grad()
            model(torch.randn(3, 6)).square().mean().backward()
            values["0.weight"].append(model[0].weight.grad.clone())
            one.step()
            if step % 3 == 0:  # a third as often
                values["2.weight"].append(model[2].weight.grad.clone())
                two.step()
    assert steps(probe.directory) == list(range(6))
    for name, seen in values.items():
        for step, gradient in enumerate(seen):
            assert_numbers(summary(probe.directory, step)[name], gradient)
            assert_signs(probe.directory, step, name, gradient, "packed")
    assert "2.weight" not in summary(probe.directory, 2)
    assert probe.health()["sinks"][0]["rows_written"] == 6 * 2 + 2 * 2


def test_a_given_optimizer_has_its_own_parameters_only(tmp_path):
    model = net()
    one = torch.optim.SGD(model[0].parameters(), lr=0.1)
    two = torch.optim.SGD(model[2].parameters(), lr=0.1)
    with trainmon.GradProbe(model, two, out=tmp_path) as probe:
        for _ in range(2):
            train(model, one, 1)
            two.step()
    assert steps(probe.directory) == [0, 1]
    assert list(summary(probe.directory, 0)) == ["2.weight", "2.bias"]


def test_what_no_optimizer_has_follows_the_first(tmp_path):
    model = net()
    one = torch.optim.SGD([model[0].weight], lr=0.1)
    two = torch.optim.SGD([model[2].weight], lr=0.1)
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        for _ in range(2):
            train(model, one, 1)
            two.step()
    names = ["0.weight", "0.bias", "2.bias", "2.weight"]  # the biases with the first
    assert [list(summary(probe.directory, step)) for step in (0, 1)] == [names, names]


def test_an_optimizer_made_anew_goes_on_with_the_steps(tmp_path):
    model = net()
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
        seen = train(model, torch.optim.AdamW(model.parameters()), 2, first=2)
    assert steps(probe.directory) == [0, 1, 2, 3]
    assert_numbers(summary(probe.directory, 3)["0.bias"], seen[1]["0.bias"])


def test_other_models_do_not_count(tmp_path):
    model, other = net(), net()
    mine = torch.optim.SGD(model.parameters(), lr=0.1)
    foreign = torch.optim.SGD(other.parameters(), lr=0.1)
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        for _ in range(2):
            train(other, foreign, 2)
            train(model, mine, 1)
    assert steps(probe.directory) == [0, 1]


def test_an_optimizer_of_copies_counts(tmp_path):
    model = net().to(torch.bfloat16)
    copies = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(copies, lr=0.1)
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        for _ in range(3):
            model.zero_grad()
            model(torch.randn(3, 6, dtype=torch.bfloat16)).square().mean().backward()
            for copy_, parameter in zip(copies, model.parameters()):
                copy_.grad = parameter.grad.float()
            optimizer.step()
    assert steps(probe.directory) == [0, 1, 2]


def test_closures_are_looked_at_when_they_have_run(tmp_path):
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    first = []

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(3, 6)).square().mean()
        loss.backward()
        first.append(model[0].weight.grad.clone())
        return loss

    with trainmon.GradProbe(model, out=tmp_path) as probe:
        begins = []
        for _ in range(2):
            begins.append(len(first))
            optimizer.step(closure)
        begins.append(len(first))
        optimizer.step(closure=closure)
    assert steps(probe.directory) == [0, 1, 2] and len(first) > 3
    for step, place in enumerate(begins):
        assert_numbers(summary(probe.directory, step)["0.weight"], first[place])


def test_a_step_inside_a_step_is_one(tmp_path):
    class Twice(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    model = net()
    optimizer = Twice(model.parameters(), lr=0.1)
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        train(model, optimizer, 3)
    assert steps(probe.directory) == [0, 1, 2]


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
