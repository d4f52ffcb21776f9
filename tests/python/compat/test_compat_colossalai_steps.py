# When ColossalAIMonitor reads reduced gradients: whatever steps with them, and whatever clears them.
import pytest
import torch
from torch import nn

from compat_colossalai_case import Seen, assert_files, loss_of, net, read
from trainmon.compat.colossalai import ColossalAIMonitor


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_closure_is_read_after_its_last_backward(tmp_path):
    model, monitor = net(), ColossalAIMonitor()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    seen = Seen(model)
    monitor.monitor(model)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
        seen.note()
        monitor.step_end(model)
        seen.next()
    monitor.stop()
    assert_files(tmp_path, seen)


def test_a_loop_without_an_optimizer(tmp_path):
    model, monitor = net(), ColossalAIMonitor()
    seen = Seen(model)
    monitor.monitor(model)
    for step in range(3):
        loss_of(model, step).backward()
        seen.note()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad
        monitor.step_end(model)
        model.zero_grad()
        seen.next()
    monitor.stop()
    assert_files(tmp_path, seen)


def test_optimizers_that_step_within_the_backward(tmp_path):
    """One per parameter, and each gradient is gone before the next one comes."""
    model, monitor = net(), ColossalAIMonitor()
    seen = Seen(model)
    monitor.monitor(model)

    def stepper(name, parameter):
        optimizer = torch.optim.SGD([parameter], lr=0.1)

        def step(tensor):
            seen.reduced.append((seen.step, name, tensor.grad.clone()))
            optimizer.step()
            optimizer.zero_grad()

        return step

    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(stepper(name, parameter))
    for step in range(3):
        loss_of(model, step).backward()
        monitor.step_end(model)
        seen.next()
    monitor.stop()
    assert_files(tmp_path, seen)


def test_two_optimizers_each_read_their_own(tmp_path):
    """The gradients of one are cleared before the other has any."""
    model, monitor = net(), ColossalAIMonitor()
    one = torch.optim.SGD(model.first.parameters(), lr=0.1)
    two = torch.optim.Adam(model.second.parameters(), lr=0.1)
    stranger = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    seen = Seen(model)
    monitor.monitor(model)
    for step in range(2):
        for optimizer, module in ((one, "first"), (two, "second")):
            loss_of(model, step).backward()
            seen.reduced += [
                (step, name, p.grad.clone())
                for name, p in model.named_parameters()
                if name.startswith(module)
            ]
            stranger.step()
            optimizer.step()
            model.zero_grad()
        monitor.step_end(model)
        seen.next()
    monitor.stop()
    assert_files(tmp_path, seen)


def test_gradients_that_nobody_stepped_with_are_said_to_be_gone(tmp_path, caplog):
    model, monitor = net(), ColossalAIMonitor()
    monitor.monitor(model)
    for step in range(3):
        loss_of(model, step).backward()
        model.zero_grad()  # a loss scaler that found an infinity, say
        monitor.step_end(model)
    monitor.stop()
    local, reduced = read(tmp_path)
    assert [r[0] for r in local] == [0] * 4 + [1] * 4 + [2] * 4 and reduced == []
    assert caplog.text.count("gradients were gone") == 1


def test_backwards_that_are_thrown_away_stay_in_their_step(tmp_path):
    model, monitor = net(), ColossalAIMonitor()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor.monitor(model)
    for step in range(3):
        for _ in range(2):  # the first is of a probe
            optimizer.zero_grad()
            loss_of(model, step).backward()
        optimizer.step()
        monitor.step_end(model)
    monitor.stop()
    local, reduced = read(tmp_path)
    assert [r[0] for r in local] == [0] * 8 + [1] * 8 + [2] * 8
    assert [r[0] for r in reduced] == [0] * 4 + [1] * 4 + [2] * 4


@pytest.mark.parametrize("change", ["thawed", "replaced"])
def test_a_parameter_that_changes_between_steps_has_all_its_rows(change, tmp_path):
    model, monitor = net(), ColossalAIMonitor()
    if change == "thawed":
        model.first.weight.requires_grad_(False)
    seen = Seen(model)
    monitor.monitor(model)
    for step in range(4):
        if step == 2:
            if change == "thawed":
                model.first.weight.requires_grad_(True)
            else:
                model.first.weight = nn.Parameter(torch.zeros(3, 4))
            model.first.weight.register_hook(seen._hook("first.weight"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss_of(model, step).backward()
        seen.note()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step_end(model)
        seen.next()
    monitor.stop()
    assert {step for step, name, _ in seen.local if name == "first.weight"} >= {2, 3}
    assert_files(tmp_path, seen)


def test_a_parameter_that_changes_behind_the_forward_is_counted(tmp_path, capfd):
    """Nobody can put a hook on what is thawed and used without the model's forward."""
    model, monitor = net(), ColossalAIMonitor()
    model.first.weight.requires_grad_(False)
    monitor.monitor(model)
    model.first.weight.requires_grad_(True)
    torch.tanh(model.first(torch.ones(2, 4))).sum().backward()
    monitor.step_end(model)
    monitor.stop()
    local, reduced = read(tmp_path)
    assert [r[2] for r in local] == ["first.bias"]
    assert [r[2] for r in reduced] == ["first.weight", "first.bias"]
    assert "1 rows of rank 0 are missing" in capfd.readouterr().err
