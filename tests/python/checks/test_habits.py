"""Real trainings that change a habit: `diagnose` notices it once, and says nothing of the sound one."""

from __future__ import annotations

import copy
import subprocess

import pytest
import torch
from torch import nn

import launch
import trainmon

STEPS = 60
BEGIN = 36


class Training:
    """One model, its optimizer, and data that are new in each step."""

    steps = STEPS
    expected: tuple = ()  # check, step, part of the text

    def __init__(self, is_faulty):
        torch.manual_seed(5)
        self.is_faulty = is_faulty
        self.model = self.make()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.data = torch.Generator().manual_seed(1)

    def make(self):
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))

    def watched(self):
        return self.model, self.optimizer

    def batch(self):
        return torch.randn(32, 8, generator=self.data)

    def step(self, step):
        self.optimizer.zero_grad()
        x = self.batch()
        (self.model(x) - x[:, :2].sin()).square().mean().backward()
        self.optimizer.step()

    def run(self, out):
        with trainmon.watch(*self.watched(), checks=True, every=1, out=str(out)):
            for step in range(self.steps):
                self.step(step)


class RoundedAdam(torch.optim.Optimizer):
    """Weights in bfloat16 alone: what is rounded away is added by chance, so that steps add up."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99)})
        self.is_stochastic = True

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["exp_avg"] = torch.zeros_like(weight, dtype=torch.float32)
                    state["exp_avg_sq"] = torch.zeros_like(weight, dtype=torch.float32)
                gradient = weight.grad.float()
                state["exp_avg"].lerp_(gradient, 0.1)
                state["exp_avg_sq"].lerp_(gradient.square(), 0.01)
                moved = weight.float() - group["lr"] * state["exp_avg"] / (
                    state["exp_avg_sq"].sqrt() + 1e-8
                )
                bits = moved.view(torch.int32)
                if self.is_stochastic:
                    noise = torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32)
                    bits = (bits + noise) & -(1 << 16)
                weight.copy_(bits.view(torch.float32))


class Rounding(Training):
    """The rounding of the optimizer is not stochastic any more."""

    steps, begin = 140, 100
    expected = ("update", begin, "the optimizer moves the weights 0.")

    def __init__(self, is_faulty):
        super().__init__(is_faulty)
        self.model.bfloat16()
        self.optimizer = RoundedAdam(self.model.parameters(), lr=2e-4)

    def batch(self):
        return super().batch().bfloat16()

    def step(self, step):
        if self.is_faulty and step == self.begin:
            self.optimizer.is_stochastic = False
        super().step(step)


class Teacher(Training):
    """Its average counts its steps for a warm-up of the decay; the count is lost."""

    expected = ("gap", BEGIN, "weights without a gradient")

    def __init__(self, is_faulty):
        super().__init__(is_faulty)
        self.teacher = copy.deepcopy(self.model).requires_grad_(False)
        self.count = 0

    def watched(self):
        return {"student": self.model, "teacher": self.teacher}, self.optimizer

    def step(self, step):
        super().step(step)
        self.count = 0 if self.is_faulty and step == BEGIN else self.count + 1
        decay = min(0.99, (1 + self.count) / (10 + self.count))
        with torch.no_grad():
            for mean, weight in zip(self.teacher.parameters(), self.model.parameters()):
                mean.lerp_(weight, 1 - decay)


class Cosine(Training):
    expected = ("config", BEGIN, "the learning rate of group 0 rises again")

    def __init__(self, is_faulty):
        super().__init__(is_faulty)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizer, T_max=BEGIN - 1 if is_faulty else STEPS
        )

    def step(self, step):
        super().step(step)
        self.schedule.step()


class Adversary(Training):
    """A critic whose gradients are cleared before the backward of the generator, not after it."""

    expected = ("reduce", BEGIN, "the gradients of 2 backwards from here on")

    def __init__(self, is_faulty):
        super().__init__(is_faulty)
        self.critic = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
        self.of_critic = torch.optim.AdamW(self.critic.parameters(), lr=1e-3)

    def watched(self):
        return [self.model, self.critic], [self.optimizer, self.of_critic]

    def step(self, step):
        x = self.batch()
        too_early = self.is_faulty and step >= BEGIN
        self.optimizer.zero_grad()
        if too_early:
            self.of_critic.zero_grad()
        (-self.critic(self.model(x)).mean()).backward()
        self.optimizer.step()
        if not too_early:
            self.of_critic.zero_grad()
        fake = self.critic(self.model(x).detach()).mean()
        (fake - self.critic(x[:, :2].sin()).mean()).backward()
        self.of_critic.step()


class Diffusion(Training):
    """An evaluation every five steps seeds the random numbers of time steps."""

    expected = ("input", BEGIN + 4, "input.1 is given again what it had 5 calls before")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.times, self.out = nn.Embedding(100, 8), nn.Linear(8, 8)

        def forward(self, x, times):
            return self.out(x + self.times(times))

    def make(self):
        return self.Net()

    def step(self, step):
        if self.is_faulty and step >= BEGIN - 1 and step % 5 == 0:
            torch.manual_seed(0)
        times = torch.randint(100, (32,))
        self.optimizer.zero_grad()
        x = self.batch()
        (self.model(x, times) - x).square().mean().backward()
        self.optimizer.step()


class Resumed(Training):
    """The second start goes on with the steps; its data begin anew."""

    expected = ("input", BEGIN, "the batches of the start before again, from that of step 0 on")
    begin = BEGIN

    def run(self, out):
        for begin, end in ((0, self.begin), (self.begin, self.steps)):
            if begin and self.is_faulty:
                self.load()
            with trainmon.watch(*self.watched(), checks=True, every=1, out=str(out)):
                for step in range(begin, end):
                    self.step(step)

    def load(self):
        self.data.manual_seed(1)


class ResumedWeights(Resumed):
    """The model is that of an older checkpoint than the optimizer."""

    expected = ("gap", BEGIN, f"those that step {BEGIN - 7} left")

    def step(self, step):
        super().step(step)
        if step == BEGIN - 7:
            self.saved = copy.deepcopy(self.model.state_dict())

    def load(self):
        self.model.load_state_dict(self.saved)


class ResumedHalf(ResumedWeights):
    """The checkpoint has weights in bfloat16."""

    expected = ("gap", BEGIN, "they are off by 0.1")

    def load(self):
        state = {name: one.bfloat16() for name, one in self.model.state_dict().items()}
        self.model.load_state_dict(state)


class ResumedRate(Resumed):
    """The schedule is made anew and not restored."""

    expected = ("config", BEGIN, "but not with its learning rate")

    def __init__(self, is_faulty):
        super().__init__(is_faulty)
        self.load()

    def load(self):
        for group in self.optimizer.param_groups:
            group.pop("initial_lr", None)
            group["lr"] = 2e-3
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.98)

    def step(self, step):
        super().step(step)
        self.schedule.step()


class ResumedTwice(Resumed):
    """The schedule is restored, and stepped twice in each step from then on."""

    expected = ("config", BEGIN, "but not with its schedule")

    def __init__(self, is_faulty):
        super().__init__(is_faulty)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.1, 20 * BEGIN)
        self.times = 1

    def load(self):
        self.times = 2

    def step(self, step):
        super().step(step)
        for _ in range(self.times):
            self.schedule.step()


class ResumedTeacher(Resumed):
    """The second start averages into other weights than those of the teacher."""

    steps, begin = 76, 56
    expected = ("gap", begin, "do not change any more")

    def __init__(self, is_faulty):
        super().__init__(is_faulty)
        self.teacher = copy.deepcopy(self.model).requires_grad_(False)
        self.averaged = self.teacher

    def watched(self):
        return {"student": self.model, "teacher": self.teacher}, self.optimizer

    def load(self):
        self.averaged = copy.deepcopy(self.teacher)

    def step(self, step):
        super().step(step)
        with torch.no_grad():
            for mean, weight in zip(self.averaged.parameters(), self.model.parameters()):
                mean.lerp_(weight, 0.01)


TRAININGS = (
    Teacher,
    Cosine,
    Adversary,
    Diffusion,
    Resumed,
    ResumedWeights,
    ResumedHalf,
    ResumedRate,
    ResumedTwice,
    ResumedTeacher,
    Rounding,
)


@pytest.mark.parametrize("training", TRAININGS)
def test_a_habit_that_changes_is_noticed_once(training, tmp_path):
    training(False).run(tmp_path / "sound")
    sound = trainmon.diagnose(tmp_path / "sound")
    training(True).run(tmp_path / "faulty")
    faulty = trainmon.diagnose(tmp_path / "faulty")
    assert sound["verdict"] is None and faulty["verdict"] is None
    said = [(one["step"], one["text"]) for one in sound["findings"]]
    new = [one for one in faulty["findings"] if (one["step"], one["text"]) not in said]
    check, step, text = training.expected
    (found,) = (one for one in new if text in one["text"])
    assert (found["check"], found["step"]) == (check, step), found
    assert not found["certain"]
    assert len(new) == 1, new


def test_what_begins_later_is_looked_at_first_and_a_habit_is_said_once(tmp_path):
    training = ResumedTeacher(True)
    training.run(tmp_path)
    findings = trainmon.diagnose(tmp_path)["findings"]
    copied = [one["step"] for one in findings if "copy or average into them" in one["text"]]
    assert copied == [1], "not again in the second start"
    done = subprocess.run(
        [launch.command_line(), "diagnose", tmp_path], capture_output=True, text=True
    )
    assert f"--steps {training.begin - 1}:{training.begin}" in done.stderr


def test_a_start_where_the_warm_up_has_ended_goes_on_with_the_schedule(tmp_path):
    class Warm(Resumed):
        def load(self):
            """Nothing is lost."""

        def step(self, step):
            up, down = 1e-3 * (step + 1) / BEGIN, 1e-3 * (1 - (step - BEGIN) / 200)
            self.optimizer.param_groups[0]["lr"] = up if step < BEGIN else down
            super().step(step)

    Warm(True).run(tmp_path)
    findings = trainmon.diagnose(tmp_path)["findings"]
    assert [one for one in findings if one["check"] == "config"] == []
