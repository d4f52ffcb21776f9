# Spectra of weights against a full decomposition, routers against loops over pairs and tokens.
import contextlib
import itertools
import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import trainmon
from test_features_attention import Sizes
from trainmon.torch.features import spectral as spectral_module
from trainmon.torch.features.routers import per_token_expert_entropy, router_weight_similarity
from trainmon.torch.features.spectral import STEPS, TOLERANCE, spectral
from trainmon.torch.measuring import isolated


def gaussian(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def with_values(values, rows=60, columns=40, seed=0):
    """A matrix with these singular values and no others but zero."""
    left, _ = torch.linalg.qr(gaussian(rows, len(values), seed=seed, dtype=torch.float64))
    right, _ = torch.linalg.qr(gaussian(columns, len(values), seed=seed + 1, dtype=torch.float64))
    return (left * torch.tensor(values, dtype=torch.float64)) @ right.T


MATRICES = {
    **{
        f"gaussian {m}x{n}": gaussian(m, n)
        for m, n in [(1, 1), (1, 7), (7, 1), (2, 2), (3, 50), (64, 64), (192, 768), (768, 192)]
        + [(500, 400), (33, 1000)]
    },
    "3.0 and 2.9": with_values([3.0, 2.9] + [0.1] * 20),
    "1.0 and 0.999": with_values([1.0, 0.999] + [0.5] * 20),
    "1.0 and 0.9999, single": with_values([1.0, 0.9999] + [0.5] * 20).float(),
    "a tie": with_values([1.0, 1.0, 1.0] + [0.5] * 20),
    "even spectrum": with_values([1 - 0.001 * i for i in range(40)]),
    "rank 1": with_values([2.0]),
    "rank 3": with_values([5.0, 4.0, 1.0]),
    "diagonal": torch.diag(torch.tensor([3.0, 2.0, 1.0])),
    "identity": torch.eye(50),
    "orthogonal": torch.linalg.qr(gaussian(64, 64))[0],
    "ones": torch.ones(30, 40),
    "one element": torch.zeros(20, 30).index_put(
        (torch.tensor(3), torch.tensor(4)), torch.ones(())
    ),
    "tiny": 1e-35 * gaussian(30, 20, dtype=torch.float64).float(),
    "huge": 1e36 * gaussian(30, 20),
    "bfloat16": gaussian(300, 200, dtype=torch.bfloat16),
    "float16": (1000 * gaussian(300, 200)).half(),
    "transposed": gaussian(200, 90).t(),
    "strided": gaussian(100, 120)[::3, 1::2],
    "expanded": gaussian(1, 30).expand(20, 30),
}


@pytest.mark.parametrize("look", [True, False])
@pytest.mark.parametrize("name", MATRICES)
def test_spectrum(name, look):
    matrix = MATRICES[name]
    values = torch.linalg.svdvals(matrix.double())
    rank, norm, residual = (value.item() for value in spectral(matrix, look=look))
    rounding = 1e-6 if matrix.dtype != torch.float64 else 1e-12
    assert norm <= values[0] * (1 + rounding)
    assert norm >= values[0] * (1 - TOLERANCE)
    assert rank == pytest.approx(values.norm().item() / values[0].item(), rel=TOLERANCE)
    assert residual <= TOLERANCE
    nearest = (values - norm).abs().min().item()  # the bound holds
    assert nearest <= (residual + rounding) * norm


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(0, 999), st.floats(-30, 30), st.booleans()
)
def test_spectrum_of_any_shape_and_scale(rows, columns, seed, scale, look):
    matrix = 10**scale * gaussian(rows, columns, seed=seed)
    largest, *others = torch.linalg.svdvals(matrix.double()).tolist()
    rank, norm, residual = (value.item() for value in spectral(matrix, look=look))
    # A known fault: of two that are as close it may find the second.
    if others and others[0] > 0.99 * largest and norm < largest * (1 - TOLERANCE):
        largest = others[0]
    assert norm == pytest.approx(largest, rel=TOLERANCE) and residual <= TOLERANCE
    assert rank == pytest.approx(matrix.double().norm().item() / largest, rel=TOLERANCE)


@pytest.mark.parametrize("shape", [(9, 40), (40, 9)])
def test_a_first_vector_that_misses_the_sequence(shape):
    """Right singular vectors orthogonal to the fixed sequence: the largest row finds them."""
    matrix = gaussian(*shape, dtype=torch.float64)
    smaller = min(shape)
    places = torch.arange(1, smaller + 1, dtype=torch.float64)
    sequence = places.mul((math.sqrt(5) - 1) / 2).frac()
    sequence /= sequence.norm()
    away = torch.eye(smaller, dtype=torch.float64) - torch.outer(sequence, sequence)
    matrix = away @ matrix if shape[0] == smaller else matrix @ away
    for seen in (matrix, matrix.float()):
        _, norm, _ = spectral(seen)
        assert norm.item() == pytest.approx(torch.linalg.svdvals(matrix)[0].item(), rel=TOLERANCE)


@pytest.mark.parametrize("look", [True, False])
def test_a_first_vector_that_misses_the_largest_row(look):
    """The largest row is a singular vector, of the second value: the sequence finds the first."""
    matrix = torch.tensor([[3.0, 0.0, 0.0], [0.0, 2.0, 2.0], [0.0, 2.0, 2.0]])
    assert spectral(matrix, look=look)[1].item() == pytest.approx(4.0)


@pytest.mark.parametrize("row", [1.0, -1.0, -3.0])
def test_a_largest_row_opposite_to_the_sequence(row):
    matrix = torch.full((5, 1), row)
    rank, norm, _ = spectral(matrix)
    assert norm.item() == pytest.approx(abs(row) * math.sqrt(5)) and rank.item() == pytest.approx(1)


@pytest.mark.parametrize("look", [True, False])
@pytest.mark.parametrize(
    "nothing", [torch.zeros(4, 3), torch.ones(3), torch.ones(2, 2, 2), torch.ones(0, 4)]
)
def test_spectrum_of_nothing(nothing, look):
    assert [value.item() for value in spectral(nothing, look=look)] == [0, 0, 0]


@pytest.mark.parametrize("look", [True, False])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_spectrum_with_a_non_finite_value(bad, dtype, look):
    matrix = gaussian(12, 9, dtype=dtype)
    matrix[5, 2] = bad
    rank, norm, _ = spectral(matrix, look=look)
    assert rank.isnan() and norm.isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_change_nothing(monkeypatch, dtype):
    matrix = gaussian(70, 50, dtype=dtype)
    whole = spectral(matrix)
    monkeypatch.setattr(spectral_module, "CPU_BLOCK", 400)
    for one, two in zip(whole, spectral(matrix)):
        assert one.item() == pytest.approx(two.item(), rel=2e-5, abs=1e-6)
    for one, two in zip(whole[:2], spectral(matrix.t())):
        assert one.item() == pytest.approx(two.item(), rel=2e-5)


def test_spectrum_is_the_same_every_time_and_draws_nothing():
    matrix, state = gaussian(90, 70), torch.get_rng_state()
    first = spectral(matrix)
    torch.manual_seed(5)
    other = torch.get_rng_state()
    for _ in range(5):
        for one, two in zip(first, spectral(matrix)):
            assert torch.equal(one, two)
    assert torch.equal(other, torch.get_rng_state())
    torch.set_rng_state(state)
    spectral(matrix)
    assert torch.equal(state, torch.get_rng_state())


def operations(monkeypatch, call):
    monkeypatch.setattr(isolated, "no_modes", contextlib.nullcontext)
    with Sizes() as sizes:
        call()
    return sizes


def test_the_cost_is_bounded(monkeypatch):
    """An even spectrum never converges: products with the matrix are two per step, and no more."""
    matrix = gaussian(1500, 1400)
    sizes = operations(monkeypatch, lambda: spectral(matrix, look=False))
    blocks = math.ceil(matrix.numel() / spectral_module.CPU_BLOCK) + 1
    products = sizes.seen.count("aten.mv.default")
    assert 2 * STEPS <= products <= 2 * STEPS * blocks + 2 * STEPS + 1


def test_a_large_matrix_of_another_dtype_is_never_copied_whole(monkeypatch):
    matrix = gaussian(2000, 1000, dtype=torch.bfloat16)
    sizes = operations(monkeypatch, lambda: spectral(matrix))
    assert sizes.largest <= max(matrix.nbytes, 4 * spectral_module.CPU_BLOCK)


def test_a_device_is_never_waited_for(monkeypatch):
    """Looking at a value is an operation, and so is a decomposition."""
    waits = ("_local_scalar_dense", "linalg_eigh", "nonzero", "linalg_svd")
    matrix = gaussian(40, 30)
    looking = operations(monkeypatch, lambda: spectral(matrix)).seen
    assert any("_local_scalar_dense" in op for op in looking)
    for call in (
        lambda: spectral(matrix, look=False),
        lambda: router_weight_similarity(matrix),
        lambda: per_token_expert_entropy(matrix),
    ):
        seen = operations(monkeypatch, call).seen
        assert seen and not any(wait in op for op in seen for wait in waits)


# --- routers -------------------------------------------------------------------------------------


def similarity(weight):
    """By pairs, in float64."""
    weight = weight.double() / weight.double().abs().max()
    if weight.shape[0] > weight.shape[1]:
        weight = weight.t()
    pairs = list(itertools.combinations(weight, 2))
    cosines = [torch.nn.functional.cosine_similarity(one, two, dim=0).item() for one, two in pairs]
    return math.fsum(cosines) / len(pairs)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(2, 12),
    st.integers(2, 30),
    st.integers(0, 999),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    st.floats(-25, 25),
)
def test_similarity(experts, width, seed, dtype, scale):
    weight = (10**scale * gaussian(experts, width, seed=seed)).to(dtype)
    found = router_weight_similarity(weight)
    assert found.item() == pytest.approx(similarity(weight), abs=3e-6)
    if experts != width:
        turned = router_weight_similarity(weight.t())
        assert found.item() == pytest.approx(turned.item(), abs=3e-6)


def test_similarity_at_the_ends():
    row = gaussian(1, 9)
    assert router_weight_similarity(row.repeat(4, 1)).item() == pytest.approx(1)
    assert router_weight_similarity(torch.eye(5)).item() == 0
    assert router_weight_similarity(torch.cat([row, -row])).item() == pytest.approx(-1)
    zero = torch.cat([row, row, torch.zeros(1, 9)])
    assert router_weight_similarity(zero).item() == pytest.approx(1 / 3)
    for none in (row, row.t(), torch.ones(4), torch.ones(2, 0), torch.ones(3, 3, 3)):
        assert router_weight_similarity(none).item() == 0
    assert router_weight_similarity(torch.tensor([[1.0, math.nan], [1, 2]])).isnan()
    assert router_weight_similarity(torch.tensor([[1.0, math.inf], [1, 2]])).isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7, 4), (3, 5, 6), (2, 1)])
def test_entropy_of_tokens(shape, dtype):
    logits = (5 * gaussian(*shape)).to(dtype)
    found = per_token_expert_entropy(logits)
    assert found.shape == shape[:-1]
    for token, value in zip(logits.double().reshape(-1, shape[-1]), found.flatten()):
        powers = [math.exp(x) for x in token.tolist()]
        chances = [x / sum(powers) for x in powers]
        expected = -math.fsum(p * math.log(p) for p in chances)
        assert value.item() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_entropy_of_odd_logits():
    assert per_token_expert_entropy(torch.ones(4)) is None
    even, cut, lost = per_token_expert_entropy(
        torch.tensor([[2.0, 2.0, 2.0], [1.0, 1.0, -math.inf], [1.0, math.nan, 0.0]])
    ).tolist()
    assert even == pytest.approx(math.log(3)) and cut == pytest.approx(math.log(2))
    assert lost == 0


def test_a_trace_has_nothing_of_the_spectrum_in_it(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 6)
    bare = torch.jit.trace(model, x)
    monitor = trainmon.watch(model, optimizer, kinds=["spectral"], every=1, out=tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        traced = torch.jit.trace(model, x)
    kinds = [[node.kind() for node in one.inlined_graph.nodes()] for one in (traced, bare)]
    assert kinds[0] == kinds[1] and len(kinds[0]) > 3
    model(x).sum().backward()  # and the spectrum is still recorded
    optimizer.step()
    monitor.stop()
    assert trainmon.read_table(str(tmp_path / "run"), kinds=["spectral_norm"]).num_rows == 2
