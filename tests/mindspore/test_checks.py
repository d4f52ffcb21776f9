# Step checks under MindSpore: sound trainings give no finding, and what is planted is found.
import mlp
import numpy as np
import pytest
from mindspore import Tensor, nn

import trainmon

STEPS, AT = 12, 7
OPTIMIZERS = {
    "Adam": lambda parameters: nn.Adam(parameters, 1e-2, use_nesterov=True),
    "AdamWeightDecay": lambda parameters: nn.AdamWeightDecay(parameters, 1e-2, weight_decay=0.1),
    "Momentum": lambda parameters: nn.Momentum(parameters, 1e-2, 0.9),
}


def trained(out, name, plant=None, **keys):
    """The losses; `plant(model, optimizer)` comes between two steps."""
    model = mlp.net()
    optimizer = OPTIMIZERS[name](model.trainable_params())
    grad = mlp.gradients_of(model, optimizer)
    mon = trainmon.watch(model, optimizer, every=1, out=str(out), **keys) if out else None
    losses = []
    for step in range(STEPS):
        if plant is not None and step == AT:
            plant(model, optimizer, mon)
        loss, gradients = grad(*map(Tensor, mlp.batch(step)))
        losses.append(float(loss))
        optimizer(gradients)
    if mon:
        mon.stop()
    return losses


def flip(parameter, element=1):
    """The lowest bit of one element."""
    values = parameter.asnumpy().copy()
    values.reshape(-1).view(np.uint32)[element] ^= 1
    parameter.set_data(Tensor(values))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_sound_training_obeys_its_equations(tmp_path, name):
    assert trained(tmp_path, name, checks=True) == trained(None, name)
    found = trainmon.diagnose(str(tmp_path))
    assert found["findings"] == []
    assert found["evidence"]["gap"] == {"fingerprints": 4 * (STEPS - 1)}
    if name == "Momentum":
        return
    for check, evidence in (("exp_avg", "sketches"), ("exp_avg_sq", "statistics")):
        assert found["evidence"][check] == {evidence: 4 * (STEPS - 1)}, check


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_flipped_bit_of_a_weight_is_a_gap(tmp_path, name):
    alerts = []
    trained(
        tmp_path,
        name,
        lambda model, *_: flip(model.fc1.weight),
        checks=True,
        on_alert=alerts.append,
    )
    verdict = trainmon.diagnose(str(tmp_path))["verdict"]
    assert (verdict["check"], verdict["step"], verdict["tensors"]) == ("gap", AT, ["fc1.weight"])
    assert alerts[0]["rule"] == "gap"


def test_an_announced_edit_is_no_gap(tmp_path):
    def plant(model, _, mon):
        with mon.edits("a bit is flipped"):
            flip(model.fc1.weight)

    trained(tmp_path, "Adam", plant, checks=True)
    assert trainmon.diagnose(str(tmp_path))["findings"] == []


@pytest.mark.parametrize("kind", ["exp_avg", "exp_avg_sq"])
@pytest.mark.parametrize("name", ["Adam", "AdamWeightDecay"])
def test_a_lost_moment_is_found(tmp_path, name, kind):
    def plant(model, optimizer, _):
        first, second = {
            "Adam": ("moment1", "moment2"), "AdamWeightDecay": ("moments1", "moments2"),
        }[name]  # fmt: skip
        lost = getattr(optimizer, first if kind == "exp_avg" else second)[2]
        lost.set_data(Tensor(np.zeros_like(lost.asnumpy())))

    trained(tmp_path, name, plant, checks=True)
    verdict = trainmon.diagnose(str(tmp_path))["verdict"]
    assert (verdict["check"], verdict["step"], verdict["tensors"]) == (kind, AT, ["fc2.weight"])


def test_what_is_not_checked_is_named(tmp_path):
    trained(tmp_path, "Adam", checks=True)
    why = [one["why"] for one in trainmon.diagnose(str(tmp_path))["not_checked"]]
    for kind in ("update", "input", "input_entropy"):
        assert f"{kind}: not offered under MindSpore" in why
