# trainmon.watch on MindSpore: rarer kinds and ways to train, against NumPy.
import os

import mindspore as ms
import mlp
import numpy as np
import pytest
from mindspore import Tensor, nn

import trainmon
from trainmon.reading import FLAGS


def version() -> tuple:
    return tuple(int(part) for part in ms.__version__.split(".")[:2])


def payloads(out) -> list[dict]:
    return trainmon.read_table(str(out)).payloads


@pytest.mark.parametrize("corrected", [False, True], ids=["AdamWeightDecay", "Adam"])
def test_histograms_of_adams_steps(tmp_path, corrected):
    """nn.AdamWeightDecay does not correct its moments for the first steps, nn.Adam does."""
    model = mlp.net()
    optimizer = nn.Adam(model.trainable_params(), 1e-2) if corrected else mlp.adamw(model)
    states = []

    def after(*_):
        keys = ("moment1", "moment2") if corrected else ("moments1", "moments2")
        lists = zip(optimizer.parameters, *(getattr(optimizer, key) for key in keys))
        states.append({p.name: [mlp.copy_of(v).astype(float) for v in pair] for p, *pair in lists})

    optimizer.register_forward_hook(after)
    with trainmon.watch(model, optimizer, kinds=["update_ratio"], out=str(tmp_path)):
        mlp.train(model, optimizer)
    found = payloads(tmp_path)
    assert len(found) == 3 * 4 * 2 and {p["kind"] for p in found} == {"update_ratio"}
    eps = 1e-8 if corrected else mlp.EPS
    for payload in found:
        m, v = states[payload["step"]][payload["name"]]
        if corrected:
            taken = payload["step"] + 1
            m, v = m / (1 - 0.9**taken), v / (1 - 0.999**taken)
        values = m / (np.sqrt(v) + (eps if payload["element"] == "update" else 0.0))
        counts, edges = np.histogram(values, bins=30, range=(-1, 1))
        histogram = payload["value"]
        assert np.allclose(histogram.edges, edges, atol=1e-15)
        # A value on an edge may round to either side of it; of nn.Adam's first step all are +-1.
        on_edge = int((np.abs(values[..., None] - edges).min(-1) < 1e-4).sum())
        assert np.abs(histogram.counts - counts).sum() <= 2 * on_edge
        outside = int(((values < -1) | (values > 1)).sum())
        assert abs(histogram.below + histogram.above - outside) <= on_edge


def test_stacks_of_the_first_step(tmp_path):
    model = mlp.net()
    optimizer = mlp.adamw(model)
    with trainmon.watch(model, optimizer, kinds=["stack"], out=str(tmp_path)):
        mlp.train(model, optimizer, steps=2)
    texts = {p["name"]: p["value"] for p in payloads(tmp_path)}
    assert sorted(texts) == ["", "act", "fc1", "fc2"] and len(payloads(tmp_path)) == 4
    package = os.path.join(
        os.path.dirname(trainmon.__file__), ""
    )  # a checkout may be named so, too
    for text in texts.values():
        first = text.splitlines()[0]
        assert package not in first and os.path.join(package, "mindspore") not in text
        assert f"File {mlp.__file__}, line" in text and "in loss" in text
    assert "in construct" in texts["fc1"]  # called by Net
    assert "in construct" not in texts[""].split(mlp.__file__)[0]


def test_several_optimizers(tmp_path):
    """Each has its own steps: fc2's optimizer is called after every second backward only."""
    model = mlp.net()
    groups = [[p for p in model.get_parameters() if p.name.startswith(fc)] for fc in ("fc1", "fc2")]
    one, two = (nn.SGD(group, 0.1) for group in groups)
    grad = ms.value_and_grad(
        lambda x, y: ((model(x) - y) ** 2).mean(), None, list(one.parameters) + list(two.parameters)
    )
    given = {"body": one, "head": two}
    expected = {}
    with trainmon.watch(model, given, kinds=["grads", "weights"], out=str(tmp_path)):
        for k in range(4):
            gradients = grad(*map(Tensor, mlp.batch(k)))[1]
            one(tuple(gradients[:2]))
            expected[0, k] = [mlp.copy_of(g).astype(float) for g in gradients[:2]]
            if k % 2:
                two(tuple(gradients[2:]))
                expected[1, k // 2] = [mlp.copy_of(g).astype(float) for g in gradients[2:]]
    rows = trainmon.read(str(tmp_path))
    reduced = rows[rows.kind == "grad_reduced"]
    assert len(reduced) == 4 * 2 + 2 * 2
    for (index, step), values in expected.items():
        here = reduced[(reduced.optimizer == index) & (reduced.step == step)].set_index("name")
        for parameter, value in zip(groups[index], values, strict=True):
            mlp.check(here.loc[parameter.name].to_dict() | {"name": parameter.name}, value)
    assert len(rows[rows.kind == "param_updated"]) == 12


def test_activations_of_every_second_step(tmp_path):
    model = mlp.net()
    optimizer = mlp.adamw(model)
    kinds = ["actv", "actv_grad", "grad_micro"]
    with trainmon.watch(model, optimizer, kinds=kinds, every=2, out=str(tmp_path)):
        mlp.train(model, optimizer, steps=5)
    rows, oracle = trainmon.read(str(tmp_path)), mlp.oracle(steps=5)
    assert set(rows.step) == {0, 2, 4}
    places = {("fc1", "output"): "a1", ("act", "output"): "h", ("fc2", "output"): "out"}
    for step in (0, 2, 4):
        for accum in range(2):
            here = rows[(rows.step == step) & (rows.accum == accum)]
            for (name, element), key in places.items():
                for kind, values in (("actv", "values"), ("actv_grad", "flows")):
                    found = here[
                        (here.kind == kind) & (here.name == name) & (here.element == element)
                    ]
                    (row,) = found.to_dict("records")
                    mlp.check(row, oracle[step][values][accum][key])
            assert len(here) == 8 + 6 + 4


@pytest.mark.parametrize("backend", ["auto", "ops"])
def test_a_loss_scale_is_recorded(tmp_path, backend):
    model = mlp.net()
    optimizer = mlp.adamw(model)
    scaler = ms.amp.DynamicLossScaler(scale_value=1024, scale_factor=2, scale_window=1)

    def loss(x, y):
        return scaler.scale(((model(x) - y) ** 2).mean())

    grad = ms.value_and_grad(loss, None, optimizer.parameters)
    scales = []
    keys = {"out": str(tmp_path), "backend": backend}
    kinds = ["grad_micro", "grads", "actv", "actv_grad"]
    with trainmon.watch(model, optimizer, kinds=kinds, scaler=scaler, **keys):
        for step in range(3):
            scales.append(float(scaler.scale_value.asnumpy()))
            _, gradients = grad(*map(Tensor, mlp.batch(step)))
            optimizer(scaler.unscale(gradients))
            scaler.adjust(Tensor(True))
    assert scales == [1024, 2048, 4096]
    rows, oracle = trainmon.read(str(tmp_path)), mlp.oracle(micro=1)
    scaled = {"grad_micro", "actv_grad"}
    for kind in ("grad_micro", "grad_reduced", "actv", "actv_grad"):
        here = rows[rows.kind == kind]
        assert not here.empty
        assert ((here["flags"] & FLAGS["still_scaled"]) != 0).eq(kind in scaled).all()
    for step, scale in enumerate(scales):
        assert set(rows[rows.step == step].loss_scale) == {scale}
        for name, expected in oracle[step]["grad_reduced"].items():
            here = rows[(rows.step == step) & (rows.name == name)]
            for kind, value in (("grad_reduced", expected), ("grad_micro", expected * scale)):
                (row,) = here[here.kind == kind].to_dict("records")
                mlp.check(row, value, 5e-5)


ALWAYS_REENTRANT = pytest.mark.skipif(
    version() < (2, 10), reason="Cell.recompute() of MindSpore 2.7 has no use_reentrant"
)


@pytest.mark.parametrize("reentrant", [True, pytest.param(False, marks=ALWAYS_REENTRANT)])
def test_recomputed_cells_have_the_rows_of_plain_ones(tmp_path, reentrant):
    frames, losses = [], []
    for recomputes in (False, True):
        inner = nn.SequentialCell(nn.Dense(6, 6), nn.ReLU())
        model = nn.SequentialCell(inner, nn.Dense(6, 3)).set_train()
        random = np.random.RandomState(4)
        for parameter in model.get_parameters():
            parameter.set_data(Tensor(random.randn(*parameter.shape).astype(np.float32)))
        if recomputes:
            inner.recompute(**({} if reentrant else {"use_reentrant": False}))
        optimizer = mlp.adamw(model)
        out = str(tmp_path / str(recomputes))
        kinds = ["grad_micro", "grads", "actv", "actv_grad"]
        with trainmon.watch(model, optimizer, kinds=kinds, out=out) as mon:
            losses.append(mlp.train(model, optimizer, steps=2))
            assert mon.stop()["parts_off"] == {}
        key = ["kind", "name", "element", "step", "accum", "call"]
        frames.append(trainmon.read(out).set_index(key).sort_index())
    assert losses[0] == losses[1]
    plain, recomputed = frames
    # A reentrant one asks for the gradient of what goes in, which the first cell inside then sees.
    more = recomputed.index.difference(plain.index)
    assert {place[:3] for place in more} == (
        {("actv_grad", "0.0", "input.0")} if reentrant else set()
    )
    assert plain.index.difference(recomputed.index).empty
    np.testing.assert_array_equal(plain["norm"], recomputed.loc[plain.index, "norm"])
