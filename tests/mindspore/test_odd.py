# Watched models of MindSpore that are copied, fail in a forward, or hold odd tensors.
import copy

import mindspore as ms
import mlp
import numpy as np
import pytest
from mindspore import Tensor, nn

import trainmon

KINDS = ["grad_micro", "grads", "weights", "moments", "activations", "mg_direction"]


def test_a_copy_of_a_watched_model_works_and_gives_no_row(tmp_path):
    """An average of weights, say. MindSpore itself cannot copy a cell that has a backward hook."""
    model = mlp.net()
    optimizer = mlp.adamw(model)
    seen = []
    model.fc2.register_backward_hook(lambda cell, *_: seen.append(cell))
    mon = trainmon.watch(model, optimizer, kinds=KINDS, out=str(tmp_path))
    mlp.train(model, optimizer, steps=1)
    rows = mon._core.health()["rows_produced"]
    other = copy.deepcopy(model)
    x, y = map(Tensor, mlp.batch(0))
    grad = ms.value_and_grad(
        lambda x, y: ((other(x) - y) ** 2).mean(), None, other.trainable_params()
    )
    for _ in range(2):
        grad(x, y)
    assert mon._core.health()["rows_produced"] == rows
    assert any(cell is other.fc2 for cell in seen)  # hooks of the user are copied, as on PyTorch
    mlp.train(model, optimizer, steps=1)
    assert mon.stop()["parts_off"] == {}
    copy.deepcopy(model)
    found = trainmon.read(str(tmp_path))
    assert len(found[found.step == 0]) == len(found[(found.step == 1)]) - 4  # directions


def test_a_forward_that_raises_leaves_nothing_behind(tmp_path):
    model = mlp.net()
    optimizer = mlp.adamw(model)
    mon = trainmon.watch(model, optimizer, kinds=KINDS, out=str(tmp_path))
    for _ in range(3):
        with pytest.raises(ValueError):
            model(Tensor(np.ones((4, 9), np.float32)))
    mlp.train(model, optimizer, steps=1, micro=1)
    assert all(not watched.open for watched in mon._adapter.activations.watched)
    assert mon.stop()["parts_off"] == {}
    rows, (seen,) = trainmon.read(str(tmp_path)), mlp.oracle(1, 1)
    (row,) = rows[
        (rows.kind == "actv") & (rows.name == "fc2") & (rows.element == "output")
    ].to_dict("records")
    mlp.check(row, seen["values"][0]["out"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: (nn.Dense(4, 3).to_float(ms.float16), np.ones((2, 4), np.float16)),
        lambda: (nn.Dense(4, 3, dtype=ms.float16), np.ones((2, 4), np.float16)),
        lambda: (nn.Dense(4, 3), np.ones((0, 4), np.float32)),
        lambda: (nn.Dense(2000, 2000), np.ones((64, 2000), np.float32)),
        lambda: (
            nn.SequentialCell(nn.Embedding(10, 4), nn.Dense(4, 2)),
            np.arange(6, dtype=np.int32).reshape(2, 3),
        ),
    ],
    ids=["float16 computation", "float16 parameters", "empty batch", "huge", "integers"],
)
def test_odd_tensors(tmp_path, make):
    model, x = make()
    optimizer = nn.Adam(model.set_train().trainable_params(), 0.1)
    before = {p.name: mlp.copy_of(p).astype(float) for p in optimizer.parameters}
    grad = ms.value_and_grad(
        lambda x: model(x).astype(ms.float32).sum(), None, optimizer.parameters
    )
    with trainmon.watch(model, optimizer, kinds=KINDS, out=str(tmp_path)) as mon:
        gradients = grad(Tensor(x))[1]
        expected = [mlp.copy_of(one).astype(float) for one in gradients]
        optimizer(gradients)
        health = mon.stop()
    assert health["parts_off"] == {} and health["refused"] == {}
    rows = trainmon.read(str(tmp_path))
    for parameter, value in zip(optimizer.parameters, expected, strict=True):
        for kind, wanted in (("grad_reduced", value), ("param_origin", before[parameter.name])):
            (row,) = rows[(rows.kind == kind) & (rows.name == parameter.name)].to_dict("records")
            mlp.check(row, wanted)
    (row,) = rows[(rows.kind == "actv") & (rows.name == "") & (rows.element == "input.0")].to_dict(
        "records"
    )
    mlp.check(row, x.astype(float)) if x.size else None
    assert row["count"] == x.size


def test_a_choice_of_blocks_is_refused(tmp_path):
    model = mlp.net()
    with pytest.raises(ValueError, match='modules="blocks" is not offered under MindSpore'):
        trainmon.watch(model, mlp.adamw(model), modules="blocks", out=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
