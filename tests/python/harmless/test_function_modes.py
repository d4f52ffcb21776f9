# A function mode of the user sees what the training calls, and nothing of ours.
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import trainmon
from adapter_rows import healthy

SETTINGS = {
    "defaults": {},
    "all kinds": {"kinds": "all"},
    "checks": {"checks": True},
    "operations": {"kinds": ["grads", "weights", "activations"], "backend": "ops"},
    "samples": {"kinds": ["activations"], "sample": "1/2"},
}


class Noted(TorchFunctionMode):
    """Notes each call and draws a random number, as a mode that injects faults does."""

    def __init__(self):
        super().__init__()
        self.calls, self.numbers = [], torch.Generator().manual_seed(0)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.calls.append(getattr(function, "__qualname__", str(function)))
        result = function(*args, **(kwargs or {}))
        drawn = torch.rand((), generator=self.numbers).item()
        return result * 1.01 if drawn < 0.05 and self.calls[-1] == "linear" else result


def losses_of(tmp_path, settings, declares):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    with Noted() as noted:
        watched = settings is not None
        if watched:
            given = None if declares else optimizer
            monitor = trainmon.watch(model, given, out=tmp_path / "run", every=1, **settings)
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(torch.ones(4, 8)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if watched:
                monitor.log(loss=losses[-1])
            if watched and declares:
                monitor.step()
        if watched:
            monitor.pause()
            monitor.resume()
            health = monitor.stop()
            assert health["rows_produced"] > 0
            assert health["parts_off"] == {}
    return losses, noted.calls


@pytest.mark.parametrize("declares", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_it_sees_what_it_sees_without_us(tmp_path, name, declares):
    bare = losses_of(tmp_path, None, declares)
    assert "linear" in bare[1]
    assert losses_of(tmp_path, SETTINGS[name], declares) == bare


class Dispatched(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls.append(str(function))
        return function(*args, **(kwargs or {}))


OF_STEPS = ["grads", "grad_unreduced", "weights", "moments"]


@pytest.mark.parametrize("kinds", [OF_STEPS, ["activations"], ["update"], ["input"]], ids=" ".join)
def test_a_dispatch_mode_sees_no_call_of_ours(kinds, tmp_path):
    seen = []
    for watched in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        if watched:
            monitor = trainmon.watch(model, optimizer, kinds=kinds, out=tmp_path)
        with Dispatched() as mode:
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(4, 8)).square().mean().backward()
                optimizer.step()
        seen.append(mode.calls)
    assert healthy(monitor)["rows_produced"] > 0
    assert seen[0] == seen[1]


class Counted(torch.Tensor):
    calls: list = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.calls.append(str(function))
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.parametrize("kinds", ["grads", "activations", "input"])
def test_a_class_of_what_the_model_is_given_sees_no_call_of_ours(kinds, tmp_path):
    seen = []
    for watched in (False, True):
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        if watched:
            monitor = trainmon.watch(model, optimizer, kinds=[kinds], out=tmp_path)
        Counted.calls = []
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 8).as_subclass(Counted)).square().mean().backward()
            optimizer.step()
        seen.append(Counted.calls)
    assert monitor.stop()["rows_produced"] > 0
    assert seen[0] == seen[1] and seen[0]
