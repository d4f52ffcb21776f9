# trainmon.tensor_stats against exact arithmetic, over types, layouts, levels and threads.
import fractions
import gc
import math
import pathlib
import runpy
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import trainmon
from trainmon import _core
from trainmon.base.row_state import FIELDS
from trainmon.stats import STATS

BLOCK = 4096  # boundaries of the sums lie here; a wrong guess only makes the tests weaker
LEVELS = {
    "baseline": ["baseline"],
    "avx2": ["baseline", "avx2"],
    "avx512": ["baseline", "avx2", "avx512"],
}[_core.detected_cpu_level()]
FLOATS = {
    torch.float64: 2.0**-1022,
    torch.float32: 2.0**-126,
    torch.float16: 2.0**-14,
    torch.bfloat16: 2.0**-126,
    torch.float8_e4m3fn: 2.0**-6,
    torch.float8_e5m2: 2.0**-14,
}
INTEGERS = [
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
]
LENGTHS = st.one_of(
    st.integers(0, 70),
    st.builds(lambda b, d: b * BLOCK + d, st.integers(1, 3), st.integers(-35, 35)),
)


def exact(values, smallest_normal, eps):
    """Every statistic of a list of Python numbers, by exact arithmetic, with its tolerance."""
    finite = [v for v in values if math.isfinite(v)]
    nans = sum(math.isnan(v) for v in values)
    infs = sorted({v for v in values if math.isinf(v)})
    n = len(values)
    nan = math.nan
    out = {
        "count": n,
        "nans": nans,
        "infs": n - len(finite) - nans,
        "subnormals": sum(0 < abs(v) < smallest_normal for v in finite),
        "zeros": sum(abs(v) < eps for v in finite) / n if n else nan,
    }
    if n == 0:
        unknown = dict.fromkeys(("min", "max", "mean", "absmax", "std"), nan)
        return out | unknown | {"norm": 0.0}, 0.0
    if nans:
        return out | dict.fromkeys(("norm", "min", "max", "mean", "absmax", "std"), nan), 0.0

    out |= {"min": min(values), "max": max(values), "absmax": max(abs(v) for v in values)}
    if infs:
        mean = infs[0] if len(infs) == 1 else nan
        return out | {"norm": math.inf, "mean": mean, "std": nan}, 0.0
    parts = [fractions.Fraction(v) for v in finite]
    total = sum(parts)
    squares = sum(p * p for p in parts)
    variance = squares / n - (total / n) ** 2
    out |= {"mean": float(total / n), "norm": root(squares), "std": root(variance)}
    return out, float(sum(abs(p) for p in parts) / n)


def root(value):
    """sqrt of a Fraction of any size, rounded once or twice."""
    if value == 0:
        return 0.0
    shift = (value.numerator.bit_length() - value.denominator.bit_length()) // 2 * 2
    scaled = value / fractions.Fraction(4) ** (shift // 2)
    try:
        return math.ldexp(math.sqrt(float(scaled)), shift // 2)
    except OverflowError:
        return math.inf


# Sums of these are taken in float32 for up to 1,024 elements: a few roundings of 2^-24 each.
NARROW = frozenset(dtype for dtype in FLOATS if dtype.itemsize <= 2)


def check(got, want, mean_abs, i=0, narrow=False):
    for name in ("count", "nans", "infs", "subnormals", "zeros", "min", "max", "absmax"):
        assert np.array_equal(got[name][i], want[name], equal_nan=True), name
    if not math.isfinite(want["norm"]) or want["count"] == 0:
        for name in ("norm", "mean", "std"):
            assert np.array_equal(got[name][i], want[name], equal_nan=True), name
        return
    tiny = 5e-324
    assert got["norm"][i] == pytest.approx(want["norm"], rel=1e-7 if narrow else 1e-14, abs=tiny)
    assert abs(got["mean"][i] - want["mean"]) <= (1e-7 if narrow else 1e-15) * mean_abs + tiny
    # A spread below the rounding of the numbers themselves is noise in any arithmetic.
    spread = 1e-6 if narrow else 1e-10
    assert got["std"][i] == pytest.approx(want["std"], rel=spread, abs=1e-15 * mean_abs + tiny)


def draw_numbers(rng, n, kind):
    if kind == "bits":
        with np.errstate(invalid="ignore"):  # signalling NaN
            return rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32).astype(np.float64)
    values = rng.standard_normal(n)
    if kind == "heavy":
        values = np.exp(4 * values) * rng.choice([-1, 1], n)
    elif kind == "shifted":
        values = 1 + 1e-6 * values
    elif kind == "sparse":
        values[rng.random(n) < 0.7] = 0
    elif kind == "tiny":
        values *= 1e-42
    elif kind == "huge":
        values *= 1e20
    return values


KINDS = st.sampled_from(["normal", "heavy", "shifted", "sparse", "tiny", "huge", "bits"])
BAD = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from([math.nan, math.inf, -math.inf])),
    max_size=3,
)
EPS = st.sampled_from([0.0, 1e-45, 1e-8, 0.5, 1.0, 3.0, 1e30])


@pytest.fixture(autouse=True)
def level_restored():
    before = _core.cpu_level()
    yield
    _core.set_cpu_level(before)


def at_every_level(tensors, **keys):
    """tensor_stats at each level; all must be the same bits."""
    results = []
    for level in LEVELS:
        _core.set_cpu_level(level)
        results.append(trainmon.tensor_stats(tensors, **keys))
    _core.set_cpu_level(LEVELS[-1])
    for other in results[1:]:
        for name, values in results[0].items():
            assert values.tobytes() == other[name].tobytes(), name
    return results[0]


@settings(max_examples=120, deadline=None)
@given(
    dtype=st.sampled_from(list(FLOATS)),
    n=LENGTHS,
    kind=KINDS,
    bad=BAD,
    eps=EPS,
    offset=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_floats_against_exact_fractions(dtype, n, kind, bad, eps, offset, seed):
    numbers = torch.from_numpy(draw_numbers(np.random.default_rng(seed), n + offset, kind))
    for place, value in bad:
        if n:
            numbers[offset + int(place * n)] = value
    tensor = numbers.to(dtype)[offset:]
    want, mean_abs = exact(tensor.double().tolist(), FLOATS[dtype], eps)
    check(at_every_level(tensor, eps=eps), want, mean_abs, narrow=dtype in NARROW)


@settings(max_examples=60, deadline=None)
@given(dtype=st.sampled_from(INTEGERS), n=LENGTHS, eps=EPS, seed=st.integers(0, 2**32 - 1))
def test_integers_against_exact_fractions(dtype, n, eps, seed):
    raw = np.random.default_rng(seed).integers(0, 256, 8 * n, dtype=np.uint8)
    if dtype is torch.bool:
        tensor = torch.from_numpy(raw[:n] > 100)
    else:
        name = str(dtype).removeprefix("torch.")
        tensor = torch.from_numpy(raw.view(name)[:n])
    values = [int(v) for v in tensor.tolist()]
    want, mean_abs = exact(values, 0, eps)
    for name in ("min", "max", "absmax"):  # 64-bit integers round to float64
        want[name] = float(want[name])
    check(at_every_level(tensor, eps=eps), want, mean_abs)


@settings(max_examples=80, deadline=None)
@given(
    shape=st.lists(st.integers(0, 7), max_size=5),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int16]),
    data=st.data(),
)
def test_views_of_every_layout(shape, dtype, data):
    base = (torch.randn(shape) * 8).to(dtype)
    view = base
    for _ in range(data.draw(st.integers(0, 4))):
        if view.ndim == 0:
            break
        dim = data.draw(st.integers(0, view.ndim - 1))
        step = data.draw(st.sampled_from(["permute", "slice", "expand", "unsqueeze", "select"]))
        if step == "permute":
            view = view.permute(*data.draw(st.permutations(range(view.ndim))))
        elif step == "slice":
            view = view[(slice(None),) * dim + (slice(1, None, 2),)]
        elif step == "expand":
            view = view.unsqueeze(dim).expand(*view.shape[:dim], 3, *view.shape[dim:])
        elif step == "unsqueeze":
            view = view.unsqueeze(dim)
        elif view.shape[dim]:
            view = view.select(dim, 0)
    want, mean_abs = exact(view.double().flatten().tolist(), FLOATS.get(dtype, 0), 1e-8)
    check(at_every_level(view), want, mean_abs, narrow=dtype in NARROW)


def test_numpy_layouts():
    array = np.arange(2 * 3000, dtype=np.float32).reshape(2, 3000)
    frozen = array.copy()
    frozen.flags.writeable = False
    unaligned = np.frombuffer(b"x" + array.tobytes(), dtype=np.float32, offset=1, count=6000)
    overlapping = np.lib.stride_tricks.sliding_window_view(array[0], 5)
    views = [
        array,
        np.asfortranarray(array),
        array[::-1, ::-3],
        array.T,
        frozen,
        unaligned,
        overlapping,
        np.float64(array[1, 5:6]).reshape(()),
        array[:, :0],
        array.astype(np.float16),
        array > 7,
        array.astype(">f4").astype("=f4"),
        np.broadcast_to(array[0, :4], (5, 4)),
        np.matrix(array),
    ]
    got = at_every_level(views)
    for i, view in enumerate(views):
        smallest = {"float16": 2.0**-14, "float32": 2.0**-126}.get(view.dtype.name, 0)
        want, mean_abs = exact([float(v) for v in np.asarray(view).flat], smallest, 1e-8)
        check(got, want, mean_abs, i, narrow=view.dtype.itemsize <= 2)


def test_threads_and_batches_do_not_change_a_bit():
    torch.manual_seed(0)
    big = torch.randn(5 * 2**18 + 77)
    tensors = [
        big,
        big.bfloat16(),
        big.double(),
        big[::2],
        big[: 2**20].view(1024, 1024).t(),
        big[:3],
        torch.zeros(0),
    ]
    want = trainmon.tensor_stats(tensors)
    for threads in range(2, 9):
        got = trainmon.tensor_stats(tensors, threads=threads)
        for name, values in want.items():
            assert values.tobytes() == got[name].tobytes(), (name, threads)
    for i, tensor in enumerate(tensors):
        alone = at_every_level(tensor, threads=2)
        for name, values in want.items():
            assert values[i : i + 1].tobytes() == alone[name].tobytes(), name


@pytest.mark.parametrize("scale", [1e-22, 1e-3, 1.0, 1e20])
@pytest.mark.parametrize("kind", ["normal", "uniform", "heavy", "shifted"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_accuracy_on_a_million_elements(scale, kind, dtype):
    rng = np.random.default_rng(3)
    n = 1_000_003
    values = rng.random(n) if kind == "uniform" else draw_numbers(rng, n, kind) * 1e-3
    tensor = torch.from_numpy(values * scale).to(dtype)
    got = trainmon.tensor_stats(tensor)
    wide = tensor.double().numpy()
    numbers = wide.tolist()
    # Squares and first powers of these are exact in float64, so fsum is the exact sum, rounded.
    norm = math.sqrt(math.fsum((wide * wide).tolist()))
    mean = math.fsum(numbers) / n
    std = math.sqrt(math.fsum(((wide - mean) ** 2).tolist()) / n)
    narrow = dtype in NARROW
    assert got["norm"][0] == pytest.approx(norm, rel=2e-8 if narrow else 1e-13)
    mean_abs = math.fsum(abs(v) for v in numbers) / n
    assert abs(got["mean"][0] - mean) <= (1e-7 if narrow else 1e-15) * mean_abs
    assert got["std"][0] == pytest.approx(std, rel=1e-7 if narrow else 1e-9)


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e200, 1e306])
def test_float64_of_any_scale(scale):
    tensor = torch.from_numpy(np.random.default_rng(1).standard_normal(5000) * scale)
    want, mean_abs = exact(tensor.tolist(), 2.0**-1022, 1e-8)
    check(at_every_level(tensor), want, mean_abs)
    mixed = torch.tensor([1e-310, 1e300, -1e-200, 3.0], dtype=torch.float64)
    want, mean_abs = exact(mixed.tolist(), 2.0**-1022, 1e-8)
    check(at_every_level(mixed), want, mean_abs)


def test_merged_shards_agree_with_the_whole():
    rng = np.random.default_rng(5)
    whole = draw_numbers(rng, 100_000, "heavy").astype(np.float32)
    whole[123] = np.nan
    whole[99_000] = -np.inf
    cuts = [0, 1, 1, 4097, 50_000, 99_999, 100_000]
    shards = [whole[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
    states, _, _ = _core.measure_tensors(shards, 1e-8, 1)
    want, _, _ = _core.measure_tensors([whole], 1e-8, 1)
    merged = _core.merge_states(states)
    counts = ("count", "nans", "pos_infs", "neg_infs", "zeros", "subnormals")
    exact = [FIELDS.index(name) for name in (*counts, "min", "max", "absmax")]
    sums = [FIELDS.index(name) for name in ("sum", "mean", "m2", "sum_sq")]
    assert merged[0, exact].tolist() == want[0, exact].tolist()
    np.testing.assert_allclose(merged[0, sums], want[0, sums], rtol=1e-12)


def test_more_than_2_to_31_elements():
    base = torch.tensor([1.5, -2.0, 0.0, math.nan])
    got = trainmon.tensor_stats([base[:3].expand(2**31, 3), base.expand(2**33, 4)])
    assert got["count"].tolist() == [3 * 2**31, 4 * 2**33]
    assert got["nans"].tolist() == [0, 2**33]
    assert got["zeros"].tolist() == [1 / 3, 1 / 4]
    assert got["norm"][0] == pytest.approx(math.sqrt(6.25 * 2**31), rel=1e-15)
    assert got["mean"][0] == pytest.approx(-0.5 / 3, rel=1e-15)
    assert got["std"][0] == pytest.approx(math.sqrt(6.25 / 3 - (0.5 / 3) ** 2), rel=1e-15)


def test_copy_on_write_clones_keep_their_values():
    """Looking at one gives it memory of its own, as data_ptr() does; nothing else."""
    for dtype in [*FLOATS, torch.int32, torch.bool]:
        base = (torch.arange(6000).reshape(2, 3000) % 7).to(dtype)
        want = trainmon.tensor_stats([base, base.t(), base[:, 1:]])
        copy = torch._lazy_clone(base)
        version = copy._version
        for tensor in (base, copy):
            got = trainmon.tensor_stats([tensor, tensor.t(), tensor[:, 1:]])
            for name, values in want.items():
                assert values.tobytes() == got[name].tobytes(), name
        assert torch.equal(base, copy) and copy._version == version
        copy.zero_()
        assert not torch.equal(base, copy)


def test_autograd_and_generators_are_left_alone():
    weight = torch.nn.Parameter(torch.randn(300, 50))
    hidden = weight * 2
    before = torch.get_rng_state(), weight._version, hidden._version, hidden.grad_fn
    got = trainmon.tensor_stats([weight, hidden, weight.t(), hidden[0, 0]])
    after = torch.get_rng_state(), weight._version, hidden._version, hidden.grad_fn
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
    assert got["norm"][1] == pytest.approx(2 * got["norm"][0], rel=1e-14)
    assert weight.grad is None


def test_flushing_subnormals_in_training_changes_nothing():
    tensor = torch.full((5000,), 1e-41)
    want = trainmon.tensor_stats([tensor, tensor.double() * 1e-275])
    if not torch.set_flush_denormal(True):
        pytest.fail("this machine cannot flush subnormals")
    try:
        got = trainmon.tensor_stats([tensor, tensor.double() * 1e-275])
        flushing = float(torch.tensor(1e-41) * 1) == 0.0
    finally:
        torch.set_flush_denormal(False)
    assert flushing
    assert want["subnormals"].tolist()[0] == got["subnormals"].tolist()[0] == 5000
    assert want["norm"][0] == got["norm"][0] > 0


class Exchanged:
    """Any library's array: nothing but the DLPack protocol."""

    def __init__(self, array, versioned=True, device=None):
        self.array, self.versioned, self.device = array, versioned, device

    def __dlpack_device__(self):
        return self.device or self.array.__dlpack_device__()

    def __dlpack__(self, **keys):
        if not self.versioned and keys:
            raise TypeError("an old producer")
        return self.array.__dlpack__(**keys)


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack_objects(versioned):
    array = np.arange(6000, dtype=np.float32).reshape(2, 3000)
    want = trainmon.tensor_stats([array, array.T[::2]])
    got = trainmon.tensor_stats([Exchanged(array, versioned), Exchanged(array.T[::2], versioned)])
    for name, values in want.items():
        assert values.tobytes() == got[name].tobytes(), name
    alone = trainmon.tensor_stats(Exchanged(array, versioned))
    assert alone["norm"][0] == want["norm"][0]


def test_dlpack_memory_is_held_during_the_call_and_freed_after():
    class Array(np.ndarray):
        freed = 0

        def __del__(self):
            Array.freed += 1

    class Temporary:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **keys):
            return np.ones(100_000, np.float32).view(Array).__dlpack__(**keys)

    assert trainmon.tensor_stats([Temporary(), Temporary()], ["count", "min"])["min"].tolist() == [
        1.0,
        1.0,
    ]
    gc.collect()
    assert Array.freed == 2


def refused_tensors():
    x = torch.ones(4, 4)
    complex_ones = torch.ones(4, dtype=torch.complex64)
    yield "complex64", complex_ones
    yield "complex128", complex_ones.to(torch.complex128)
    yield "complex64", complex_ones.conj()
    yield "neg_view", complex_ones.conj().imag
    yield "neg_view", complex_ones.conj().imag[0]
    yield "neg_view", complex_ones.conj().imag[:1]
    yield "neg_view", torch._neg_view(x)
    yield "overlapping", torch.arange(12_000.0).unfold(0, 4000, 1)
    yield "sparse_coo", x.to_sparse()
    yield "sparse_csr", x.to_sparse_csr()
    yield "meta", x.to("meta")
    yield "quantized", torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    yield "nested", torch.nested.nested_tensor([x[0], x[1, :2]])
    yield "mkldnn", x.to_mkldnn()
    yield "float8_e8m0fnu", torch.ones(3, dtype=torch.float8_e8m0fnu)
    yield "byte_order", np.ones(3, ">f4")
    yield "complex64", np.ones(3, np.complex64)
    yield "object", np.array([1, None])
    yield "str32", np.array(["a"])
    yield "maskedarray", np.ma.masked_array([1.0, 2.0], [True, False])
    yield "unaligned_strides", np.zeros(3, [("a", "i1"), ("b", "f4")])["b"]
    yield "list", [1.0]
    yield "float", 1.0
    yield "nonetype", None


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_measured_is_refused_by_name():
    for reason, value in refused_tensors():
        with pytest.raises(TypeError) as caught:
            trainmon.tensor_stats([torch.ones(1), value])
        assert str(caught.value) == f"tensors[1] cannot be measured: {reason}"


def test_subclasses_that_dispatch_are_refused_and_others_measured():
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate

    class Plain(torch.Tensor):
        pass

    plain = torch.arange(5.0).as_subclass(Plain)
    assert type(plain) is Plain
    assert trainmon.tensor_stats(plain, ["max"])["max"][0] == 4.0

    with FakeTensorMode():
        fake = torch.ones(3)
    with pytest.raises(TypeError, match="^tensors cannot be measured: faketensor$"):
        trainmon.tensor_stats(fake)

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        whole = DTensor.from_local(torch.ones(3), mesh, [Replicate()])
        with pytest.raises(TypeError, match="^tensors cannot be measured: dtensor$"):
            trainmon.tensor_stats(whole)
        assert trainmon.tensor_stats(whole.to_local(), ["count"])["count"][0] == 3
    finally:
        torch.distributed.destroy_process_group()


def test_other_devices_without_torch_are_refused():
    elsewhere = Exchanged(np.ones(3), device=(2, 0))
    with pytest.raises(TypeError, match=r"^tensors\[0\] is on a device that only torch tensors"):
        trainmon.tensor_stats([elsewhere])


def test_several_python_threads_at_once():
    tensors = [torch.randn(300_000) for _ in range(4)]
    want = trainmon.tensor_stats(tensors)
    wrong = []

    def measure():
        for _ in range(10):
            got = trainmon.tensor_stats(tensors, threads=2)
            if any(got[name].tobytes() != want[name].tobytes() for name in want):
                wrong.append(1)

    threads = [threading.Thread(target=measure) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"stats": ["norm", "nrom"]}, ValueError, "stats: 'nrom' is none of norm, min, .*'norm'"),
        ({"stats": "norm"}, TypeError, "stats must be an iterable of names, not str"),
        ({"stats": [1]}, TypeError, "stats must hold names, not int"),
        ({"stats": 5}, TypeError, "stats must be an iterable of names, not int"),
        ({"eps": -1e-9}, ValueError, "eps must be a finite number of at least 0, not -1e-09"),
        ({"eps": math.nan}, ValueError, "eps must be a finite number of at least 0, not nan"),
        ({"eps": math.inf}, ValueError, "eps must be a finite number of at least 0, not inf"),
        ({"eps": "small"}, TypeError, "eps must be a number, not str"),
        ({"eps": True}, TypeError, "eps must be a number, not bool"),
        ({"threads": 0}, ValueError, "threads must be from 1 to 256, not 0"),
        ({"threads": 10**20}, ValueError, "threads must be from 1 to 256, not 10"),
        ({"threads": 1.5}, TypeError, "threads must be an int, not float"),
        ({"tensors": 3}, TypeError, "tensors must be a tensor or an iterable of tensors, not int"),
        ({"tensors": "ab"}, TypeError, "tensors must be a tensor or an iterable .*, not str"),
        ({"tensors": {"a": torch.ones(1)}}, TypeError, "tensors must be .*, not dict"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, text):
    with pytest.raises(error, match=f"^{text}"):
        trainmon.tensor_stats(**({"tensors": torch.ones(3)} | arguments))


def test_shape_of_the_answer():
    model = torch.nn.Linear(3, 2)
    got = trainmon.tensor_stats(model.parameters(), stats=["nans", "norm"])
    assert list(got) == ["nans", "norm"]
    assert got["nans"].dtype == np.int64 and got["norm"].dtype == np.float64
    assert got["norm"].shape == (2,)
    none = trainmon.tensor_stats([])
    assert list(none) == [line["name"] for line in _core.stat_table()]
    assert all(values.shape == (0,) for values in none.values())
    assert trainmon.tensor_stats(torch.ones(2), stats=[]) == {}


def test_raw_states_are_checked():
    with pytest.raises(ValueError, match="14 columns"):
        _core.merge_states(np.zeros((2, 13)))
    with pytest.raises(ValueError, match="14 columns"):
        _core.derive(["norm"], np.zeros((2, 15)))
    with pytest.raises(ValueError, match="'nrom' is not a statistic"):
        _core.derive(["nrom"], np.zeros((2, 14)))
    with pytest.raises(ValueError, match="level must be one of"):
        _core.set_cpu_level("sse9")


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_framework_operations_agree_with_exact_fractions(dtype):
    """The backend of devices without kernels of ours, on CPU tensors."""
    from trainmon.torch.measuring import ops

    rng = np.random.default_rng(9)
    tensors = []
    for n in (0, 1, 7, 5000):
        for kind in ("normal", "sparse", "shifted", "tiny"):
            base = torch.from_numpy(draw_numbers(rng, n, kind) * (30 if dtype in INTEGERS else 1))
            tensors.append(base.to(torch.int64).to(dtype) if dtype in INTEGERS else base.to(dtype))
    tensors += [tensors[-4][1::2], tensors[-3][:12].view(3, 4).t(), tensors[-3][:5].expand(3, 5)]
    if dtype in FLOATS:
        for bad in ([math.nan], [math.inf], [-math.inf], [math.inf, -math.inf]):
            tensors.append(torch.cat([tensors[3].double(), torch.tensor(bad)]).to(dtype))
    states = torch.stack([ops.measure(tensor, 1e-8) for tensor in tensors]).numpy()
    got = dict(zip(STATS, _core.derive(STATS, states), strict=True))
    for i, tensor in enumerate(tensors):
        values = [float(v) for v in tensor.double().flatten().tolist()]
        want, mean_abs = exact(values, FLOATS.get(dtype, 0), 1e-8)
        check(got, want, mean_abs, i)


def test_the_page_of_statistics_is_current():
    script = pathlib.Path(__file__).parents[3] / "scripts" / "statistics_doc.py"
    page = runpy.run_path(str(script))
    assert page["PATH"].read_text(encoding="utf-8") == page["text"]()
