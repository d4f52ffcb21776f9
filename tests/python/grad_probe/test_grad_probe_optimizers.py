# GradProbe: which optimizer a parameter steps with, whichever there are, and each step of it once.
import gc

import pytest
import torch
from torch import nn

import launch
import trainmon
from grad_probe_case import assert_numbers, assert_signs, net, steps, summary, train


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


def test_a_step_inside_a_step_is_one(tmp_path):
    class Twice(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    model = net()
    optimizer = Twice(model.parameters(), lr=0.1)
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        train(model, optimizer, 3)
    assert steps(probe.directory) == [0, 1, 2]


@pytest.mark.parametrize("which", ["found", "outer", "both", "inner", "twice"])
def test_a_step_inside_that_of_another_optimizer_is_one(tmp_path, which):
    class Around(torch.optim.Optimizer):
        def __init__(self, inner):
            self.inner = inner
            super().__init__(inner.param_groups, {})

        def step(self, closure=None):
            return self.inner.step(closure)

    model = net()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = Around(inner)
    given = {"found": None, "outer": outer, "both": [inner, outer], "inner": inner}
    given["twice"] = [outer, outer]
    with trainmon.GradProbe(model, given[which], out=tmp_path) as probe:
        seen = train(model, outer, 3)
    assert steps(probe.directory) == [0, 1, 2] and probe.health()["rows_produced"] == 12
    for step, gradients in enumerate(seen):
        assert_numbers(summary(probe.directory, step)["2.weight"], gradients["2.weight"])


def test_a_step_inside_has_what_the_outer_one_leaves_and_may_raise(tmp_path):
    class Around(torch.optim.SGD):
        def step(self, closure=None):
            try:
                self.inner.step(fail=True)
            except RuntimeError:
                self.inner.step()
            return super().step(closure)

    class Inner(torch.optim.SGD):
        def step(self, closure=None, fail=False):
            if fail:
                raise RuntimeError("once")
            return super().step(closure)

    model = net()
    outer = Around(model[0].parameters(), lr=0.1)
    outer.inner = Inner(model[2].parameters(), lr=0.1)
    with trainmon.GradProbe(model, outer, out=tmp_path / "one") as one:
        with trainmon.GradProbe(model, out=tmp_path / "all") as both:
            train(model, outer, 2)
    assert steps(one.directory) == [0, 1]
    assert list(summary(one.directory, 1)) == ["0.weight", "0.bias"]
    # The one that raised is one that was tried: its gradients had been seen.
    assert [sorted(summary(both.directory, step)) for step in range(4)] == [
        ["0.bias", "0.weight", "2.bias", "2.weight"],
        ["0.bias", "0.weight", "2.bias", "2.weight"],
        ["2.bias", "2.weight"],
        ["2.bias", "2.weight"],
    ]


def test_zero_redundancy_steps_are_counted_once(tmp_path):
    launch.run("grad_probe_zero_run.py", tmp_path, ranks=2, timeout=180)
    for rank in (0, 1):
        assert steps(tmp_path / f"rank{rank}") == [0, 1, 2]
        for step in range(3):
            assert len(summary(tmp_path / f"rank{rank}", step)) == 4


def test_optimizers_that_are_half_made_are_no_bother(tmp_path):
    class Bare(torch.optim.Optimizer):
        def __init__(self):
            pass

    model = net()
    bare = Bare()
    with pytest.raises(ValueError) as kept:
        torch.optim.SGD(model.parameters(), lr=-1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        train(model, optimizer, 2)
    assert steps(probe.directory) == [0, 1] and not probe.health()["parts_off"]
    assert bare is not None and kept.tb is not None


@pytest.mark.parametrize("how", ["made_late", "frozen", "foreign_first"])
def test_optimizers_that_are_not_known_at_first(tmp_path, how, caplog):
    model, other = net(), net()
    one = torch.optim.SGD(model[0].parameters(), lr=0.1)
    two = torch.optim.SGD(model[2].parameters(), lr=0.1) if how == "frozen" else None
    probe = trainmon.GradProbe(model, out=tmp_path)
    if how == "frozen":
        gc.freeze()
    if how == "foreign_first":
        train(other, torch.optim.SGD(other.parameters(), lr=0.1), 1)
    seen = []
    try:
        for step in range(5):
            model.zero_grad()
            model(torch.randn(3, 6)).square().mean().backward()
            seen.append({n: p.grad.clone() for n, p in model.named_parameters()})
            if step == 2 and two is None:
                two = torch.optim.SGD(model[2].parameters(), lr=0.1)
            one.step()
            if two is not None:
                two.step()
    finally:
        gc.unfreeze()
    probe.stop()
    # Each gradient once, whoever steps with it.
    assert steps(probe.directory) == [0, 1, 2, 3, 4]
    for step, gradients in enumerate(seen):
        lines = summary(probe.directory, step)
        assert sorted(lines) == sorted(gradients)
        for name, gradient in gradients.items():
            assert_numbers(lines[name], gradient)
    assert "no known optimizer had 2.weight until now" in caplog.text


def test_what_nobody_has_does_not_follow_a_foreign_optimizer(tmp_path):
    model, other = net(), net()
    foreign = torch.optim.SGD(other.parameters(), lr=0.1)
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        train(other, foreign, 1)
        mine = torch.optim.SGD(model[0].parameters(), lr=0.1)
        for _ in range(3):
            train(model, mine, 1)
            train(other, foreign, 2)
    assert steps(probe.directory) == [0, 1, 2]
    assert len(summary(probe.directory, 2)) == 4


def test_one_optimizer_per_parameter_walks_the_model_once_per_round(tmp_path):
    class Counted(nn.ParameterList):
        walks = 0

        def named_parameters(self, *args, **keys):
            Counted.walks += 1
            return super().named_parameters(*args, **keys)

    model = Counted(torch.zeros(3) for _ in range(50))
    optimizers = [torch.optim.SGD([p], lr=0.1) for p in model]
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        before = Counted.walks
        for _ in range(4):
            for parameter, optimizer in zip(model, optimizers, strict=True):
                parameter.grad = torch.ones(3)
                optimizer.step()
        assert Counted.walks == before + 4
    assert steps(probe.directory) == [0, 1, 2, 3]
    assert all(len(summary(probe.directory, step)) == 50 for step in range(4))
