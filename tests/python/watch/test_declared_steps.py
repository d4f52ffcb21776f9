# watch() without an optimizer: the loop says with step() when a step is over.
import pytest
import torch
from torch import nn
from torch.optim import optimizer as of_torch

import trainmon
from adapter_rows import assert_is, healthy, keys, row, rows, run_json


def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def batch(step):
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(step))


def test_a_loop_that_updates_by_hand(tmp_path):
    model = linear()
    name, parameter = "2.weight", model[2].weight
    seen, after = [], []
    with trainmon.watch(
        model, kinds=["grads", "grad_unreduced", "param_updated", "actv"], out=tmp_path
    ) as monitor:
        for step in range(3):
            for micro in range(2):
                model(batch(2 * step + micro)).pow(2).mean().backward()
            seen.append(parameter.grad.clone())
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
            after.append(parameter.detach().clone())
            monitor.step()
            model.zero_grad()
        healthy(monitor)
    for step in range(3):
        assert_is(row(tmp_path, kind="grad_reduced", name=name, step=step), seen[step])
        assert_is(row(tmp_path, kind="param_updated", name=name, step=step), after[step])
    micros = [(step, micro) for step in range(3) for micro in range(2)]
    assert keys(tmp_path, "step", "micro_step", kind="grad_unreduced", name=name) == micros
    assert keys(tmp_path, "step", "micro_step", kind="actv", name="2", element="output") == micros
    assert set(keys(tmp_path, "attempt", "fate")) == {(0, "taken")}
    assert of_torch._global_optimizer_pre_hooks == {}
    assert of_torch._global_optimizer_post_hooks == {}


def functional(out):
    """SGD over torch.func; its losses and weights at the end, and what it stepped with."""
    model = linear()
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    monitor = out and trainmon.watch(model, out=out)

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).pow(2).mean()

    losses, seen = [], []
    for step in range(3):
        gradients, value = torch.func.grad_and_value(loss)(parameters, batch(step))
        parameters = {name: p - 0.1 * gradients[name] for name, p in parameters.items()}
        losses.append(value)
        seen.append(gradients)
        if monitor:
            monitor.step(gradients)
    if monitor:
        healthy(monitor)
    return losses, parameters, seen


def test_a_functional_loop_gives_its_gradients(tmp_path, caplog):
    bare, watched = functional(None), functional(tmp_path)
    assert all(map(torch.equal, bare[0], watched[0]))
    assert all(torch.equal(bare[1][name], watched[1][name]) for name in bare[1])
    found = rows(tmp_path, kind="grad_reduced")
    assert len(found) == 3 * 4
    for r in found:
        assert_is(r, bare[2][r["step"]][r["name"]])
    assert caplog.text == ""  # what functional_call() puts in for a call replaces nothing


def test_names_that_the_model_does_not_have_are_said(tmp_path, caplog):
    model = linear()
    with trainmon.watch(model, out=tmp_path) as monitor:
        monitor.step({"0.weight": torch.ones(4, 3), "head.weight": torch.ones(1)})
        monitor.step([torch.ones(4, 3)])
        healthy(monitor)
    assert keys(tmp_path, "name", kind="grad_reduced") == [("0.weight",)]
    assert "head.weight" in caplog.text and "step(grads) takes" in caplog.text


def test_gradients_are_read_when_an_optimizer_nobody_gave_steps(tmp_path):
    model = linear()
    optimizer = torch.optim.AdamW(model.parameters())
    seen = []
    with trainmon.watch(model, out=tmp_path) as monitor:
        for step in range(2):
            model(batch(step)).pow(2).mean().backward()
            seen.append(model[0].weight.grad.clone())
            optimizer.step()
            optimizer.zero_grad()
            monitor.step()
        healthy(monitor)
    found = rows(tmp_path, kind="grad_reduced", name="0.weight")
    assert len(found) == 2
    for r in found:
        assert_is(r, seen[r["step"]])


@pytest.mark.parametrize("way", ["by hand", "optimizer"])
def test_a_step_that_is_never_declared_is_said(way, tmp_path, caplog, capfd):
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, out=tmp_path)
    for step in range(25):
        model(batch(step)).pow(2).mean().backward()
        if way == "optimizer":
            optimizer.step()
        model.zero_grad()
    monitor.stop()
    (said,) = (r.getMessage() for r in caplog.records if "step()" in r.getMessage())
    assert "after each update" in said and "trainmon.watch(model, optimizer)" in said
    assert ("SGD" in said) == (way == "optimizer")
    if way == "by hand":
        assert "step() was never called" in capfd.readouterr().err


def test_kinds_that_need_an_optimizer_are_not_covered(tmp_path):
    model = linear()
    with trainmon.watch(model, kinds=["weights", "moments"], out=tmp_path) as monitor:
        model(batch(0)).sum().backward()
        monitor.step()
    told = run_json(monitor)
    assert "without an optimizer" in told["not_covered"]["param_origin"]
    assert "param_origin" not in told["covered"]


def test_step_beside_an_optimizer_changes_nothing(tmp_path, caplog):
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.watch(model, optimizer, out=tmp_path) as monitor:
        for step in range(2):
            model(batch(step)).sum().backward()
            optimizer.step()
            monitor.step()
            optimizer.zero_grad()
        healthy(monitor)
    assert keys(tmp_path, "step", kind="grad_reduced", name="0.bias") == [(0,), (1,)]
    assert caplog.text.count("step() is for a watch() without an optimizer") == 1


def test_a_watch_that_cannot_begin_leaves_no_hook(tmp_path):
    with pytest.raises(ValueError, match="typo"):
        trainmon.watch(linear(), out=tmp_path, typo=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeError):
        trainmon.watch(linear(), out=tmp_path / "file" / "run")
    assert of_torch._global_optimizer_pre_hooks == {}
