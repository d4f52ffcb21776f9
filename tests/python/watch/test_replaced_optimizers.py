# An optimizer made anew over the same parameters after watch(): followed, said once, never one of others.
import gc
import weakref

import torch
from torch import nn
from torch.optim import optimizer as of_torch

import trainmon
from adapter_rows import assert_is, healthy, keys, row, rows, run_json
from trainmon.torch.steps.hooks import BeforeStep

KINDS = ["grad_reduced", "param_origin", "param_updated", "moments"]


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def loss_of(model, step=0):
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
    return model(x).pow(2).mean()


def sgd(parameters, lr=0.1):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def train(model, optimizer, step, seen=None):
    loss_of(model, step).backward()
    values = {"param_origin": model[0].weight.detach().clone()}
    if model[0].weight.grad is not None:
        values["grad_reduced"] = model[0].weight.grad.clone()
    optimizer.step()
    values["param_updated"] = model[0].weight.detach().clone()
    values.update(
        (key, value.clone())
        for key, value in optimizer.state[model[0].weight].items()
        if key != "step" and value is not None
    )
    optimizer.zero_grad()
    if seen is not None:
        seen.append(values)


def assert_recorded(run, seen, name="0.weight"):
    for step, values in enumerate(seen):
        for kind, value in values.items():
            assert_is(row(run, kind=kind, name=name, step=step), value)
    found = rows(run, name=name)
    assert len(found) == sum(map(len, seen)) and {r["attempt"] for r in found} == {0}


def said(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "trainmon"]


def test_the_new_optimizer_is_followed(tmp_path, caplog):
    model, seen = linear(), []
    optimizer = sgd(model.parameters())
    with trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path) as monitor:
        for step in range(2):
            train(model, optimizer, step, seen)
        gone = weakref.ref(optimizer)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(2, 5):
            train(model, optimizer, step, seen)
        gc.collect()
        assert gone() is None, "the optimizer that was replaced, and its state, is kept"
        healthy(monitor)
    assert_recorded(tmp_path, seen)
    (text,) = said(caplog)
    assert "from step 2 on" in text and "SGD" in text and "AdamW" in text
    assert run_json(monitor)["notes"]["replaced_optimizers"] == [
        {"optimizer": "0", "was": "SGD", "is": "AdamW", "step": 2}
    ]
    assert of_torch._global_optimizer_pre_hooks == {}
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks


def test_one_that_comes_back_is_followed_again(tmp_path, caplog):
    model, seen = linear(), []
    one, two = sgd(model.parameters()), torch.optim.Adam(model.parameters())
    with trainmon.watch(model, one, kinds=KINDS, out=tmp_path) as monitor:
        for step, optimizer in enumerate((one, two, two, one, one, two)):
            train(model, optimizer, step, seen)
        healthy(monitor)
    assert_recorded(tmp_path, seen)
    assert len(said(caplog)) == 1


def test_the_one_given_never_stepped(tmp_path):
    model, seen = linear(), []
    given, used = sgd(model.parameters()), torch.optim.Adam(model.parameters())
    with trainmon.watch(model, given, kinds=KINDS, out=tmp_path) as monitor:
        for step in range(2):
            train(model, used, step, seen)
        healthy(monitor)
    assert_recorded(tmp_path, seen)


def test_a_closure_of_the_new_one_is_watched(tmp_path):
    model = linear()
    optimizer = sgd(model.parameters())
    seen = []
    with trainmon.watch(model, optimizer, out=tmp_path) as monitor:
        train(model, optimizer, 0)
        optimizer = sgd(model.parameters())

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            seen.append(model[0].weight.grad.clone())
            return loss

        for _ in range(2):
            optimizer.step(closure)
        healthy(monitor)
    for step, gradient in enumerate(seen, start=1):
        assert_is(row(tmp_path, name="0.weight", step=step), gradient)


def test_of_several_the_right_one(tmp_path):
    models = {"g": linear(), "d": linear(1)}
    optimizers = {name: sgd(model.parameters()) for name, model in models.items()}
    with trainmon.watch(
        list(models.values()), optimizers, kinds=["grad_reduced", "moments"], out=tmp_path
    ) as monitor:
        for step in range(4):
            if step == 2:
                optimizers["d"] = torch.optim.Adam(models["d"].parameters())
            for name, model in models.items():
                train(model, optimizers[name], step)
        healthy(monitor)
    steps = {(r["optimizer"], r["step"]) for r in rows(tmp_path, kind="grad_reduced")}
    assert steps == {(o, step) for o in (0, 1) for step in range(4)}
    found = keys(tmp_path, "optimizer", "chunk", "step", kind="exp_avg", name="0.weight")
    assert found == [(1, 1, 2), (1, 1, 3)]
    assert run_json(monitor)["notes"]["replaced_optimizers"][0]["optimizer"] == "d"


def test_more_parameters_are_the_new_ones(tmp_path):
    model = linear()
    head = sgd(model[2].parameters())
    with trainmon.watch(model, head, kinds=["grad_reduced", "moments"], out=tmp_path) as monitor:
        train(model, head, 0)
        both = sgd(model.parameters())
        for step in (1, 2):
            train(model, both, step)
        healthy(monitor)
    steps = [s for (s,) in keys(tmp_path, "step", kind="momentum_buffer", name="0.weight")]
    assert steps == [1, 2]


def test_optimizers_of_other_models_are_left_alone(tmp_path, caplog):
    model, other = linear(), linear(1)
    optimizer, others = sgd(model.parameters()), sgd(other.parameters())
    part = sgd([model[0].bias, *other.parameters()])  # shares a parameter with the other model
    with trainmon.watch(model, optimizer, out=tmp_path) as monitor:
        for step in range(3):
            loss_of(other, step).backward()
            others.step()
            loss_of(model, step).backward()
            part.step()
            train(model, optimizer, step)
            others.zero_grad()
        healthy(monitor)
    assert keys(tmp_path, "step", "attempt", name="0.weight") == [(0, 0), (1, 0), (2, 0)]
    assert said(caplog) == []


def test_one_that_steps_beside_the_one_watched_is_not_counted(tmp_path, caplog):
    model = linear()
    optimizer, beside = sgd(model.parameters()), sgd(model.parameters(), lr=0.01)
    with trainmon.watch(model, optimizer, out=tmp_path) as monitor:
        for step in range(3):
            loss_of(model, step).backward()
            optimizer.step()
            beside.step()
            model.zero_grad()
        healthy(monitor)
    assert keys(tmp_path, "step", "attempt", name="0.weight") == [(0, 0), (1, 0), (2, 0)]


def test_one_that_steps_before_the_one_watched_counts_once(tmp_path, caplog):
    """Only the second step shows that the first one replaces nothing: one window too many, said."""
    model = linear()
    optimizer, beside = sgd(model.parameters()), torch.optim.Adam(model.parameters())
    with trainmon.watch(model, optimizer, out=tmp_path) as monitor:
        for step in range(4):
            loss_of(model, step).backward()
            beside.step()
            optimizer.step()
            model.zero_grad()
        healthy(monitor)
    assert keys(tmp_path, "step", "attempt", name="0.weight") == [(s, 0) for s in range(5)]
    assert "Adam steps with the gradients of SGD" in caplog.text


def test_one_around_the_one_watched_replaces_nothing(tmp_path, caplog):
    class Outer(torch.optim.Optimizer):
        def __init__(self, inner):
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure=None):
            self.inner.step()
            with torch.no_grad():
                for p in self.param_groups[0]["params"]:
                    p.mul_(0.5)

    model, seen = linear(), []
    inner = sgd(model.parameters())
    outer = Outer(inner)
    with trainmon.watch(model, inner, kinds=KINDS, out=tmp_path) as monitor:
        for step in range(3):
            train(model, outer, step, seen)
            moment = inner.state[model[0].weight]["momentum_buffer"]
            seen[-1]["momentum_buffer"] = moment.clone()
        healthy(monitor)
    assert_recorded(tmp_path, seen)
    assert said(caplog) == []


def test_a_step_inside_a_backward_replaces_nothing(tmp_path):
    """An optimizer per parameter, stepped as soon as its gradient is there."""
    model = linear()
    optimizer = sgd(model.parameters())
    apart = {p: sgd([p]) for p in model.parameters()}

    def step(p):
        apart[p].step()

    with trainmon.watch(model, optimizer, out=tmp_path) as monitor:
        handles = [p.register_post_accumulate_grad_hook(step) for p in model.parameters()]
        for _ in range(2):
            loss_of(model).backward()
            optimizer.step()
            model.zero_grad()
        for handle in handles:
            handle.remove()
        healthy(monitor)
    assert keys(tmp_path, "step", name="0.weight") == [(0,), (1,)]


def test_those_that_are_gone_are_forgotten(tmp_path):
    """An optimizer for each step: neither time nor memory grows with them."""
    model = linear()
    optimizer = sgd(model.parameters())
    with trainmon.watch(model, optimizer, out=tmp_path) as monitor:
        for _ in range(40):
            optimizer = sgd(model.parameters())
            loss_of(model).backward()
            optimizer.step()
            model.zero_grad()
        gc.collect()
        assert sum(isinstance(one, BeforeStep) for one in gc.get_objects()) <= 3
        healthy(monitor)
    assert keys(tmp_path, "step", name="0.weight") == [(step,) for step in range(40)]
