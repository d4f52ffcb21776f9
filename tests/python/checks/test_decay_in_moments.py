"""exp_avg where a weight decay is part of the gradient: torch's own steps obey it, and what does not is named."""

import pytest
import torch
from torch import nn, optim

import trainmon

DECAY = 0.1
KINDS = {
    "Adam": (optim.Adam, {"foreach": False}),
    "Adam, foreach": (optim.Adam, {"foreach": True}),
    "Adam, fused": (optim.Adam, {"fused": True}),
    "Adam, maximize": (optim.Adam, {"maximize": True}),
    "Adam, amsgrad": (optim.Adam, {"amsgrad": True}),
    "RAdam": (optim.RAdam, {}),
    "NAdam": (optim.NAdam, {}),
}
# Adam of older versions does not say where it decays.
SAYS_WHERE = "decoupled_weight_decay" in optim.Adam([torch.ones(1)]).defaults


def trained(out, kind, values, dtype=torch.float32, before=None, steps=40):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 40), nn.Tanh(), nn.Linear(40, 1)).to(dtype)
    weights = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": weights}, {"params": others, "weight_decay": 0.0}]
    optimizer = kind(groups, lr=0.01, weight_decay=DECAY, **values)
    with trainmon.watch(model, optimizer, checks=True, every=1, out=str(out)):
        for step in range(steps):
            optimizer.zero_grad()
            model(torch.randn(16, 9).to(dtype)).float().pow(2).mean().backward()
            if before is not None:
                before(model, step)
            optimizer.step()
    return trainmon.diagnose(str(out))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", KINDS)
def test_sound_steps_obey_it(name, dtype, tmp_path):
    kind, values = KINDS[name]
    answer = trained(tmp_path, kind, values, dtype)
    assert answer["findings"] == []
    all_tensors = SAYS_WHERE or kind is not optim.Adam
    assert answer["evidence"]["exp_avg"] == {"sketches": (4 if all_tensors else 2) * 39}
    assert answer["evidence"]["exp_avg_sq"] == {"statistics": 2 * 39}
    whys = {one["check"]: one["why"] for one in answer["not_checked"]}
    assert whys["exp_avg_sq"] == "weight_decay may be part of the gradient: 78 times"
    assert ("exp_avg" in whys) != all_tensors


@pytest.mark.skipif(not SAYS_WHERE, reason="this Adam does not say where it decays: NOT TESTED")
def test_a_decay_that_is_left_out_is_named(tmp_path, monkeypatch):
    number, step_of_torch = [0], optim.Adam.step

    def stepping(self, closure=None):
        if number[0] == 20:
            weight = self.param_groups[0]["params"][1]
            weight.grad.sub_(weight.detach(), alpha=DECAY)  # after it was recorded
        return step_of_torch(self, closure)

    monkeypatch.setattr(optim.Adam, "step", stepping)
    answer = trained(
        tmp_path,
        optim.Adam,
        {"foreach": False},
        before=lambda model, step: number.__setitem__(0, step),
    )
    verdict = answer["verdict"]
    assert (verdict["check"], verdict["step"], verdict["tensors"]) == ("exp_avg", 20, ["2.weight"])
    assert verdict["certain"] and verdict["value"] > verdict["bound"] > 0
