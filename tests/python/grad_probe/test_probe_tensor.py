# trainmon.probe_tensor against NumPy, torch, hashlib and zlib, over types, layouts and levels.
import hashlib
import math
import random
import threading
import zlib

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import trainmon
from trainmon import _core

BLOCK = 4096  # boundaries of the work lie here; a wrong guess only makes the tests weaker
LEVELS = {
    "baseline": ["baseline"],
    "avx2": ["baseline", "avx2"],
    "avx512": ["baseline", "avx2", "avx512"],
}[_core.detected_cpu_level()]
FLOATS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
INTEGERS = [
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint64,
    torch.uint32,
    torch.uint16,
    torch.uint8,
]
LENGTHS = st.one_of(
    st.integers(0, 70),
    st.builds(lambda b, d: b * BLOCK + d, st.integers(1, 3), st.integers(-35, 35)),
)
BOUNDS = [-1.0, -1e-39, 0.0, 1e-39, 0.1, 1.0, 448.0, 1e30]


@pytest.fixture(autouse=True)
def restore_level():
    yield
    _core.set_cpu_level(_core.detected_cpu_level())


def any_bits(dtype, n, seed):
    """A tensor of any bits: NaN of either sign, both zeros, infinities, subnormal numbers."""
    random = np.random.default_rng(seed)
    size = torch.empty(0, dtype=dtype).element_size()
    data = random.integers(0, 256, n * size, dtype=np.uint8).reshape(n, size)
    if dtype == torch.bool:
        data &= 1
    data[random.random(n) < 0.2] = 0
    data[random.random(n) < 0.1] = 255 if dtype != torch.bool else 1
    return torch.from_numpy(data.reshape(-1)).view(dtype)


def as_float32(tensor):
    """The elements in C order as float32, by torch."""
    values = tensor.contiguous().float().numpy().reshape(-1)
    if tensor.dtype in (torch.float16, torch.float8_e5m2):
        # Which bits a NaN gets varies with its place there; the processor keeps its own, quiet.
        half = tensor.contiguous().view(-1)
        if tensor.dtype == torch.float16:
            bits = half.view(torch.int16).numpy().astype(np.uint32)
        else:
            bits = half.view(torch.uint8).numpy().astype(np.uint32) << 8
        quiet = (bits & 0x8000) << 16 | 0x7FC00000 | (bits & 0x3FF) << 13
        values = np.where(np.isnan(values), quiet.view(np.float32), values)
    return values


def compared(tensor):
    """The elements in C order, in the type that bounds are compared in."""
    if tensor.dtype.is_floating_point and tensor.dtype != torch.float64:
        return as_float32(tensor)
    return tensor.contiguous().numpy().astype(np.float64).reshape(-1)


def counts_of(values, bounds):
    counts = []
    below = np.zeros(values.shape, dtype=bool)
    for bound in np.asarray(bounds, dtype=np.float64).astype(values.dtype):
        here = (values <= bound) & ~below
        counts.append(int(here.sum()))
        below |= here
    return [*counts, int((~below).sum())]


def packed(bits):
    return np.packbits(bits, bitorder="little")


def stored_bytes(tensor):
    whole = torch.empty(tensor.numel(), dtype=tensor.dtype)  # contiguous() keeps strides of nothing
    return whole.copy_(tensor.reshape(-1)).view(torch.uint8).numpy().tobytes()


def fast64(data, item):
    """The definition in trainmon/probe.h, in NumPy."""
    factor = np.uint64(0x9E3779B97F4A7C15)

    def take(h, w):
        x = (h ^ w) * factor
        return x ^ (x >> np.uint64(29))

    digest = factor
    with np.errstate(over="ignore"):
        for begin in range(0, len(data), 262144 * item):
            chunk = data[begin : begin + 262144 * item]
            words = np.frombuffer(chunk + bytes(-len(chunk) % 256), dtype="<u8").reshape(-1, 32)
            lanes = np.arange(1, 33, dtype=np.uint64) * factor
            for stripe in words:
                lanes = take(lanes, stripe)
            value = np.uint64(len(chunk))
            for lane in lanes:
                value = take(value, lane)
            digest = take(digest, value)
        digest = take(digest, np.uint64(len(data)))
    return f"{int(digest):016x}"


def check(tensor, bounds=BOUNDS, threads=1):
    """Everything asked for of a torch tensor."""
    values = compared(tensor)
    single = as_float32(tensor).tobytes()
    want = {
        "md5": hashlib.md5(single).hexdigest(),
        "crc32": f"{zlib.crc32(single):08x}",
        "fast64": fast64(stored_bytes(tensor), tensor.element_size()),
        "none": None,
    }
    for digest, text in want.items():
        got = trainmon.probe_tensor(
            tensor, bounds=bounds, signs="ternary", digest=digest, threads=threads
        )
        assert got.digest == text
    assert got.intervals.dtype == np.int64
    assert got.intervals.tolist() == counts_of(values, bounds)
    assert got.exact_zeros == int((values == 0).sum())
    assert got.signs.dtype == np.uint8
    assert np.array_equal(got.signs, np.stack([packed(values > 0), packed(values < 0)]))
    positive = trainmon.probe_tensor(tensor, signs="positive").signs
    assert np.array_equal(positive, got.signs[:1])
    for name, value in trainmon.tensor_stats(tensor).items():
        assert np.float64(got.stats[name]).tobytes() == np.float64(value[0]).tobytes(), name


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
@settings(max_examples=25, deadline=None)
@given(n=LENGTHS, seed=st.integers(0, 2**32), level=st.sampled_from(LEVELS))
def test_any_bits_of_any_type(dtype, n, seed, level):
    _core.set_cpu_level(level)
    check(any_bits(dtype, n, seed))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8], ids=str
)
@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), max_size=4),
    order=st.randoms(use_true_random=False),
    step=st.integers(1, 3),
    expanded=st.integers(0, 3),
    threads=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
@example(sizes=[0], order=random.Random(0), step=2, expanded=0, threads=1, seed=0)
def test_any_layout(dtype, sizes, order, step, expanded, threads, seed):
    tensor = any_bits(dtype, math.prod(sizes) * step, seed).view(*sizes, step)[..., 0]
    dims = list(range(tensor.dim()))
    order.shuffle(dims)
    tensor = tensor.permute(dims)
    if expanded:
        tensor = tensor.unsqueeze(0).expand(expanded, *tensor.shape)
    check(tensor, threads=threads)


@settings(max_examples=50, deadline=None)
@given(
    rows=st.integers(1, 50),
    columns=st.integers(1, 200),
    steps=st.tuples(*[st.sampled_from([-3, -2, -1, 1, 2])] * 2),
    seed=st.integers(0, 2**32),
)
def test_negative_strides_of_numpy(rows, columns, steps, seed):
    array = any_bits(torch.float32, rows * columns, seed).numpy().reshape(rows, columns)
    view = array[:: steps[0], :: steps[1]]
    got = trainmon.probe_tensor(view, bounds=BOUNDS, signs="positive", digest="crc32")
    assert np.array_equal(got.signs[0], packed(view.reshape(-1) > 0))
    assert got.intervals.tolist() == counts_of(view.reshape(-1), BOUNDS)
    assert got.digest == f"{zlib.crc32(view.tobytes()):08x}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_several_chunks(dtype, threads):
    check(any_bits(dtype, 3 * 262144 + 4097, 1), threads=threads)


@pytest.mark.parametrize("digest", ["md5", "crc32", "fast64"])
def test_empty_and_scalar(digest):
    check(torch.empty(0, 3))
    check(torch.tensor(-0.0))
    check(torch.tensor(2.5, dtype=torch.bfloat16))
    got = trainmon.probe_tensor(torch.empty(0), bounds=[0], signs="ternary", digest=digest)
    assert got.signs.shape == (2, 0)
    assert got.intervals.tolist() == [0, 0]


def test_the_manuals_examples():
    gradient = torch.tensor([9.3, 5.4, -1.0, -12.3])
    got = trainmon.probe_tensor(gradient, bounds=[-10, 0, 10])
    assert got.intervals.tolist() == [1, 1, 2, 0]
    got = trainmon.probe_tensor(torch.tensor([[-2, 2], [0.2, 0.3]]), digest="crc32")
    assert got.digest == "e2863940"


@settings(max_examples=60, deadline=None)
@given(
    bounds=st.lists(st.floats(allow_nan=False), max_size=200, unique=True),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.float64]),
    seed=st.integers(0, 2**32),
    level=st.sampled_from(LEVELS),
)
def test_any_bounds(bounds, dtype, seed, level):
    _core.set_cpu_level(level)
    bounds = sorted(set(bounds))  # 0.0 and -0.0 are one
    tensor = torch.cat([any_bits(dtype, 2000, seed), torch.tensor(bounds).to(dtype)])
    got = trainmon.probe_tensor(tensor, bounds=bounds)
    kind = np.float64 if dtype == torch.float64 else np.float32
    # The last interval has +inf: no bound is beyond the largest number.
    with np.errstate(over="ignore"):
        limits = np.minimum(np.array(bounds, dtype=kind), np.finfo(kind).max)
    assert got.intervals.tolist() == counts_of(compared(tensor), limits)
    assert got.intervals.sum() == tensor.numel()


@pytest.mark.parametrize("count", [64, 65, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_many_bounds(count, dtype):
    tensor = torch.linspace(-50, 50, 9001).to(dtype)
    check(tensor, bounds=np.linspace(-49, 49, count).tolist())


def test_bounds_that_are_one_float32():
    tensor = torch.tensor([1.0, 2.0, 3.0])
    got = trainmon.probe_tensor(tensor, bounds=[2.0, 2.0 + 1e-12, 2.0 + 2e-12])
    assert got.intervals.tolist() == [2, 0, 0, 1]
    got = trainmon.probe_tensor(tensor.double(), bounds=[2.0 - 1e-12, 2.0, 2.0 + 1e-12])
    assert got.intervals.tolist() == [1, 1, 0, 1]


def test_signs_of_integers_beyond_int64_and_float64():
    big = np.array([0, 1, 2**63, 2**64 - 1], dtype=np.uint64)
    got = trainmon.probe_tensor(big, signs="ternary", bounds=[0, 2.0**63])
    assert got.signs.tolist() == [[0b1110], [0]]
    assert got.intervals.tolist() == [1, 2, 1]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_flushed_subnormals_count_as_they_are(dtype, level):
    _core.set_cpu_level(level)
    tensor = torch.cat([torch.tensor([5e-324, -5e-324]).to(dtype), any_bits(dtype, 5000, 3)])
    words = {8: torch.int64, 4: torch.int32, 2: torch.int16}[tensor.element_size()]
    tensor.view(words)[:100] = torch.arange(1, 101, dtype=words)  # the smallest subnormal numbers
    bounds = [-1e-40, 0.0, 1e-40, 1e-39]
    want = trainmon.probe_tensor(tensor, bounds=bounds, signs="ternary", digest="md5")
    assert want.signs[0, :12].tolist() == [255] * 12
    assert torch.set_flush_denormal(True)
    try:
        got = trainmon.probe_tensor(tensor, bounds=bounds, signs="ternary", digest="md5")
        flushed = (torch.tensor([1e-310], dtype=torch.float64) + 0).item()
    finally:
        torch.set_flush_denormal(False)
    assert flushed == 0  # the mode was on
    assert np.array_equal(got.signs, want.signs)
    assert got.intervals.tolist() == want.intervals.tolist()
    assert got.exact_zeros == want.exact_zeros
    assert got.digest == want.digest
    assert got.stats == pytest.approx(want.stats, rel=0, abs=0, nan_ok=True)


def digest_of(array):
    return trainmon.probe_tensor(array, digest="fast64").digest


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_fast64_sees_every_bit_and_every_swap(dtype):
    array = np.random.default_rng(0).integers(0, 256, 3 * 262144, dtype=np.uint8).view(dtype)
    seen = {digest_of(array)}
    raw = array.view(np.uint8)
    places = [(i, 1 << i % 8) for i in [*range(70), 4095, 4096, 262143, len(raw) - 1]]
    for place, bit in places:
        raw[place] ^= bit
        seen.add(digest_of(array))
        raw[place] ^= bit
    for a, b, n in [(0, 1, 1), (0, 64, 64), (0, 4096, 4096), (5, 4101, 7), (0, 262144 // 2, 999)]:
        other = array.copy()
        other[a : a + n], other[b : b + n] = array[b : b + n], array[a : a + n]
        seen.add(digest_of(other))
    assert len(seen) == 1 + len(places) + 5


def test_fast64_of_zeros_tells_lengths_apart():
    digests = {digest_of(np.zeros(n, dtype=np.uint8)) for n in range(1000)}
    assert len(digests) == 1000


def test_nothing_is_made_that_was_not_asked_for():
    got = trainmon.probe_tensor(torch.ones(3))
    assert got.stats["norm"] == math.sqrt(3)
    assert got.stats["count"] == 3 and isinstance(got.stats["count"], int)
    assert got[1:] == (None, None, None, None)


def test_what_was_found_outlives_the_probe():
    signs = [trainmon.probe_tensor(torch.ones(80), signs="positive").signs for _ in range(50)]
    assert all(row.tolist() == [[255] * 10] for row in signs)


def test_several_python_threads_at_once():
    tensors = [any_bits(torch.float32, 50_000, seed) for seed in range(4)]
    want = [trainmon.probe_tensor(t, signs="positive", digest="crc32") for t in tensors]
    got = [None] * 4

    def work(i):
        for _ in range(20):
            got[i] = trainmon.probe_tensor(tensors[i], signs="positive", digest="crc32")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(got, want, strict=True):
        assert one.digest == other.digest and np.array_equal(one.signs, other.signs)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"bounds": [1, 1]}, ValueError, r"bounds.*ascend.*bounds\[1\] is 1, after 1"),
        ({"bounds": [0, math.nan]}, ValueError, r"bounds\[1\] is nan"),
        ({"bounds": [math.nan]}, ValueError, r"bounds\[0\] is nan"),
        ({"bounds": "abc"}, TypeError, "bounds must be an iterable of numbers, not str"),
        ({"bounds": [True]}, TypeError, "bounds must hold numbers, not bool"),
        ({"bounds": 3}, TypeError, "bounds must be an iterable of numbers, not int"),
        ({"bounds": [None]}, TypeError, "bounds must hold numbers, not NoneType"),
        ({"bounds": [10**400]}, ValueError, "bounds.*float64"),
        ({"signs": "both"}, ValueError, "signs must be one of none, positive, ternary, not 'both'"),
        ({"signs": []}, TypeError, r"signs must be one of none, positive, ternary, not \[\]"),
        ({"digest": "sha1"}, ValueError, "digest must be one of none, md5, crc32, fast64"),
        ({"eps": -1}, ValueError, "eps"),
        ({"threads": 0}, ValueError, "threads must be from 1 to 256, not 0"),
        ({"threads": 1.5}, TypeError, "threads must be an int, not float"),
    ],
)
def test_wrong_arguments(arguments, error, words):
    with pytest.raises(error, match=words):
        trainmon.probe_tensor(torch.ones(3), **arguments)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.ones(3, dtype=torch.complex64), "complex64"),
        (torch.ones(3, device="meta"), "meta"),
        (torch.ones(3).to_sparse(), "sparse"),
        ([1.0, 2.0], "list"),
        (None, "tensor .*NoneType"),
    ],
)
def test_tensors_that_cannot_be_probed(tensor, words):
    with pytest.raises(TypeError, match=words):
        trainmon.probe_tensor(tensor)
