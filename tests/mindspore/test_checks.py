# Step checks under MindSpore: sound trainings give no finding, and what is planted is found.
import mlp
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import trainmon

STEPS, AT = 12, 7
OPTIMIZERS = {
    "Adam": lambda parameters: nn.Adam(parameters, 1e-2),
    "Nesterov": lambda parameters: nn.Adam(parameters, 1e-2, use_nesterov=True),
    "AdamWeightDecay": lambda parameters: nn.AdamWeightDecay(parameters, 1e-2, weight_decay=0.1),
    "Momentum": lambda parameters: nn.Momentum(parameters, 1e-2, 0.9),
}


def trained(out, name, plant=None, **keys):
    """The losses; `plant(model, optimizer, monitor)` comes between two steps."""
    model = mlp.net()
    optimizer = OPTIMIZERS[name](model.trainable_params())
    return losses_of(model, optimizer, out, plant, **keys)


def losses_of(model, optimizer, out, plant=None, **keys):
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
    ops.assign(parameter, Tensor(values))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_sound_training_obeys_its_equations(tmp_path, name):
    assert trained(tmp_path, name, checks=True) == trained(None, name)
    found = trainmon.diagnose(str(tmp_path))
    assert found["findings"] == []
    assert found["evidence"]["gap"] == {"fingerprints": 4 * (STEPS - 1)}
    if name == "Nesterov":
        why = [one for one in found["not_checked"] if one["check"].startswith("update")]
        assert any("with use_nesterov is not known" in one["why"] for one in why), why
    else:
        assert found["evidence"]["update"] == {"sketches": 4 * STEPS}
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


def test_names_with_gamma_and_beta_do_not_decay(tmp_path):
    model = nn.SequentialCell(nn.Dense(6, 5), nn.LayerNorm((5,)), nn.Dense(5, 3)).set_train()
    optimizer = nn.AdamWeightDecay(model.trainable_params(), 1e-2, weight_decay=0.1)
    losses_of(model, optimizer, tmp_path, checks=True)
    found = trainmon.diagnose(str(tmp_path))
    assert found["findings"] == [] and found["evidence"]["update"] == {"sketches": 6 * STEPS}
    rows = trainmon.read(str(tmp_path), kinds="update").drop_duplicates("name")
    groups = dict(zip(rows["name"], rows["element"]))
    assert {groups[n] for n in groups if "gamma" in n or "beta" in n} == {"AdamWeightDecay.1"}


def test_set_data_cuts_a_weight_off_from_its_optimizer(tmp_path):
    """MindSpore's own: from then on no step moves it, watched or not."""

    def plant(model, _, mon):
        with mon.edits("the same values"):
            model.fc1.weight.set_data(Tensor(model.fc1.weight.asnumpy().copy()))

    trained(tmp_path, "Adam", plant, checks=True)
    verdict = trainmon.diagnose(str(tmp_path))["verdict"]
    assert (verdict["check"], verdict["step"]) == ("update", AT)
    assert verdict["tensors"] == ["fc1.weight"]


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


@pytest.mark.parametrize("name", ["Adam", "AdamWeightDecay", "Momentum"])
def test_a_weight_that_a_step_leaves_out_is_found(tmp_path, name):
    """From outside: the hook of the optimizer that comes before trainmon's takes the step back."""
    model = mlp.net()
    optimizer = OPTIMIZERS[name](model.trainable_params())
    weight, kept = model.fc2.weight, []
    count = iter(range(STEPS))

    def before(*_):
        kept.append(weight.asnumpy().copy())

    def after(*_):
        if next(count) == AT:
            weight.set_data(Tensor(kept[-1]))

    optimizer.register_forward_pre_hook(before)
    optimizer.register_forward_hook(after)
    losses_of(model, optimizer, tmp_path, checks=True)
    verdict = trainmon.diagnose(str(tmp_path))["verdict"]
    assert (verdict["check"], verdict["step"]) == ("update", AT)
    assert verdict["tensors"] == ["fc2.weight"] and verdict["certain"]


def test_a_decay_that_some_parameters_have_is_that_of_their_group(tmp_path):
    model = mlp.net()
    biases = [p for p in model.trainable_params() if "bias" in p.name]
    others = [p for p in model.trainable_params() if "bias" not in p.name]
    groups = [{"params": others, "weight_decay": 0.1}, {"params": biases}]
    optimizer = nn.AdamWeightDecay(groups, 1e-2)
    losses_of(model, optimizer, tmp_path, checks=True)
    found = trainmon.diagnose(str(tmp_path))
    assert found["findings"] == [] and found["evidence"]["update"] == {"sketches": 4 * STEPS}
    elements = set(trainmon.read(str(tmp_path), kinds="update")["element"])
    assert elements == {"AdamWeightDecay.0", "AdamWeightDecay.1"}


def test_what_is_not_checked_is_named(tmp_path):
    trained(tmp_path, "Adam", checks=True)
    why = [one["why"] for one in trainmon.diagnose(str(tmp_path))["not_checked"]]
    for kind in ("input", "input_entropy"):
        assert f"{kind}: not offered under MindSpore" in why
