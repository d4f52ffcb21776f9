"""What trainings rightly do is no certain finding: `diagnose` ends with 0. A fault beside it is still found."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn

import launch
import trainmon

optim = torch.optim
STEPS = 30


class Model(nn.Module):
    def __init__(self, max_norm=None):
        super().__init__()
        torch.manual_seed(2)
        self.tokens = nn.Embedding(40, 16, max_norm=max_norm)
        self.body = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.LayerNorm(24), nn.Linear(24, 16))
        self.head = nn.Linear(16, 40)

    def forward(self, tokens):
        return self.head(self.body(self.tokens(tokens)))


def loss_of(model, step):
    tokens = torch.randint(40, (4, 6), generator=torch.Generator().manual_seed(step))
    scores = model(tokens).float().flatten(0, 1)
    return nn.functional.cross_entropy(scores, (3 * tokens + 1).flatten() % 40)


class Training:
    """One process. Subclasses do something that is meant."""

    values: dict = {"lr": 1e-2}
    kind = optim.AdamW
    noticed: set = set()  # checks that may say something

    def __init__(self):
        self.model = self.make()
        self.optimizer = self.kind(self.stepped(), **self.values)

    def make(self):
        return Model()

    def stepped(self):
        return self.model.parameters()

    def given(self):
        """The optimizers that are watched."""
        return self.optimizer

    def before(self, step):
        """The first thing in a step."""

    def step(self, step):
        loss_of(self.model, step).backward()
        self.optimizer.step()

    def run(self, out, has_checks, flip_at=None, **how):
        if not how:
            how = {"checks": True} if has_checks else {"kinds": ["grads", "weights", "moments"]}
        self.watched = trainmon.watch(self.model, self.given(), every=1, out=str(out), **how)
        with self.watched:
            for step in range(STEPS):
                self.before(step)
                if step == flip_at:
                    self.model.head.weight.data[0, 0] += 1e-3
                self.optimizer.zero_grad()
                self.step(step)
        return trainmon.diagnose(str(out))


class MaxNorm(Training):
    """Rows grow beyond the limit after some steps."""

    values = {"lr": 0.05}

    def make(self):
        return Model(max_norm=6.0)


class LoadsAPart(Training):
    noticed = {"gap"}

    def before(self, step):
        if step in (12, 20):
            part = self.model.body
            part.load_state_dict({key: 0.9 * value for key, value in part.state_dict().items()})


class LoadsATarget(Training):
    """As of a DQN: what the optimizer steps is checked all the same."""

    noticed = {"gap", "start"}

    def make(self):
        model = Model()
        model.target = copy.deepcopy(model.body)
        return model

    def before(self, step):
        if step % 6 == 5:
            self.model.target.load_state_dict(self.model.body.state_dict())


class Masters(Training):
    """In float32, by hand; the rate begins at zero."""

    noticed = {"gap", "update"}
    kind, values = optim.SGD, {"lr": 0.0}

    def make(self):
        return Model().bfloat16()

    def stepped(self):
        self.masters = [p.detach().float().requires_grad_() for p in self.model.parameters()]
        return self.masters

    def step(self, step):
        self.optimizer.param_groups[0]["lr"] = 0.01 * max(0, step - 4)
        self.model.zero_grad()
        loss_of(self.model, step).backward()
        for master, parameter in zip(self.masters, self.model.parameters(), strict=True):
            master.grad = parameter.grad.float()
        self.optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(self.masters, self.model.parameters(), strict=True):
                parameter.copy_(master)


class ClosureSetsTheRate(Training):
    def step(self, step):
        def closure():
            if step >= 8:
                self.optimizer.param_groups[0]["lr"] = 1e-2 / step
            loss = loss_of(self.model, step)
            loss.backward()
            return loss

        self.optimizer.step(closure)


class HookSetsTheRate(Training):
    """It comes after watch()."""

    def before(self, step):
        def set_rate(optimizer, *_):
            optimizer.param_groups[0]["lr"] = 2e-2 / step

        if step == 9:
            self.optimizer.register_step_pre_hook(set_rate)


class HalfStep(optim.Optimizer):
    """Declares what Adam does, and takes another step every so often."""

    def __init__(self, parameters, lr):
        super().__init__(
            parameters, {"lr": lr, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}
        )
        self.taken = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.taken += 1
        half = 0.5 if self.taken % 7 == 0 else 1.0
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                state["exp_avg"].mul_(0.9).add_(p.grad, alpha=0.1 * half)
                state["exp_avg_sq"].mul_(0.95).addcmul_(p.grad, p.grad, value=0.05 * half)
                p.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt() + 1e-8, value=-group["lr"])


class OwnFormula(Training):
    kind, noticed = HalfStep, {"exp_avg", "exp_avg_sq"}


class HalfPlain(optim.Optimizer):
    """The same of SGD."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr, "momentum": 0, "dampening": 0, "nesterov": False})
        self.taken = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.taken += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"] * (0.5 if self.taken % 7 == 0 else 1.0))


class OwnPlainFormula(Training):
    kind, noticed = HalfPlain, {"update"}


class StateCleared(Training):
    noticed = {"exp_avg"}

    def before(self, step):
        if step == 14:
            self.optimizer.state.clear()


class StateOfEachCleared(Training):
    """The entries stay, and the optimizer fills them anew."""

    noticed = {"exp_avg"}

    def before(self, step):
        if step == 14:
            for state in self.optimizer.state.values():
                state.clear()


class StateOfTheLastReplaced(Training):
    """As where a layer is drawn anew."""

    def before(self, step):
        if step == 14:
            for weight in list(self.model.parameters())[-2:]:
                state = self.optimizer.state[weight]
                for key in state:
                    state[key] = torch.zeros_like(state[key])


class StateOfOneCleared(Training):
    """Neither the first nor one of the last."""

    def before(self, step):
        if step == 14:
            self.optimizer.state[self.model.body[2].weight].clear()


class MomentsOfOneZeroed(Training):
    """The step count goes on."""

    def before(self, step):
        if step == 14:
            state = self.optimizer.state[self.model.body[2].weight]
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = torch.zeros_like(state[key])


class MomentsRounded(Training):
    """Once, as of a state that is kept in fewer bits."""

    def before(self, step):
        if step == 14:
            for state in self.optimizer.state.values():
                state["exp_avg"] = state["exp_avg"].bfloat16().float()


class MomentsElsewhereBetweenSteps(Training):
    """As of a state that is offloaded: other tensors before each step."""

    def before(self, step):
        for state in self.optimizer.state.values():
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = state[key].clone()


class NewOptimizer(Training):
    """As at the second stage of a training."""

    noticed = {"exp_avg"}

    def before(self, step):
        if step == 14:
            self.optimizer = optim.AdamW(self.model.parameters(), lr=2e-3)


class OwnLion(optim.Optimizer):
    """It declares betas and keeps exp_avg, as Adam does."""

    def __init__(self, parameters, lr=1e-3, betas=(0.9, 0.99)):
        super().__init__(parameters, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            fast, slow = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.add_(m.mul(fast).add(p.grad, alpha=1 - fast).sign_(), alpha=-group["lr"])
                m.mul_(slow).add_(p.grad, alpha=1 - slow)


class AdamBecomesLion(Training):
    noticed = {"config"}  # other betas

    def before(self, step):
        if step == 14:
            self.optimizer = OwnLion(self.model.parameters())


class AdamBecomesRprop(Training):
    def before(self, step):
        if step == 14:
            self.optimizer = optim.Rprop(self.model.parameters(), lr=1e-3)


class SgdBecomesAdam(Training):
    """And SGD again, at last."""

    kind = optim.SGD

    def before(self, step):
        if step == 14:
            self.optimizer = optim.Adam(self.model.parameters(), lr=1e-3)
        if step == 20:
            self.optimizer = optim.SGD(self.model.parameters(), lr=1e-2)


class ProjectedFromAStepOn(Training):
    """One weight is kept on a sphere, as soon as it leaves it."""

    noticed = {"gap"}

    def before(self, step):
        if step >= 8:
            with torch.no_grad():
                self.model.head.weight.mul_(0.9 / self.model.head.weight.norm())


class AverageSwappedIn(Training):
    """Without a word."""

    noticed = {"gap"}

    def before(self, step):
        weights = [p.detach() for p in self.model.parameters()]
        if step == 0:
            self.average = [w.clone() for w in weights]
        torch._foreach_lerp_(self.average, weights, 0.2)
        if step == 18:
            torch._foreach_copy_(weights, self.average)


class Lookahead(Training):
    noticed = {"gap"}

    def before(self, step):
        weights = [p.detach() for p in self.model.parameters() if p.requires_grad]
        if step % 5 == 0:
            self.slow = [w.clone() for w in weights] if step == 0 else self.slow
            torch._foreach_lerp_(self.slow, weights, 0.5)
            torch._foreach_copy_(weights, self.slow)


class LookaheadOfAHead(Lookahead):
    """The weights that train are few: all others are frozen."""

    def stepped(self):
        self.model.tokens.requires_grad_(False)
        self.model.body.requires_grad_(False)
        return self.model.head.parameters()


class TwoOptimizersShareALayer(Training):
    """One has the whole model; the other takes steps of its own now and then."""

    def given(self):
        self.other = optim.SGD(self.model.head.parameters(), lr=1e-3)
        return [self.optimizer, self.other]

    def before(self, step):
        for i in range(3 if step % 10 == 9 else 0):
            self.other.zero_grad()
            loss_of(self.model, 100 * step + i).backward()
            self.other.step()


class AnotherOptimizer(Training):
    """It steps the head from some step on, and watch() was not given it."""

    noticed = {"gap", "update"}  # the head has gradients, and at first nobody steps it

    def stepped(self):
        self.other = optim.SGD(self.model.head.parameters(), lr=1e-2)
        return [*self.model.tokens.parameters(), *self.model.body.parameters()]

    def step(self, step):
        super().step(step)
        if step >= 10:
            self.other.step()


class BecomesDouble(Training):
    kind, values = optim.SGD, {"lr": 1e-2}

    def before(self, step):
        if step == 10:
            self.model.double()


class EqualInDouble(Training):
    """Elements of the gradient are equal: sums of them round alike."""

    def make(self):
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(4, 512), nn.Linear(512, 700)).double()

    def step(self, step):
        random = torch.Generator().manual_seed(step)
        x = torch.randn(6, 4, dtype=torch.float64, generator=random)
        (self.model(x).mean() * (0.1 + 0.37 * (step % 7))).backward()
        self.optimizer.step()


class RectifiedAdam(Training):
    """Its first steps are small."""

    kind, values = optim.RAdam, {"lr": 1e-3}
    noticed = {"zero"}

    def step(self, step):
        loss = loss_of(self.model, step) * 0.1 ** (3 * step)
        loss.backward()
        self.optimizer.step()


class PutBack(Training):
    """SAM without a copy of the weights: what it adds is taken away again, up to rounding."""

    kind, values = optim.SGD, {"lr": 0.1, "momentum": 0.9}
    noticed = {"gap"}

    def make(self):
        torch.manual_seed(0)
        parts = {"body": nn.Linear(16, 8), "bend": nn.ReLU(), "head": nn.Linear(8, 4)}
        return nn.Sequential(OrderedDict(parts))

    def step(self, step):
        x = torch.randn(32, 16, generator=torch.Generator().manual_seed(step))
        weights = list(self.model.parameters())

        def backward():
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), x[:, :4].argmax(1)).backward()

        backward()
        norm = torch.stack([one.grad.norm() for one in weights]).norm()
        away = [0.05 * one.grad / norm for one in weights]
        with torch.no_grad():
            torch._foreach_add_(weights, away)
        backward()
        with torch.no_grad():
            torch._foreach_sub_(weights, away)
        self.optimizer.step()


LEGITIMATE = [*Training.__subclasses__(), *Lookahead.__subclasses__()]


@pytest.mark.parametrize("has_checks", [True, False])
@pytest.mark.parametrize("kind", LEGITIMATE)
def test_it_is_no_verdict(kind, has_checks, tmp_path):
    answer = kind().run(tmp_path, has_checks)
    assert answer["verdict"] is None, answer["verdict"]
    assert {one["check"] for one in answer["findings"]} <= kind.noticed, answer["findings"]
    if kind is MaxNorm:
        assert any(
            one["check"] == "gap" and one["why"].startswith("tokens.weight: nn.Embedding(max_norm")
            for one in answer["not_checked"]
        )
        assert answer["checked"]["gap"] == (STEPS - 1) * 8


@pytest.mark.parametrize(
    "how", [{"kinds": ["weights"]}, {"checks": True, "include": ["target"]}], ids=str
)
def test_a_target_is_no_verdict_where_no_gradient_is_recorded(how, tmp_path):
    assert LoadsATarget().run(tmp_path, None, **how)["verdict"] is None


@pytest.mark.parametrize(
    "kind",
    [MaxNorm, LoadsAPart, LoadsATarget, ClosureSetsTheRate, StateCleared, NewOptimizer, PutBack],
)
def test_a_weight_that_changes_beside_it_is_found(kind, tmp_path):
    answer = kind().run(tmp_path, True, flip_at=25)
    verdict = answer["verdict"]
    found = verdict["check"], verdict["step"], verdict["tensors"]
    assert found == ("gap", 25, ["head.weight"]), verdict


def test_declared_values_are_those_that_a_closure_set(tmp_path):
    ClosureSetsTheRate().run(tmp_path, False)
    asked = "SELECT step, value FROM declared WHERE name = 'lr'"
    rates = {step: float(value) for step, value in trainmon.query(tmp_path, asked).rows}
    assert rates == {0: 1e-2, **{step: 1e-2 / step for step in range(8, STEPS)}}


# Trainings of two processes with DDP: what they do with gradients -> checks that may say something.
OF_RANKS = {
    "multiplied_by_tokens": {"reduce"},
    "multiplied_by_tokens_from_10": {"reduce"},
    "multiplied_at_times": {"reduce"},
    "power_sgd": set(),
    "post_local_sgd": set(),
    "fp16_compress": set(),
    "own_hook": set(),
    "join": {"gap"},  # it brings the weights of ranks together at the end of an epoch
    "max_norm": set(),
    "replaced_weight_on_all": {"gap"},
    "averages_a_part": {"gap"},
    "compressed_from_10": set(),
    "looks_at_another_gradient": {"reduce"},
    "adds_up_beside": {"reduce"},
    "clipped_by_odd_value": {"reduce"},
    "clipped_each_by_odd_norm": {"reduce"},
    "clipped_adaptively": {"reduce"},
    "bank_of_a_rank": {"replicas", "gap"},
    "head_beside_fsdp2": {"input"},
    "smaller_groups_later": {"input"},  # the DDP that is watched is called no more
    "smaller_groups_later_of_bare": set(),
    "groups_of_one": {"input", "config"},  # batches that come again, a rate that is doubled
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("legitimate")
    names = [f"{prefix}{name}" for name in [*OF_RANKS, "known_hook"] for prefix in ("", "checked_")]
    launch.run("legitimate_run.py", out, *names, ranks=2)
    assert (out / "done.json").exists()
    return out


@pytest.mark.parametrize("prefix", ["", "checked_"])
@pytest.mark.parametrize("name", OF_RANKS)
def test_it_is_no_verdict_of_two_ranks(name, prefix, runs):
    answer = trainmon.diagnose(str(runs / f"{prefix}{name}"))
    assert answer["verdict"] is None, answer["verdict"]
    assert {one["check"] for one in answer["findings"]} <= OF_RANKS[name], answer["findings"]
    why = {one["check"]: one["why"] for one in answer["not_checked"]}
    hook = {
        "power_sgd": "powerSGD_hook", "post_local_sgd": "post_localSGD_hook",
        "fp16_compress": "fp16_compress_hook", "own_hook": "halved",
        "compressed_from_10": "fp16_compress_hook",
    }.get(name)  # fmt: skip
    if hook is not None:
        assert hook in why["reduce"]
        assert ("reduce" in answer["checked"]) == (name == "compressed_from_10")
        is_same = name in ("power_sgd", "fp16_compress", "compressed_from_10")
        assert ("replicas" in answer["checked"]) == is_same
        assert is_same or hook in why["replicas"]
    elif name == "groups_of_one":
        assert "1 of 2 ranks" in why["reduce"] and "1 of 2 ranks" in why["replicas"]
    elif name == "join":
        assert "Join" in why["reduce"] and "Join" in why["replicas"]
        assert not {"reduce", "replicas"} & answer["checked"].keys()
    elif name not in ("head_beside_fsdp2", "averages_a_part"):
        assert answer["checked"]["reduce"] > 0


@pytest.mark.parametrize("prefix", ["", "checked_"])
def test_a_hook_that_says_that_it_is_the_mean_is_held_to_it(prefix, runs):
    verdict = trainmon.diagnose(str(runs / f"{prefix}known_hook"))["verdict"]
    assert (verdict["check"], verdict["step"]) == ("reduce", 15)


def test_moments_of_before_the_step(tmp_path):
    """Gradients of zero at first: there the equations hold for them, too."""
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    keys = {"checks": True, "moments_at": "before_step"}
    with trainmon.watch(model, optimizer, every=1, out=tmp_path, **keys):
        for step in range(12):
            optimizer.zero_grad()
            (model(torch.randn(5, 4)).square().sum() * (step > 5)).backward()
            optimizer.step()
    answer = trainmon.diagnose(str(tmp_path))
    assert answer["findings"] == [] and "exp_avg" not in answer["checked"], answer


@pytest.mark.skipif(
    "decoupled_weight_decay" not in torch.optim.AdamW([nn.Parameter(torch.ones(1))]).defaults,
    reason="AdamW of torch before 2.7 has no such key in its groups",
)
def test_adamw_goes_by_its_group(tmp_path):
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.1)
    with trainmon.watch(model, optimizer, every=1, out=tmp_path, checks=True):
        for step in range(12):
            if step == 8:
                optimizer.param_groups[0]["decoupled_weight_decay"] = False
            optimizer.zero_grad()
            model(torch.randn(5, 4)).square().sum().backward()
            optimizer.step()
    answer = trainmon.diagnose(str(tmp_path))
    assert answer["verdict"] is None, answer["verdict"]
    assert answer["checked"]["update"] == 12 * 2


def step_both(model, optimizer, other, first):
    """With the gradients of one backward; `other` may be None, and comes first if asked to."""
    optimizer.zero_grad()
    model(torch.randn(5, 4)).square().sum().backward()
    steps = [optimizer] if other is None else [optimizer, other]
    for one in reversed(steps) if first else steps:
        one.step()


@pytest.mark.parametrize("first", [False, True])
def test_an_optimizer_of_a_part_that_was_not_given(first, tmp_path):
    """From step 8 on it steps beside the one that is watched. A weight of another part that changes is found."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    other = torch.optim.SGD(model[2].parameters(), 1e-2)
    for flip_at in (None, 12):
        out = tmp_path / str(flip_at)
        with trainmon.watch(model, optimizer, every=1, out=out, checks=True):
            for step in range(16):
                step_both(model, optimizer, other if step >= 8 else None, first)
                if step == flip_at:
                    with torch.no_grad():
                        model[0].weight[1, 2] += 1e-3
        answer = trainmon.diagnose(str(out))
        skipped = [one["why"] for one in answer["not_checked"] if one["check"] == "gap"]
        names = "2.weight, 2.bias"
        assert f"{names}: SGD, which watch() was not given, steps them, too" in skipped
        verdict = answer["verdict"]
        if flip_at is None:
            assert verdict is None, verdict
        else:
            assert (verdict["check"], verdict["tensors"]) == ("gap", ["0.weight"])
            assert verdict["certain"]


def test_moments_that_are_offloaded_are_checked_all_the_same(tmp_path):
    class Loses(MomentsElsewhereBetweenSteps):
        def before(self, step):
            super().before(step)
            if step == 14:
                self.optimizer.state[self.model.head.weight]["exp_avg"][3:] = 0.0

    training = Loses()
    with trainmon.watch(training.model, training.optimizer, every=1, out=tmp_path, checks=True):
        for step in range(STEPS):
            training.before(step)
            training.step(step)
            training.optimizer.zero_grad()
    verdict = trainmon.diagnose(str(tmp_path))["verdict"]
    assert (verdict["check"], verdict["step"]) == ("exp_avg", 14)


def test_an_optimizer_that_was_not_given_steps_a_shared_part_now_and_then(tmp_path):
    """Two heads of one encoder, each with its own optimizer. The second one comes in mid-run."""
    encoder, heads = nn.Linear(8, 8), (nn.Linear(8, 3), nn.Linear(8, 3))
    model = nn.ModuleDict({"encoder": encoder, "first": heads[0], "second": heads[1]})
    optimizers = [
        torch.optim.AdamW([*encoder.parameters(), *head.parameters()], 1e-2) for head in heads
    ]
    with trainmon.watch(model, optimizers[0], every=1, out=tmp_path, checks=True):
        for step in range(60):
            number = int(step > 20 and step % 4 == 3)
            optimizers[number].zero_grad()
            heads[number](encoder(torch.randn(5, 8))).square().mean().backward()
            optimizers[number].step()
    answer = trainmon.diagnose(str(tmp_path))
    assert answer["verdict"] is None, answer["verdict"]
    assert {one["check"] for one in answer["findings"]} == {"present", "exp_avg"}


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_an_optimizer_that_was_not_given_steps_a_part_with_the_same_gradients(
    layers, first, kind, tmp_path
):
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    other = kind(model[4 - layers :].parameters(), 1e-3)
    with trainmon.watch(model, optimizer, every=1, out=tmp_path, checks=True):
        for step in range(24):
            step_both(model, optimizer, other if step >= 8 else None, first)
    answer = trainmon.diagnose(str(tmp_path))
    assert answer["verdict"] is None, answer["verdict"]


@pytest.mark.parametrize("is_given", [True, False])
def test_a_step_that_a_scaler_skips_for_the_second_of_two_optimizers(is_given, tmp_path):
    """One loss overflows by its scale, and the other one does not."""
    torch.manual_seed(0)
    models = {name: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for name in "ab"}
    optimizers = {name: torch.optim.AdamW(one.parameters(), 1e-3) for name, one in models.items()}
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100, growth_interval=3)
    given = {"scaler": scaler} if is_given else {}
    kinds = ["grads", "activations"]
    with trainmon.watch(
        models, optimizers, kinds=kinds, checks=True, every=1, out=tmp_path, **given
    ):
        for _ in range(100):
            x = torch.randn(4, 8)
            for name, optimizer in optimizers.items():
                optimizer.zero_grad()
                loss = (models[name](x) - x).square().mean() * (1e6 if name == "b" else 1.0)
                scaler.scale(loss).backward()
            for optimizer in optimizers.values():
                scaler.step(optimizer)
            scaler.update()
    answer = trainmon.diagnose(str(tmp_path))
    assert answer["verdict"] is None, answer["verdict"]
