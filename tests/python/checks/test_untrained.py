"""Models that are not trained any more though steps go on: `diagnose` names the step and the reason, and says
nothing of trainings that only look so."""

from __future__ import annotations

import copy
import os
import subprocess

import pytest
import torch

import launch
import trainmon
import versions
from test_legitimate import Model, loss_of

STEPS = 24


class Training:
    """It takes its steps. Subclasses do something in one of them."""

    values: dict = {"lr": 1e-2}
    kind = torch.optim.AdamW
    how: dict = {"every": 1}

    def __init__(self):
        self.model = Model()
        self.optimizer = self.kind(self.model.parameters(), **self.values)
        self.best = copy.deepcopy(self.model.state_dict())

    def before(self, step):
        """The first thing in a step."""

    def validate(self, has_gradients=False):
        self.model.eval()
        with torch.set_grad_enabled(has_gradients):
            loss_of(self.model, 1000)

    def step(self, step):
        self.optimizer.zero_grad()
        loss_of(self.model, step).backward()
        self.optimizer.step()

    def run(self, out):
        watched = trainmon.watch(self.model, self.optimizer, checks=True, out=str(out), **self.how)
        with watched as self.mon:
            for step in range(STEPS):
                self.before(step)
                self.step(step)
        answer = trainmon.diagnose(str(out))
        assert answer["verdict"] is None, answer["verdict"]
        return answer["findings"]


class StaysInEvaluation(Training):
    def before(self, step):
        if step == 10:
            self.validate()


class CalledPastTheModel(Training):
    """What a wrapper without hooks would do: forward() itself."""

    def step(self, step):
        if step < 10:
            return super().step(step)
        self.optimizer.zero_grad()
        loss_of(self.model.forward, step).backward()
        self.optimizer.step()


class FirstEpochOnly(StaysInEvaluation):
    """So early that without the word of it nothing would be said."""

    def before(self, step):
        if step == 4:
            self.validate()


class Validates(Training):
    """After each fifth step, half of the time with gradients."""

    def before(self, step):
        if step % 5 == 4:
            self.validate(has_gradients=step % 2 == 0)
            self.model.train()


class AlwaysInEvaluation(Training):
    def before(self, step):
        self.model.eval()


class FewSteps(StaysInEvaluation):
    """The last two steps."""

    def before(self, step):
        if step == STEPS - 2:
            self.validate()


class Sampled(Validates):
    how = {"every": 4}


class SampledInEvaluation(StaysInEvaluation):
    how = {"every": 2}


class FrozenNorms(Training):
    """Parts of the model in evaluation mode, as in fine-tuning."""

    def before(self, step):
        if step == 10:
            self.model.body.eval()


@pytest.mark.parametrize(
    "kind, begin, text",
    [
        (StaysInEvaluation, 10, "the model is called in evaluation mode from here on"),
        (FirstEpochOnly, 4, "the model is called in evaluation mode from here on"),
        (SampledInEvaluation, 10, "the model is called in evaluation mode from here on"),
        (CalledPastTheModel, 10, "no training forward is seen from here on"),
    ],
)
def test_a_model_that_is_not_called_for_training_any_more(kind, begin, text, tmp_path):
    (one,) = kind().run(tmp_path)
    assert (one["check"], one["stage"], one["step"]) == ("input", "forward", begin)
    assert one["text"].startswith(text) and not one["certain"]


@pytest.mark.parametrize(
    "kind", [Training, Validates, AlwaysInEvaluation, FewSteps, Sampled, FrozenNorms]
)
def test_evaluation_that_is_meant(kind, tmp_path):
    assert kind().run(tmp_path) == []


class Replaced(Training):
    """The optimizer keeps the parameters from before."""

    def before(self, step):
        if step == 10:
            self.model.load_state_dict(self.best, assign=True)


class ReplacedOfSGD(Replaced):
    kind = torch.optim.SGD


class ReplacedOfMomentum(Replaced):
    kind = torch.optim.SGD
    values = {"lr": 1e-2, "momentum": 0.9}


class NewOptimizer(Training):
    def before(self, step):
        if step == 10:
            self.model.load_state_dict(self.best, assign=True)
            self.optimizer.param_groups[0]["params"] = list(self.model.parameters())


class LeftOut(Training):
    """Frozen, with no gradient any more."""

    def before(self, step):
        if step == 10:
            self.model.tokens.requires_grad_(False)


@versions.assigning
@pytest.mark.parametrize("kind", [Replaced, ReplacedOfSGD, ReplacedOfMomentum])
def test_parameters_that_no_optimizer_has_any_more(kind, tmp_path):
    found = kind().run(tmp_path)
    (one,) = [one for one in found if one["check"] == "update"]
    assert (one["stage"], one["step"], one["certain"]) == ("update", 10, False)
    assert sorted(one["tensors"]) == sorted(name for name, _ in Model().named_parameters())
    assert "no optimizer steps them any more" in one["text"]


@versions.assigning
@pytest.mark.parametrize("kind", [NewOptimizer, LeftOut])
def test_parameters_that_are_stepped_or_have_no_gradient(kind, tmp_path):
    assert [one for one in kind().run(tmp_path) if one["check"] == "update"] == []


class Announced(LeftOut):
    def before(self, step):
        with self.mon.edits("freeze"):
            super().before(step)


def test_gradients_that_end_are_noticed_where_nobody_announced_it(tmp_path):
    (one,) = [one for one in LeftOut().run(tmp_path / "a") if one["check"] == "present"]
    assert (one["stage"], one["step"], one["certain"]) == ("grad_reduced", 10, False)
    assert one["tensors"] == ["tokens.weight"]
    assert "frozen" in one["text"]
    assert [one for one in Announced().run(tmp_path / "b") if one["check"] == "present"] == []


class Cleared(Training):
    """Before its optimizer steps, from a step on."""

    def step(self, step):
        self.optimizer.zero_grad()
        loss_of(self.model, step).backward()
        if step >= 10:
            self.optimizer.zero_grad()
        self.optimizer.step()


class ClearedOfSGD(Cleared):
    kind = torch.optim.SGD


@pytest.mark.parametrize("kind", [Cleared, ClearedOfSGD])
def test_gradients_that_are_cleared_before_the_step_are_noticed(kind, tmp_path):
    (one,) = kind().run(tmp_path)
    assert (one["check"], one["stage"], one["step"]) == ("present", "grad_reduced", 10)
    assert one["text"].startswith("no parameter has a gradient any more")
    assert not one["certain"]


class Twice(Training):
    """The optimizer steps twice after one backward, from a step on."""

    def step(self, step):
        super().step(step)
        if step >= 10:
            self.optimizer.step()


def test_a_second_step_on_one_backward_is_noticed(tmp_path):
    (one,) = Twice().run(tmp_path)
    assert (one["check"], one["stage"], one["step"]) == ("reduce", "grad_reduced", 11)
    assert "the model was not called between" in one["text"] and not one["certain"]


class StepsNoMore(Training):
    """Gradients are cleared, or they add up."""

    def __init__(self, clears):
        super().__init__()
        self.clears = clears

    def step(self, step):
        loss_of(self.model, step).backward()
        if step < 10:
            self.optimizer.step()
        if step < 10 or self.clears:
            self.optimizer.zero_grad()


@pytest.mark.parametrize("clears", [True, False])
def test_an_optimizer_that_steps_no_more_is_noticed(clears, tmp_path):
    (one,) = StepsNoMore(clears).run(tmp_path)
    assert (one["check"], one["stage"], one["step"]) == ("update", "update", 10)
    assert "14 backwards came after its last step, which had 1" in one["text"]


class Uncleared(Training):
    """Gradients are not cleared after some steps."""

    def __init__(self, kept):
        super().__init__()
        self.kept = kept

    def step(self, step):
        loss_of(self.model, step).backward()
        self.optimizer.step()
        if not self.kept(step):
            self.clear()

    def clear(self):
        self.optimizer.zero_grad()


class ClearedInPlace(Uncleared):
    def clear(self):
        for parameter in self.model.parameters():
            parameter.grad.data.zero_()


@pytest.mark.parametrize(
    ("kept", "first"),
    [(lambda step: step >= 10, 11), (lambda step: step % 5 == 0, 1), (lambda step: True, 1)],
)
def test_gradients_that_nobody_clears_are_noticed(kept, first, tmp_path):
    (one,) = Uncleared(kept).run(tmp_path)
    assert (one["check"], one["stage"], one["step"]) == ("reduce", "grad_reduced", first)
    assert sorted(one["tensors"]) == sorted(name for name, _ in Model().named_parameters())
    assert "are not cleared" in one["text"] and not one["certain"]


def test_gradients_that_are_cleared_later_or_in_place_are_none(tmp_path):
    assert Uncleared(lambda step: step in (5, 6)).run(tmp_path / "twice") == []
    assert ClearedInPlace(lambda step: False).run(tmp_path / "in_place") == []


class ClearedBehindAutogradGrad(Training):
    """Gradients are asked for with those of the step before still there, which are cleared before the backward."""

    how: dict = {"every": 1, "kinds": "all"}

    def step(self, step):
        loss = loss_of(self.model, step)
        torch.autograd.grad(loss, list(self.model.parameters()), retain_graph=True)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def test_gradients_that_are_only_asked_for_add_to_none(tmp_path):
    assert ClearedBehindAutogradGrad().run(tmp_path) == []


class Critic(Training):
    """The generator's backward adds to gradients of the critic, which are cleared before its step."""

    def run(self, out):
        critic = Model()
        step_of_critic = torch.optim.AdamW(critic.parameters(), lr=1e-3)
        models, optimizers = [self.model, critic], [self.optimizer, step_of_critic]
        with trainmon.watch(models, optimizers, checks=True, out=str(out), every=1):
            for step in range(STEPS):
                step_of_critic.zero_grad()
                loss_of(critic, step).backward()
                step_of_critic.step()
                self.optimizer.zero_grad()
                (loss_of(self.model, step) + loss_of(critic, step + 100)).backward()
                self.optimizer.step()
        return trainmon.diagnose(str(out))["findings"]


def test_gradients_that_another_backward_left_are_none(tmp_path):
    found = Critic().run(tmp_path)
    assert [one for one in found if "cleared" in one["text"]] == []


class Rates(Training):
    """By step, of all groups."""

    def __init__(self, rates):
        super().__init__()
        self.rates = rates

    def before(self, step):
        for group in self.optimizer.param_groups:
            group["lr"] = self.rates(step)


class TwoGroups(Rates):
    """The second has a rate that stays."""

    def __init__(self, rates):
        super().__init__(rates)
        model = self.model
        body = [*model.tokens.parameters(), *model.body.parameters()]
        groups = [{"params": body}, {"params": model.head.parameters()}]
        self.optimizer = self.kind(groups, **self.values)

    def before(self, step):
        self.optimizer.param_groups[0]["lr"] = self.rates(step)


@pytest.mark.parametrize("kind", [Rates, TwoGroups])
def test_a_rate_that_has_become_zero(kind, tmp_path):
    (one,) = kind(lambda step: max(0.0, 1e-2 * (1 - step / 12))).run(tmp_path)
    assert (one["check"], one["stage"], one["step"]) == ("config", "update", 12)
    assert one["text"].startswith("lr of group 0 is 0 from here on") and not one["certain"]


RATES = {
    "warm_up": lambda step: 1e-2 * max(0, step - 5) / STEPS,
    "to_zero_at_the_end": lambda step: 1e-2 * max(0, STEPS - 2 - step) / STEPS,
    "restarts": lambda step: 1e-2 * (7 - step % 8) / 8,
    "frozen": lambda step: 0.0,
}


@pytest.mark.parametrize("name", RATES)
def test_rates_of_zero_that_are_meant(name, tmp_path):
    assert Rates(RATES[name]).run(tmp_path) == []


@pytest.mark.parametrize("kind", [Training, ReplacedOfSGD])
def test_states_that_an_optimizer_has_not_are_not_said_to_be_unrecorded(kind, tmp_path):
    class Plain(kind):
        def before(self, step):
            """Nothing."""

    Plain().run(tmp_path)
    command = [launch.command_line(), "diagnose", os.fspath(tmp_path)]
    text = subprocess.run(command, capture_output=True, text=True, timeout=100).stdout
    has_moments = kind is Training
    assert "not checked: exp_avg" not in text
    assert ("  exp_avg " in text) == has_moments
    assert "checked, so many times (once a tensor, rank and step):  finite" in text
