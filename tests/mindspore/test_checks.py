# Step checks under MindSpore: sound trainings give no finding, and what is planted is found.
import mlp
import numpy as np
import pytest
from mindspore import Tensor, jit, nn, ops, value_and_grad

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


def inputs_of(out):
    """By step, call and element: norm and count of what the model was given."""
    rows = trainmon.read(str(out), kinds="input")
    return {
        (row.step, row.call, row.element): (row.norm, row["count"]) for _, row in rows.iterrows()
    }


def test_what_the_model_is_given_has_rows(tmp_path):
    """The oracle is NumPy."""
    trained(tmp_path, "Adam", checks=True)
    found = inputs_of(tmp_path)
    assert set(found) == {(step, 0, "input.0") for step in range(STEPS)}
    for step in range(STEPS):
        given = mlp.batch(step)[0]
        assert found[step, 0, "input.0"] == (pytest.approx(np.linalg.norm(given)), given.size)
    checked = trainmon.diagnose(str(tmp_path))
    assert checked["checked"]["input"] == STEPS and checked["findings"] == []


class Ids(nn.Cell):
    """A model that is given ids and, by name, a mask."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 4)
        self.out = nn.Dense(4, 16)

    def construct(self, ids, mask=None):
        return self.out(self.table(ids) * mask.expand_dims(-1))


def ids_of(step):
    return np.random.RandomState(step).randint(0, 16, (4, 8)).astype(np.int32)


def trained_on_ids(out, batch=ids_of, evaluates=False, **keys):
    model = Ids().set_train()
    optimizer = nn.Adam(model.trainable_params(), 1e-3)
    mask = Tensor(np.ones((4, 8), np.float32))

    def loss(ids):
        return (model(ids, mask=mask) ** 2).mean()

    grad = value_and_grad(loss, None, optimizer.parameters)
    with trainmon.watch(model, optimizer, every=1, out=str(out), checks=True, **keys):
        for step in range(24):
            if evaluates:  # without set_train(False)
                model(Tensor(ids_of(0)), mask=mask)
            _, gradients = grad(Tensor(batch(step)))
            optimizer(gradients)
    return trainmon.diagnose(str(out))


def test_ids_have_an_entropy(tmp_path):
    found = trained_on_ids(tmp_path, evaluates=True)
    assert found["verdict"] is None and found["checked"]["input"] > 0
    assert {key[1:] for key in inputs_of(tmp_path)} == {(0, "input.0"), (0, "input.mask")}
    rows = trainmon.read(str(tmp_path), kinds="input_entropy").sort_values("step")
    assert len(rows) == 24 and set(rows["element"]) == {"input.0"}
    for step, bits in enumerate(rows["mean"]):
        _, counts = np.unique(ids_of(step), return_counts=True)
        shares = counts / counts.sum()
        assert bits == pytest.approx(-(shares * np.log2(shares)).sum(), rel=1e-6)


def test_a_loader_that_is_stuck_is_found(tmp_path):
    alerts = []
    found = trained_on_ids(tmp_path, lambda step: ids_of(min(step, 14)), on_alert=alerts.append)
    verdict = found["verdict"]
    assert (verdict["check"], verdict["step"], verdict["certain"]) == ("input", 15, True)
    assert [one["rule"] for one in alerts][:1] == ["input"]


def test_operations_measure_what_the_model_is_given(tmp_path):
    trained_on_ids(tmp_path, backend="ops")
    found = inputs_of(tmp_path)
    for step in range(24):
        norm, count = found[step, 0, "input.0"]
        assert norm == pytest.approx(np.linalg.norm(ids_of(step).astype(float)), rel=1e-5)
        assert count == 32
    why = trainmon.diagnose(str(tmp_path))["not_checked"]
    assert any("the entropy of input input.0" in one["why"] for one in why), why


def test_a_forward_that_is_compiled_is_said(tmp_path):
    model = mlp.net()
    optimizer = nn.Adam(model.trainable_params(), 1e-2)
    grad = jit(mlp.gradients_of(model, optimizer))
    with trainmon.watch(model, optimizer, every=1, out=str(tmp_path), checks=True):
        for step in range(2):
            optimizer(grad(*map(Tensor, mlp.batch(step)))[1])
    why = [one["why"] for one in trainmon.diagnose(str(tmp_path))["not_checked"]]
    assert any(one.startswith("input: no forward was seen in the first step") for one in why), why
