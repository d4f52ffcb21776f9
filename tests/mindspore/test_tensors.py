# What the core reads of a MindSpore tensor, and what operations measure: both against NumPy.
import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor

import trainmon
from trainmon import _core
from trainmon.mindspore import ops

FLOATS = {
    "float16": ms.float16,
    "bfloat16": ms.bfloat16,
    "float32": ms.float32,
    "float64": ms.float64,
}
INTEGERS = {"int32": ms.int32, "int64": ms.int64, "uint8": ms.uint8, "bool": ms.bool_}


def values(shape=(7, 5)) -> np.ndarray:
    return np.random.RandomState(1).randint(-8, 9, shape).astype(np.float64) / 4


def check(found: dict, expected: np.ndarray) -> None:
    wanted = {
        "count": expected.size,
        "norm": np.sqrt((expected**2).sum()),
        "mean": expected.mean(),
        "min": expected.min(),
        "max": expected.max(),
        "zeros": (expected == 0).mean(),
        "nans": 0,
    }
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-12, abs=1e-15), name


def core(tensor) -> dict:
    return {name: array[0] for name, array in trainmon.tensor_stats(tensor).items()}


def by_operations(tensor) -> dict:
    state = ops.measure(tensor, _core.DEFAULT_EPS).asnumpy().astype(np.float64).reshape(1, -1)
    names = trainmon.stats.STATS
    return dict(zip(names, _core.derive(names, state)[:, 0]))


@pytest.mark.parametrize("measured", [core, by_operations])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_dtypes(measured, dtype):
    expected = values()
    if dtype in INTEGERS:
        expected = np.abs(expected).astype(int).astype(bool if dtype == "bool" else float)
        expected = expected.astype(np.float64)
    check(measured(Tensor(expected, {**FLOATS, **INTEGERS}[dtype])), expected)


@pytest.mark.parametrize("measured", [core, by_operations])
@pytest.mark.parametrize(
    "view",
    [lambda t: t.T, lambda t: t[1:, 2:], lambda t: t[:, ::2], lambda t: t[3], lambda t: t[2, 2]],
)
def test_views(measured, view):
    expected = values()
    tensor = view(Tensor(expected, ms.float32))
    check(measured(tensor), np.asarray(view(expected)))


@pytest.mark.parametrize("measured", [core, by_operations])
def test_empty_and_non_finite(measured):
    assert measured(Tensor(np.zeros((0, 3)), ms.float32))["count"] == 0
    tensor = Tensor(np.array([1.0, np.nan, np.inf, -np.inf, 2.0, np.nan]), ms.float32)
    found = measured(tensor)
    assert (found["count"], found["nans"], found["infs"]) == (6, 2, 2)
    assert np.isnan(found["norm"])


def test_parameters():
    check(core(Parameter(Tensor(values(), ms.float32), name="p")), values())


def test_values_still_being_computed_are_waited_for():
    """PyNative hands a tensor out before its kernel has run: each product here takes milliseconds."""
    x = Tensor(np.random.RandomState(0).randn(600, 600) / 25, ms.float32)
    y = x
    for _ in range(20):
        y = y @ x
    found = core(y)
    assert found["norm"] == pytest.approx(
        float(np.linalg.norm(y.asnumpy().astype(np.float64))), rel=1e-6
    )


def test_complex_is_refused_by_name():
    with pytest.raises(TypeError, match="complex128"):
        trainmon.tensor_stats(Tensor(np.array([1 + 2j])))
    with pytest.raises(ops.Refused, match="complex128"):
        ops.measure(Tensor(np.array([1 + 2j])), 1e-8)


def test_signs_agree_as_numpy_says():
    one, two = values(), np.random.RandomState(2).randn(7, 5)
    share = (np.sign(one) * np.sign(two)).mean() / 2 + 0.5
    found = ops.agreement(Tensor(one, ms.float32), Tensor(two, ms.float32))
    assert float(found) == pytest.approx(share)


def test_the_operations_give_the_rows_that_the_core_gives(tmp_path):
    """backend="ops": what a device without kernels of ours goes through, here on the CPU."""
    import mlp

    frames = []
    for backend in ("auto", "ops"):
        model = mlp.net()
        optimizer = mlp.adamw(model)
        out = str(tmp_path / backend)
        kinds = ["grad_micro", "grads", "weights", "moments", "activations"]
        with trainmon.watch(model, optimizer, kinds=kinds, out=out, backend=backend):
            mlp.train(model, optimizer)
        key = ["kind", "name", "element", "step", "accum", "call"]
        frames.append(trainmon.read(out).set_index(key).sort_index())
    mine, theirs = frames
    assert len(mine) == len(theirs) > 100 and (mine.index == theirs.index).all()
    for name in ("count", "norm", "min", "max", "mean", "zeros", "nans"):
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-9, atol=1e-12, err_msg=name)
