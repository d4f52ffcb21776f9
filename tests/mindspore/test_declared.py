# What optimizers of MindSpore say of their groups: recorded when it changes, as the training uses it.
import math

import mindspore as ms
import mlp
import numpy as np
import pytest
from mindspore import Tensor, nn

import trainmon

STEPS = 5


def run(out, optimizer, model, change=None):
    """{(group, name): [(step, value)]}, of a training whose `change(step)` is called before each step."""
    grad = mlp.gradients_of(model, optimizer)
    with trainmon.watch(model, optimizer, out=str(out)) as mon:
        for step in range(STEPS):
            if change is not None:
                change(step)
            optimizer(grad(*map(Tensor, mlp.batch(step)))[1])
        health = mon.stop()
    assert health["parts_off"] == {}
    table = trainmon.read_table(str(out)).declared
    found = {}
    for line in zip(*table.values(), strict=True):
        told = dict(zip(table, line, strict=True))
        place = found.setdefault((told["param_group"], told["name"]), [])
        place.append((told["step"], told["value"]))
    return found


def changes(values):
    """Where a list of float32 numbers, one for each step, differs from the one before."""
    values = [float(np.float32(value)) for value in values]
    return [(s, v) for s, v in enumerate(values) if s == 0 or values[s - 1] != v]


def test_constant_numbers_are_told_once(tmp_path):
    model = mlp.net()
    optimizer = nn.Adam(
        model.trainable_params(), 0.01, beta1=0.8, eps=1e-6, weight_decay=0.5, use_nesterov=True
    )
    told = run(tmp_path, optimizer, model)
    expected = {"lr": 0.01, "weight_decay": 0.5, "beta1": 0.8, "beta2": 0.999, "eps": 1e-6}
    for name, value in expected.items():
        assert told[0, name] == changes([value] * STEPS), name
    assert told[0, "use_nesterov"] == [(0, 1.0)]


def test_a_list_of_learning_rates(tmp_path):
    model, rates = mlp.net(), [0.1, 0.1, 0.05, 0.05, 0.01]
    told = run(tmp_path, nn.Momentum(model.trainable_params(), rates, 0.9), model)
    assert told[0, "lr"] == changes(rates)
    assert told[0, "momentum"] == changes([0.9] * STEPS)


def test_a_schedule_that_is_a_cell(tmp_path):
    model = mlp.net()
    schedule = nn.CosineDecayLR(0.01, 0.1, 4)
    told = run(tmp_path, nn.AdamWeightDecay(model.trainable_params(), schedule), model)
    expected = [
        0.01 + 0.5 * 0.09 * (1 + math.cos(math.pi * min(step, 4) / 4)) for step in range(STEPS)
    ]
    assert [step for step, _ in told[0, "lr"]] == list(range(STEPS))
    np.testing.assert_allclose([value for _, value in told[0, "lr"]], expected, rtol=1e-6)


def test_groups(tmp_path):
    model = mlp.net()
    first, second = (
        [p for p in model.trainable_params() if p.name.startswith(n)] for n in ("fc1", "fc2")
    )
    rates = Tensor(np.array([0.1, 0.2, 0.3, 0.4, 0.5], np.float32))
    groups = [
        {"params": first, "weight_decay": 0.25, "lr": rates},
        {"params": second, "lr": 0.01},
    ]
    told = run(tmp_path, nn.AdamWeightDecay(groups, 0.5, weight_decay=0.125), model)
    assert told[0, "lr"] == changes(rates.asnumpy())
    # Beside a group with a list MindSpore takes a constant through x + 1 - 1, in float32.
    assert told[1, "lr"] == changes([np.float32(0.01) + np.float32(1) - np.float32(1)] * STEPS)
    assert told[0, "weight_decay"] == [(0, 0.25)] and told[1, "weight_decay"] == [(0, 0.125)]
    assert {group for group, _ in told} == {0, 1}


def test_a_rate_that_is_assigned(tmp_path):
    model = mlp.net()
    optimizer = nn.SGD(model.trainable_params(), 0.1)

    def change(step):
        if step == 3:
            optimizer.learning_rate.set_data(Tensor(0.025, ms.float32))

    assert run(tmp_path, optimizer, model, change)[0, "lr"] == changes([0.1] * 3 + [0.025] * 2)


@pytest.mark.parametrize("name", ["experimental", "mint"])
def test_optimizers_with_dicts(tmp_path, name):
    model = mlp.net()
    if name == "mint":
        from mindspore.mint import optim
    else:
        from mindspore.experimental import optim
    # The kernel of mint's AdamW is not there on a CPU.
    make = optim.SGD if name == "mint" else optim.AdamW
    optimizer = make(model.trainable_params(), lr=0.1, weight_decay=0.5)

    def change(step):
        if step == 2:
            ms.ops.assign(optimizer.param_groups[0]["lr"], Tensor(0.05, ms.float32))

    told = run(tmp_path, optimizer, model, change)
    assert told[0, "lr"] == changes([0.1] * 2 + [0.05] * 3)
    assert told[0, "weight_decay"] == [(0, 0.5)]
    if name == "experimental":
        assert told[0, "betas.0"] == [(0, 0.9)] and told[0, "betas.1"] == [(0, 0.999)]


def test_training_is_as_it_was():
    """Reading a schedule changes nothing of the training."""
    ends = []
    for watched in (False, True):
        model = mlp.net()
        optimizer = nn.Adam(model.trainable_params(), nn.CosineDecayLR(0.01, 0.1, 4))
        grad = mlp.gradients_of(model, optimizer)
        monitor = trainmon.watch(model, optimizer, sinks=[]) if watched else None
        for step in range(STEPS):
            optimizer(grad(*map(Tensor, mlp.batch(step)))[1])
        if monitor is not None:
            monitor.stop()
        ends.append([mlp.copy_of(parameter) for parameter in model.trainable_params()])
    for bare, seen in zip(*ends, strict=True):
        np.testing.assert_array_equal(bare, seen)
