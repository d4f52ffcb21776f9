"""A run is started again with the weights of a checkpoint and with moments that are not those beside them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import trainmon

SAVED, STEPS = 20, 8


class Training:
    def __init__(self, kind=torch.optim.AdamW, names=None):
        torch.manual_seed(4)
        self.model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)), nn.Linear(16, 4))
        table = dict(self.model.named_parameters())
        self.optimizer = kind([table[name] for name in names or table], lr=3e-3)

    def state(self):
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def load(self, state):
        self.model.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])

    def run(self, out, steps, state=None, has_checks=True):
        how = {"checks": True} if has_checks else {"kinds": ["grads", "weights", "moments"]}
        kept = None
        with trainmon.watch(self.model, self.optimizer, every=1, out=str(out), **how):
            if state is not None:
                self.load(state)
            for step in steps:
                if step == SAVED:
                    kept = self.state()
                x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
                self.optimizer.zero_grad()
                (self.model(x) - x[:, :4].sin()).square().mean().backward()
                self.optimizer.step()
        return kept


def answer_of(out, again, change=None, has_checks=True):
    """The first start goes on for some steps after the checkpoint."""
    state = Training().run(out, range(SAVED + 3), has_checks=has_checks)
    if change:
        change(state)
    again.run(out, range(SAVED, SAVED + STEPS), state, has_checks)
    return trainmon.diagnose(str(out))


@pytest.mark.parametrize("has_checks", [True, False])
def test_moments_loaded_in_another_order_are_noticed(tmp_path, has_checks):
    names = [name for name, _ in Training().model.named_parameters()]
    order = (
        names[4:6] + names[2:4] + names[:2] + names[6:]
    )  # the first layer and the third change places
    answer = answer_of(tmp_path, Training(names=order), has_checks=has_checks)
    assert answer["verdict"] is None
    (one,) = answer["findings"]
    assert (one["step"], one["restart"], one["stage"]) == (SAVED, 1, "moments")
    assert set(one["tensors"]) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert one["text"].endswith(
        "with the weights that restart 0 left, but not with its moments; "
        "those of other tensors were loaded: 0.weight has those of 2.weight"
    ), one


class HalfWeights(Training):
    """Weights in bfloat16, whose optimizer keeps moments in float32 and does not load them so."""

    class Optimizer(torch.optim.Optimizer):
        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr})

        @torch.no_grad()
        def step(self):
            for weight in self.param_groups[0]["params"]:
                state, gradient = self.state[weight], weight.grad.float()
                if not state:
                    state["exp_avg"] = torch.zeros_like(gradient)
                    state["exp_avg_sq"] = torch.zeros_like(gradient)
                state["step"] = state.get("step", 0) + 1
                state["exp_avg"].lerp_(gradient.to(state["exp_avg"].dtype), 0.1)
                state["exp_avg_sq"].lerp_(gradient.square().to(state["exp_avg_sq"].dtype), 0.01)
                moved = state["exp_avg"].float() / (state["exp_avg_sq"].float().sqrt() + 1e-8)
                weight -= self.param_groups[0]["lr"] * moved.to(weight.dtype)

    def __init__(self):
        super().__init__(self.Optimizer)
        self.model.bfloat16()

    def run(self, out, steps, state=None, has_checks=True):
        self.model.register_forward_pre_hook(lambda _, args: args[0].bfloat16())
        return super().run(out, steps, state, has_checks)


@pytest.mark.parametrize("is_restored", [False, True])
def test_moments_loaded_in_another_dtype_are_noticed(tmp_path, is_restored):
    state = HalfWeights().run(tmp_path / "run", range(SAVED + 1))
    again = HalfWeights()
    load = again.load

    def restored(state):
        load(state)
        for one in again.optimizer.state.values():
            one.update(exp_avg=one["exp_avg"].float(), exp_avg_sq=one["exp_avg_sq"].float())

    again.load = restored if is_restored else load
    again.run(tmp_path / "run", range(SAVED, SAVED + STEPS), state)
    found = trainmon.diagnose(str(tmp_path / "run"))["findings"]
    of_dtypes = [
        one for one in found if "moments in bfloat16, which were in float32" in one["text"]
    ]
    assert len(of_dtypes) == (0 if is_restored else 1), found
    for one in of_dtypes:
        assert (one["check"], one["step"], one["restart"]) == ("config", SAVED, 1)
        assert len(one["tensors"]) == 8 and not one["certain"]


def test_moments_that_begin_at_zero_are_noticed(tmp_path):
    def clear(state):
        for one in state[1]["state"].values():
            one["exp_avg"].zero_()
            one["exp_avg_sq"].zero_()

    answer = answer_of(tmp_path, Training(), clear)
    assert answer["verdict"] is None
    (one,) = answer["findings"]
    assert (one["step"], one["restart"], len(one["tensors"])) == (SAVED, 1, 8)
    assert one["text"].endswith(
        "they begin at zero, as where the state of the optimizer was not loaded"
    )


@pytest.mark.parametrize("has_checks", [True, False])
def test_moments_that_go_on_are_nothing(tmp_path, has_checks):
    answer = answer_of(tmp_path, Training(), has_checks=has_checks)
    assert answer["findings"] == []


def test_an_optimizer_of_another_class_is_nothing(tmp_path):
    def clear(state):
        for one in state[1]["state"].values():
            one["exp_avg"].zero_()
            one["exp_avg_sq"].zero_()
            one["mu_product"] = torch.ones(())
        state[1]["param_groups"][0] |= {"momentum_decay": 4e-3, "decoupled_weight_decay": True}

    answer = answer_of(tmp_path, Training(torch.optim.NAdam), clear)
    assert answer["findings"] == []
