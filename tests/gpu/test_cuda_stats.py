# trainmon.tensor_stats of CUDA tensors against exact arithmetic and float64 sums on the CPU.
import math

import numpy as np
import pytest
import torch

import trainmon
from test_tensor_stats import FLOATS, INTEGERS, exact
from trainmon import _core

CHUNK_BYTES = 131072  # boundaries of the sums lie here; a wrong guess only makes the tests weaker
EPS = 1e-8


def stats(tensor, eps=EPS):
    return {name: values[0] for name, values in trainmon.tensor_stats([tensor], eps=eps).items()}


def close(got, expected, scale=0.0, rel=1e-13):
    if math.isnan(expected):
        return math.isnan(got)
    return got == expected or abs(got - expected) <= rel * max(abs(expected), scale)


def check(tensor, eps=EPS):
    values = tensor.cpu().to(torch.float64).flatten().tolist()
    if not tensor.is_floating_point():
        values = tensor.cpu().flatten().tolist()
        values = [int(v) for v in values]
    expected, scale = exact(values, FLOATS.get(tensor.dtype, 0.0), eps)
    got = stats(tensor, eps)
    for name, value in expected.items():
        where = f"{name} of {tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}"
        if name in ("mean", "std", "norm"):
            tight = 1e-12 if name != "std" else 1e-9
            assert close(float(got[name]), float(value), scale, tight), where
        else:
            assert close(float(got[name]), float(value), rel=0.0), (where, got[name], value)


def some(n, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=generator, dtype=torch.float64)
    x = x * 10.0 ** torch.randint(-12, 4, (n,), generator=generator)
    x[torch.rand(n, generator=generator) < 0.1] = 0.0
    if dtype in FLOATS:
        limit = torch.finfo(dtype).max
        return x.clamp(-limit, limit).to(dtype).cuda()
    if dtype is torch.bool:
        return (x > 0).cuda()
    info = torch.iinfo(dtype)
    wide = torch.randint(-(2**62), 2**62, (n,), generator=generator)
    return (
        (wide % (min(info.max, 2**62) + 1) - (0 if info.min == 0 else info.max // 2))
        .to(dtype)
        .cuda()
    )


@pytest.mark.parametrize("dtype", list(FLOATS), ids=str)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 16, 31, 255, 257, 4095, 5000])
def test_short(dtype, n):
    check(some(n, dtype, n))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("n", [1, 7, 1000])
def test_integers(dtype, n):
    check(some(n, dtype, n))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str
)
@pytest.mark.parametrize(
    "chunks, more",
    [(1, -1), (1, 0), (1, 1), (2, 3), (32, 0), (32, 1), (33, -7), (1024, 1), (1100, 5)],
)
def test_chunk_boundaries(dtype, chunks, more):
    n = chunks * CHUNK_BYTES // dtype.itemsize + more
    big = some(n, dtype, chunks)
    got = stats(big)
    x = big.cpu().to(torch.float64).numpy()
    size = math.fsum(np.abs(x)) / n
    assert got["count"] == n
    assert got["min"] == x.min() and got["max"] == x.max() and got["absmax"] == np.abs(x).max()
    assert got["zeros"] == np.count_nonzero(np.abs(x) < EPS) / n
    tiny = (np.abs(x) < FLOATS[dtype]) & (x != 0)
    assert got["subnormals"] == np.count_nonzero(tiny)
    assert abs(got["mean"] - math.fsum(x) / n) <= 1e-15 * size
    norm = math.sqrt(math.fsum(x * x))
    assert abs(got["norm"] - norm) <= 1e-14 * norm
    assert abs(got["std"] - x.std()) <= 1e-9 * max(x.std(), size)


@pytest.mark.parametrize("dtype", list(FLOATS), ids=str)
@pytest.mark.parametrize("offset", range(1, 17))
def test_alignment(dtype, offset):
    check(some(3000, dtype, offset)[offset : offset + 2500])


LAYOUTS = {
    "transposed": lambda x: x[:2400].view(40, 60).t(),
    "every third": lambda x: x[::3],
    "columns": lambda x: x[:2400].view(40, 60)[:, 3:17],
    "expanded": lambda x: x[:50].view(50, 1).expand(50, 31),
    "channels last": lambda x: x[:2304].view(2, 8, 12, 12).to(memory_format=torch.channels_last),
    "gaps in three": lambda x: x[:2400].view(10, 12, 20)[::2, 1:11:3, ::4],
    "scalar": lambda x: x[7],
    "empty": lambda x: x[:0].view(0, 5),
}


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int32], ids=str
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(dtype, layout):
    check(LAYOUTS[layout](some(2500, dtype, 3)))


def test_strided_over_many_chunks():
    x = torch.randn(3000, 2000, device="cuda")[:, ::2]
    got = stats(x)
    wide = x.cpu().double()
    assert got["count"] == x.numel()
    assert got["min"] == wide.min() and got["max"] == wide.max()
    assert close(got["norm"], wide.norm().item(), rel=1e-12)


@pytest.mark.parametrize("dtype", list(FLOATS), ids=str)
@pytest.mark.parametrize("place", [0, 1, 777, 2499])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_not_finite(dtype, place, bad):
    if dtype is torch.float8_e4m3fn and math.isinf(bad):
        bad = math.nan  # it has no infinities
    x = some(2500, dtype, 5).cpu().to(torch.float64)
    x[place] = bad
    limit = torch.finfo(dtype).max
    x = torch.where(torch.isfinite(x), x.clamp(-limit, limit), x)
    check(x.to(dtype).cuda())


def test_all_not_finite():
    for values in ([math.nan] * 5, [math.inf] * 5, [-math.inf, math.inf, math.nan]):
        check(torch.tensor(values, device="cuda"))


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e-170, 1e-100, 1e100, 1e160, 1e300])
def test_float64_of_any_scale(scale):
    x = torch.randn(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * scale
    got = stats(x.cuda())
    wide = np.asarray(x.numpy(), dtype=np.longdouble)
    norm = float(np.sqrt((wide * wide).sum()))
    assert abs(got["norm"] - norm) <= (1e-13 if scale > 1e-300 else 1e-4) * norm
    assert got["min"] == x.min() and got["max"] == x.max()
    assert abs(got["std"] - float(wide.std())) <= (1e-9 if scale > 1e-300 else 1e-4) * norm


@pytest.mark.parametrize("centre, spread", [(1.0, 1e-6), (-3e4, 1e-2), (1.0, 0.0)])
def test_narrow_about_a_mean(centre, spread):
    x = (torch.randn(300_000, generator=torch.Generator().manual_seed(2)) * spread + centre).cuda()
    got = stats(x)
    wide = x.cpu().double().numpy()
    assert abs(got["std"] - wide.std()) <= 1e-6 * max(wide.std(), 1e-30)


def states(tensors):
    measured, elsewhere, refused = _core.measure_tensors(tensors, EPS, 1)
    assert not elsewhere and not refused
    return np.asarray(measured)


def test_the_same_bits_alone_together_and_again():
    dtypes = [torch.float32, torch.bfloat16, torch.float64, torch.float16]
    sizes = [1, 100, 20_000, 300_000, 3_000_000, 5_000_001]
    tensors = [some(n, dtype, n % 7) for n in sizes for dtype in dtypes]
    together = states(tensors)
    backwards = states(tensors[::-1])[::-1]
    alone = np.concatenate([states([tensor]) for tensor in tensors])
    for other in (backwards, alone, states(tensors)):
        assert np.array_equal(together.view(np.uint64), np.ascontiguousarray(other).view(np.uint64))


def test_the_accuracy_of_a_hundred_million_elements():
    n = 100_000_000
    generator = torch.Generator(device="cuda").manual_seed(3)
    base = torch.randn(n, device="cuda", generator=generator)
    cases = {f"normal {s:g}": base * s for s in (1e-22, 1e-3, 1e20)}
    cases["lognormal"] = (base * 4).exp()
    cases["uniform"] = torch.rand(n, device="cuda", generator=generator)
    for name, x in cases.items():
        got = stats(x)
        wide = x.cpu().numpy().astype(np.longdouble)
        norm = float(np.sqrt((wide * wide).sum()))  # pairwise, in long double
        assert abs(got["norm"] - norm) <= 2e-8 * norm, name
        size = float(np.abs(wide).sum()) / n
        assert abs(got["mean"] - float(wide.sum()) / n) <= 1e-15 * size, name


def test_more_than_2_to_the_31_elements():
    n = 2**31 + 12345
    x = torch.zeros(n, dtype=torch.int8, device="cuda").view(torch.float8_e5m2)
    x.view(torch.int8)[-1] = 0x3C  # 1.0
    x.view(torch.int8)[2**31 + 5] = 0x40  # 2.0
    got = stats(x)
    assert got["count"] == n and got["max"] == 2.0 and got["norm"] == math.sqrt(5.0)
    assert got["zeros"] == (n - 2) / n
