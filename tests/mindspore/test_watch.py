# trainmon.watch on MindSpore: every kind against the NumPy training of mlp.py.
import glob
import json
import os
import subprocess
import sys

import mindspore as ms
import mlp
import numpy as np
import pytest
from mindspore import Tensor, nn

import trainmon

KINDS = ["grad_micro", "grad_unreduced", "grads", "weights", "moments", "activations"]


def run_json(out) -> dict:
    (path,) = glob.glob(f"{out}/rank_00000/restart_*/run.json")
    with open(path) as file:
        return json.load(file)


def one(rows, **wanted):
    for key, value in wanted.items():
        rows = rows[rows[key] == value]
    assert len(rows) == 1, (wanted, len(rows))
    return rows.iloc[0]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    out = str(tmp_path_factory.mktemp("run"))
    model = mlp.net()
    optimizer = mlp.adamw(model)
    with trainmon.watch(model, optimizer, kinds=KINDS, out=out) as mon:
        mlp.train(model, optimizer)
        health = mon.stop()
    assert health["refused"] == {} and health["parts_off"] == {}
    return out, trainmon.read(out), mlp.oracle()


@pytest.mark.parametrize(
    "kind", ["grad_reduced", "param_origin", "param_updated", "exp_avg", "exp_avg_sq"]
)
def test_around_the_step(watched, kind):
    _, rows, oracle = watched
    for step, seen in enumerate(oracle):
        for name, expected in seen[kind].items():
            mlp.check(one(rows, kind=kind, name=name, step=step), expected)
    assert len(rows[rows.kind == kind]) == 3 * 4


@pytest.mark.parametrize("kind", ["grad_micro", "grad_unreduced"])
def test_gradients_of_each_backward(watched, kind):
    _, rows, oracle = watched
    for step, seen in enumerate(oracle):
        for accum, gradients in enumerate(seen["micro"]):
            for name, expected in gradients.items():
                mlp.check(one(rows, kind=kind, name=name, step=step, accum=accum), expected)
    assert len(rows[rows.kind == kind]) == 3 * 2 * 4


def test_activations_and_their_gradients(watched):
    _, rows, oracle = watched
    places = {
        ("", "input.0"): "x",
        ("fc1", "input.0"): "x",
        ("fc1", "output"): "a1",
        ("act", "input.0"): "a1",
        ("act", "output"): "h",
        ("fc2", "input.0"): "h",
        ("fc2", "output"): "out",
        ("", "output"): "out",
    }
    seen_rows = 0
    for step, seen in enumerate(oracle):
        for accum in range(2):
            for (name, element), key in places.items():
                where = {"name": name, "element": element, "step": step, "accum": accum, "call": 0}
                mlp.check(one(rows, kind="actv", **where), seen["values"][accum][key])
                seen_rows += 1
                if key != "x":  # no gradient is asked for what goes in
                    mlp.check(one(rows, kind="actv_grad", **where), seen["flows"][accum][key])
                    seen_rows += 1
    assert len(rows[rows.kind.isin(["actv", "actv_grad"])]) == seen_rows


def test_a_cell_called_twice_has_a_row_for_each_call(tmp_path):
    fc = nn.Dense(3, 3)
    model = nn.SequentialCell(fc, nn.ReLU(), fc).set_train()
    w, b = mlp.copy_of(fc.weight).astype(float), mlp.copy_of(fc.bias).astype(float)
    optimizer = nn.SGD(model.trainable_params(), 0.1)
    x = np.random.RandomState(0).randn(2, 3).astype(np.float32)
    grad = ms.value_and_grad(lambda x: model(x).sum(), None, optimizer.parameters)
    with trainmon.watch(model, optimizer, kinds=["actv", "actv_grad"], out=str(tmp_path)):
        optimizer(grad(Tensor(x))[1])
    rows = trainmon.read(str(tmp_path))
    first = x @ w.T + b
    second = np.maximum(first, 0) @ w.T + b
    flow = np.ones((2, 3))
    for call, value in enumerate([first, second]):
        mlp.check(one(rows, kind="actv", name="0", element="output", call=call), value)
    mlp.check(one(rows, kind="actv_grad", name="0", element="output", call=1), flow)
    back = (flow @ w) * (first > 0)
    mlp.check(one(rows, kind="actv_grad", name="0", element="output", call=0), back)


def test_losses_weights_and_random_state_are_as_without(tmp_path):
    """Without Dropout: under it MindSpore itself gives one of two losses, watched or not."""
    found = []
    for is_watched in (False, True):
        ms.set_seed(3)
        ms.manual_seed(5)
        model = mlp.net()
        optimizer = mlp.adamw(model)
        mon = (
            trainmon.watch(model, optimizer, kinds=KINDS, out=str(tmp_path)) if is_watched else None
        )
        losses = mlp.train(model, optimizer)
        if mon is not None:
            assert mon.stop()["rows_produced"] > 100
        values = [mlp.copy_of(p) for p in (*model.get_parameters(), *optimizer.get_parameters())]
        values += [mlp.copy_of(ms.get_rng_state()), mlp.copy_of(ms.ops.rand(4)), np.random.rand(4)]
        found.append((losses, values))
    (losses, values), (losses2, values2) = found
    assert losses == losses2
    assert all(np.array_equal(a, b) for a, b in zip(values, values2, strict=True))


def test_stop_takes_every_hook_off(tmp_path):
    model = mlp.net()
    optimizer = mlp.adamw(model)
    mon = trainmon.watch(model, optimizer, kinds=KINDS, out=str(tmp_path))
    mlp.train(model, optimizer, steps=1)
    rows = mon.stop()["rows_produced"]
    mlp.train(model, optimizer, steps=1)
    assert mon.health()["rows_produced"] == rows
    for cell in [optimizer, *(cell for _, cell in model.cells_and_names())]:
        assert not (cell._forward_pre_hook or cell._forward_hook or cell._backward_hook)


def test_a_failing_hook_leaves_training_alone(tmp_path, monkeypatch):
    model = mlp.net()
    optimizer = mlp.adamw(model)
    expected = mlp.train(mlp.net(), mlp.adamw(mlp.net()), steps=1)[:1]
    mon = trainmon.watch(model, optimizer, kinds=KINDS, out=str(tmp_path))

    def fails(*_):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(mon._adapter.selection, "outputs", fails)
    losses = mlp.train(model, optimizer)
    assert losses[:1] == expected
    assert "ZeroDivisionError" in mon.stop()["parts_off"]["activations"]
    assert (trainmon.read(str(tmp_path)).kind == "param_updated").sum() == 12


@pytest.mark.parametrize(
    ("make", "kinds"),
    [
        (lambda p: nn.Adam(p, 0.1), {"exp_avg": "moment1", "exp_avg_sq": "moment2"}),
        (lambda p: nn.Momentum(p, 0.1, 0.9), {"moments": "moments"}),
        (lambda p: nn.SGD(p, 0.1, momentum=0.9), {"accum": "accum"}),
        (lambda p: nn.RMSProp(p, 0.1), {"ms": "ms", "moment": "moment"}),
        (lambda p: nn.Adagrad(p, learning_rate=0.1), {"accum": "accum"}),
    ],
)
def test_state_of_other_optimizers(tmp_path, make, kinds):
    model = mlp.net()
    optimizer = make(model.trainable_params())
    with trainmon.watch(model, optimizer, kinds=["moments"], out=str(tmp_path)):
        mlp.train(model, optimizer, steps=1)
    rows = trainmon.read(str(tmp_path))
    for kind, attribute in kinds.items():
        for parameter, value in zip(optimizer.parameters, getattr(optimizer, attribute)):
            mlp.check(one(rows, kind=kind, name=parameter.name), mlp.copy_of(value).astype(float))


def test_direction_of_gradient_and_momentum(tmp_path):
    model = mlp.net()
    optimizer = mlp.adamw(model)
    with trainmon.watch(model, optimizer, kinds=["mg_direction"], out=str(tmp_path)):
        mlp.train(model, optimizer)
    rows, oracle = trainmon.read(str(tmp_path)), mlp.oracle()
    for step in (1, 2):
        for name in mlp.SIZES:
            gradient, before = oracle[step]["grad_reduced"][name], oracle[step - 1]["exp_avg"][name]
            share = (np.sign(gradient) * np.sign(before)).mean() / 2 + 0.5
            assert one(rows, name=name, step=step)["mean"] == pytest.approx(share)
    assert len(rows) == 8


def test_evaluation_gives_no_row(tmp_path):
    model = mlp.net()
    optimizer = mlp.adamw(model)
    with trainmon.watch(model, optimizer, kinds=["actv"], out=str(tmp_path)):
        mlp.train(model, optimizer, steps=1, micro=1)
        model.set_train(False)
        model(Tensor(mlp.batch(0)[0]))
        model.set_train()
    assert len(trainmon.read(str(tmp_path))) == 8


def test_every_and_include(tmp_path):
    model = mlp.net()
    optimizer = mlp.adamw(model)
    keys = {"every": 2, "include": ["fc1*"], "out": str(tmp_path)}
    with trainmon.watch(model, optimizer, kinds=["grads"], **keys):
        mlp.train(model, optimizer, steps=4, micro=1)
    rows = trainmon.read(str(tmp_path))
    assert set(rows.step) == {0, 2} and set(rows.name) == {"fc1.weight", "fc1.bias"}


def test_a_nan_is_an_alert(tmp_path):
    model = mlp.net()
    optimizer = mlp.adamw(model)
    mon = trainmon.watch(model, optimizer, out=str(tmp_path))
    grad = mlp.gradients_of(model, optimizer)
    x, y = mlp.batch(0)
    x[0, 0] = np.nan
    optimizer(grad(Tensor(x), Tensor(y))[1])
    assert mon.stop()["alerts"] > 0


def test_an_optimizer_wrapped_by_jit_is_refused_by_name():
    model = mlp.net()
    with pytest.raises(TypeError, match="mindspore.jit.*AdamWeightDecay"):
        trainmon.watch(model, ms.jit(mlp.adamw(model)))


@pytest.mark.parametrize("optimizer", [None, 3, "adam", []])
def test_what_is_no_optimizer_is_refused(optimizer):
    with pytest.raises(TypeError, match="optimizer must be"):
        trainmon.watch(mlp.net(), optimizer)


def program(tmp_path, mode: str) -> tuple:
    """Losses watched and bare, rows and run.json of compiled_run.py in a process of its own."""
    here = os.path.dirname(__file__)
    done = subprocess.run(
        [sys.executable, os.path.join(here, "compiled_run.py"), mode, str(tmp_path / "run")],
        capture_output=True, text=True, timeout=300, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    bare, losses = json.loads(done.stdout.splitlines()[-1])
    assert losses == bare
    return trainmon.read(str(tmp_path / "run")), run_json(tmp_path / "run"), done.stderr


def test_gradients_compiled_by_jit(tmp_path):
    """No hook fires inside, but the optimizer is called outside."""
    rows, run, _ = program(tmp_path, "jit")
    kinds = {"grad_reduced", "param_origin", "param_updated", "exp_avg", "exp_avg_sq"}
    assert set(rows.kind) == kinds
    for step, seen in enumerate(mlp.oracle(steps=2, micro=1)):
        for name, expected in seen["grad_reduced"].items():
            mlp.check(one(rows, kind="grad_reduced", name=name, step=step), expected)
    missing = run["not_covered"]
    assert any(key.startswith("grad_micro of fc1.weight") for key in missing)
    assert any(key.startswith("actv of model, fc1") for key in missing)


def test_a_cell_compiled_by_jit(tmp_path):
    """Its own hooks and those of parameters fire, those of cells inside do not."""
    rows, run, _ = program(tmp_path, "cell")
    assert set(rows[rows.kind == "actv"].name) == {"", "0", "1"}
    assert len(rows[rows.kind == "grad_micro"]) == 2 * 6
    assert any(key.startswith("actv of 0.fc1, 0.act, 0.fc2") for key in run["not_covered"])


def test_graph_mode_compiles_and_says_that_nothing_is_covered(tmp_path):
    rows, run, said = program(tmp_path, "graph")
    assert len(rows) == 0 and run["covered"] == []
    assert {"grad_reduced", "actv", "param_updated"} <= set(run["not_covered"])
    assert "NOTHING WAS RECORDED" in said and "GRAPH_MODE" in said


def test_graph_mode_set_after_watch_still_compiles(tmp_path):
    rows, _, said = program(tmp_path, "graph_later")
    assert len(rows) == 0 and "NOTHING WAS RECORDED" in said


def test_no_torch_and_no_framework_is_imported():
    code = (
        "import sys, trainmon; trainmon.watch; assert not {'torch', 'mindspore'} & set(sys.modules)\n"
        "import mindspore, trainmon.mindspore.adapter\n"
        "assert 'torch' not in sys.modules and 'trainmon.torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
