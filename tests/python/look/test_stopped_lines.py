"""What stops, or has another dtype, in real trainings: gradients of a state, an optimizer's estimate, a cast."""

from __future__ import annotations

import json

import pytest
import torch

import trainmon
from test_report import command, report

STEPS, BEGIN, EVERY = 140, 90, 5


class Curvature(torch.optim.Optimizer):
    """SGD over the root of an estimate that is made anew in every fifth step."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-3})
        self.has_ended = False
        self.count = 0

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if self.count % EVERY == 0 and not (self.has_ended and state):
                state["curvature"] = parameter.grad.square() + 1e-2
            parameter.addcdiv_(parameter.grad, state["curvature"].sqrt(), value=-1e-3)
        self.count += 1


class Cast(torch.nn.Module):
    dtype = torch.float32

    def forward(self, given):
        return given.to(self.dtype)


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cast, self.head = Cast(), torch.nn.Linear(16, 1)
        self.lstm = torch.nn.LSTM(4, 16, batch_first=True)

    def forward(self, given, state):
        made, state = self.lstm(self.cast(given).float(), state)
        return self.head(made), state


def trained(out, change):
    """Truncated backpropagation through two chunks; change(model, optimizer, state) before the second one."""
    torch.manual_seed(0)
    model = Recurrent()
    optimizer = Curvature(model.parameters())
    with trainmon.watch(
        model, optimizer, kinds=["activations", "moments"], checks=True, every=1, out=str(out)
    ) as monitor:
        for step in range(STEPS):
            x = torch.randn(16, 12, 4)
            first, state = model(x[:, :6], (torch.zeros(1, 16, 16), torch.zeros(1, 16, 16)))
            if step >= BEGIN:
                state = change(model, optimizer, state)
            then, _ = model(x[:, 6:], state)
            loss = (torch.cat([first, then], 1) - x.cumsum(1).mean(-1, True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())
    return trainmon.diagnose(out)["left_history"]


def nothing(model, optimizer, state):
    return state


def test_a_sound_training_has_no_such_line(tmp_path):
    assert trained(tmp_path / "run", nothing) is None


def test_a_state_that_no_gradient_reaches_any_more_is_told(tmp_path):
    out = tmp_path / "run"
    left = trained(out, lambda model, optimizer, state: tuple(one.detach() for one in state))
    assert (left["step"], left["kind"], left["measure"]) == (BEGIN, "actv_grad", "rows"), left
    assert left["element"] in {"input.1.0", "input.1.1", "output.1.0", "output.1.1"}
    text = command("diagnose", out).stdout
    assert "no gradient reaches it from here on, and one did in each step of its module" in text
    page, _ = report(out, tmp_path / "a.html", check=0)
    assert page.report["diagnosis"]["left_history"] == left


@pytest.mark.parametrize("key", ["input_grads", "reread"])
def test_what_is_not_recorded_any_more_is_no_such_line(tmp_path, key):
    out = tmp_path / "run"
    out.mkdir()
    change = {"format": 1, "number": 1, "set": {key: False}, "apply_at_step": BEGIN}
    (out / "control.json").write_text(json.dumps(change))
    assert trained(out, nothing) is None
    notes = json.loads((out / "rank_00000/restart_0000/run.json").read_text())["notes"]
    assert notes["control"]["since_step"] == BEGIN


def test_an_estimate_that_an_optimizer_makes_no_more_is_told_where_it_is_due(tmp_path):
    def end(model, optimizer, state):
        optimizer.has_ended = True
        return state

    out = tmp_path / "run"
    left = trained(out, end)
    assert (left["step"], left["kind"], left["measure"]) == (BEGIN, "curvature", "still"), left
    text = command("diagnose", out).stdout
    assert f"its norm does not change any more, and did so at least every {EVERY} rows" in text


def test_another_dtype_of_what_a_module_gives_is_told(tmp_path):
    def cast(model, optimizer, state):
        model.cast.dtype = torch.bfloat16
        return state

    out = tmp_path / "run"
    left = trained(out, cast)
    place = (left["step"], left["kind"], left["name"], left["element"], left["measure"])
    assert place == (BEGIN, "actv", "cast", "output", "dtype"), left
    assert "it is bfloat16 from here on, and was float32 before" in command("diagnose", out).stdout
