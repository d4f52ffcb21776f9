# After the first value that is not finite: the next steps in full, then as asked for again.
import copy
import math
import sys

import pytest
import torch

import trainmon
import versions
from adapter_rows import run_json
from test_control import Training

FULL = {"grad_reduced", "actv", "actv_grad"}


@pytest.fixture(autouse=True)
def nothing_compiled():
    """Other tests of this process may have."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        dynamo.counters.clear()


def poison(training):
    """The next loss is NaN, and with it all gradients."""
    training.optimizer.zero_grad()
    (training.model(torch.randn(3, 4)).sum() * math.nan).backward()
    training.optimizer.step()


def test_the_steps_after_a_bad_gradient_are_recorded_in_full(tmp_path, capfd):
    training = Training(tmp_path, torch.nn.Sequential(torch.nn.Linear(4, 1)), every=5)
    hooks = training.hooks()
    training.steps(5)
    assert training.hooks() == hooks
    poison(training)  # step 5
    assert training.hooks() > hooks
    training.steps(8)
    assert training.hooks() == hooks
    training.steps(10)
    note = run_json(training.monitor)["notes"]["full_steps"]
    training.monitor.stop()
    found = training.recorded()
    assert found.pop(0) == found.pop(5) == found.pop(15) == found.pop(20) == {"grad_reduced"}
    assert found == dict.fromkeys(range(6, 14), FULL)
    assert (note["from_step"], note["steps"]) == (6, 8) and "actv" in note["kinds"]
    said = [line for line in capfd.readouterr().err.splitlines() if "recorded in full" in line]
    assert len(said) == 1 and "8 steps from step 6 on" in said[0]


def test_a_logged_loss_that_is_bad_is_enough_and_only_the_first_counts(tmp_path):
    training = Training(tmp_path)
    for step in range(30):
        training.steps()
        training.monitor.log(loss=math.inf if step in (2, 20) else 1.0)
    training.monitor.stop()
    full = [step for step, kinds in training.recorded().items() if "actv" in kinds]
    assert full == list(range(4, 12))


@pytest.mark.parametrize("name", ["best", "best_loss", "ratio"])
def test_a_logged_number_that_is_no_loss_or_was_never_finite_is_nothing(tmp_path, capfd, name):
    training = Training(tmp_path, every=5)
    for step in range(12):
        if step == 7:
            poison(training)
        else:
            training.steps()
        value = 1.0 if name == "ratio" and step == 0 else math.inf
        training.monitor.log({name: value}, loss=math.nan if step == 7 else 1.0)
    training.monitor.stop()
    full = [step for step, kinds in training.recorded().items() if "actv" in kinds]
    assert full and full[0] == 7 + 2
    console = capfd.readouterr().err
    assert "first non-finite value" in console and "step 7" in console and name not in console


@pytest.mark.parametrize("budget", [None, 0.5])
def test_training_is_the_same_and_everything_is_taken_off(budget, tmp_path):
    torch.manual_seed(0)
    bare = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    watched = copy.deepcopy(bare)
    training = Training(tmp_path, watched, budget=budget)
    twin = Training.__new__(Training)
    twin.model, twin.optimizer = bare, torch.optim.AdamW(bare.parameters(), lr=0.01)
    for one in (training, twin):
        torch.manual_seed(1)
        one.steps(2)
        if one is training:
            one.monitor.log(loss=1.0)
            one.monitor.log(loss=math.nan)
        one.steps(12)
        one.state = torch.get_rng_state()
    assert training.monitor.stop()["parts_off"] == {}
    full = [step for step, kinds in training.recorded().items() if "actv" in kinds]
    if budget is None:
        assert full == list(range(3, 11))
    else:  # as many as it allows
        assert full and set(full) <= set(range(3, 11))
    assert torch.equal(training.state, twin.state)
    for ours, theirs in zip(watched.parameters(), bare.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert training.hooks() == 0


@versions.cpu_scaler
def test_an_overflow_that_gradscaler_skips_is_nothing_to_look_into(tmp_path):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    kinds = ["grads", "grad_unreduced"]
    with trainmon.watch(model, optimizer, kinds=kinds, scaler=scaler, out=tmp_path) as monitor:
        for step in range(5):
            optimizer.zero_grad()
            loss = model(torch.randn(3, 4)).sum() * (math.inf if step == 1 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert "full_steps" not in run_json(monitor)["notes"]


@versions.compile_here
def test_compiled_models_are_recorded_at_every_step_without_new_hooks(tmp_path, capfd):
    class Composed(torch.nn.Module):  # torch compiles no nn.Sequential in place
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)

        def forward(self, x):
            return self.last(self.first(x).relu())

    training = Training(tmp_path, Composed(), every=5)
    training.model.compile(backend="eager")
    hooks = training.hooks()
    training.steps(3)
    training.monitor.log(loss=1.0)
    training.monitor.log(loss=math.nan)
    training.steps(5)
    assert training.hooks() == hooks
    training.steps(8)
    training.monitor.stop()
    found = training.recorded()
    assert set(found) == {0, 15, *range(4, 12)}
    assert all("actv" not in kinds for kinds in found.values())
    assert "torch.compile was used" in capfd.readouterr().err
