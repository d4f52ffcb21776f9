# Entropy, largest weight and largest logit of attention against a dense softmax in float64.
import contextlib
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from trainmon.torch.features import attention
from trainmon.torch.features.attention import attention_features
from trainmon.torch.measuring import isolated

LAYOUTS = ("bhsd", "bshd", "sbhd")


def laid_out(tensor, layout):
    """A [b, h, s, d] tensor, contiguous in another order."""
    return tensor.permute(["bhsd".index(axis) for axis in layout]).contiguous()


def dense(query, key, causal, scale=None, mask=None):
    """The three, of every query one by one, with NumPy. Masks are bool (True: visible) or added."""
    query, key = query.double().numpy(), key.double().numpy()
    b, h, q, d = query.shape
    k, group = key.shape[2], h // key.shape[1]
    scale = 1 / math.sqrt(d) if scale is None else scale
    if mask is not None:
        mask = np.broadcast_to(
            mask.numpy() if mask.dtype == torch.bool else mask.double().numpy(), (b, h, q, k)
        )
    found = np.zeros((3, b, h, q))
    for batch in range(b):
        for head in range(h):
            for i in range(q):
                visible = range(max(0, i + 1 + k - q)) if causal else range(k)
                logits = []
                for j in visible:
                    logit = scale * (query[batch, head, i] @ key[batch, head // group, j])
                    if mask is not None and mask.dtype == bool:
                        if not mask[batch, head, i, j]:
                            continue
                    elif mask is not None:
                        if mask[batch, head, i, j] < -1e30:
                            continue
                        logit += mask[batch, head, i, j]
                    logits.append(logit)
                if not logits:
                    continue
                logits = np.array(logits)
                weights = np.exp(logits - logits.max())
                weights /= weights.sum()
                some = weights[weights > 0]
                found[:, batch, head, i] = -(some * np.log(some)).sum(), weights.max(), logits.max()
    return torch.from_numpy(found)


def assert_close(found, expected, tolerance=2e-5):
    for name, one, two in zip(("entropy", "largest weight", "largest logit"), found, expected):
        assert one.shape == two.shape, name
        torch.testing.assert_close(
            one.double(), two, rtol=tolerance, atol=tolerance, equal_nan=True, msg=name
        )


@st.composite
def calls(draw):
    size = lambda most: draw(st.integers(1, most))  # noqa: E731
    b, groups, group, q, k, d = size(3), size(3), size(3), size(9), size(9), size(5)
    torch.manual_seed(draw(st.integers(0, 1000)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]))
    spread = draw(st.sampled_from([0.1, 1.0, 5.0]))
    query = (spread * torch.randn(b, groups * group, q, d)).to(dtype)
    key = (spread * torch.randn(b, groups, k, d)).to(dtype)
    mask = None
    if (kind := draw(st.sampled_from(["none", "bool", "added", "most negative"]))) != "none":
        full = (b, groups * group, q, k)
        shape = [n if draw(st.booleans()) else 1 for n in full]
        hidden = torch.rand(shape) < 0.3
        if kind == "bool":
            mask = ~hidden
        else:
            lowest = -math.inf if kind == "added" else torch.finfo(torch.float32).min
            mask = torch.randn(shape).masked_fill(hidden, lowest)
    return {
        "query": query,
        "key": key,
        "layout": draw(st.sampled_from(LAYOUTS)),
        "causal": draw(st.booleans()),
        "scale": draw(st.sampled_from([None, 0.3])),
        "mask": mask,
        "most_bytes": draw(st.sampled_from([None, 1, 64, 200, 1000])),
    }


@settings(max_examples=250, deadline=None)
@given(calls())
def test_of_every_shape_layout_mask_and_size_of_blocks(call):
    expected = dense(call["query"], call["key"], call["causal"], call["scale"], call["mask"])
    layout = call["layout"]
    call["query"], call["key"] = (laid_out(call[name], layout) for name in ("query", "key"))
    found = attention_features(**call)
    wide = torch.float64 if call["query"].dtype == torch.float64 else torch.float32
    assert all(values.dtype == wide for values in found)
    assert_close(found, expected, 1e-10 if wide == torch.float64 and call["mask"] is None else 2e-5)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("q,k", [(200, 200), (130, 200), (200, 130)])
def test_of_several_blocks_of_queries(q, k, causal):
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, q, 8), torch.randn(2, 2, k, 8)
    expected = dense(query, key, causal)
    assert_close(attention_features(query, key, causal=causal), expected)
    assert_close(attention_features(query, key, causal=causal, most_bytes=20_000), expected)


def test_the_value_that_is_known():
    scores = torch.arange(1.0, 10.0).reshape(1, 1, 3, 3)
    entropy, most, logit = attention_features(
        scores, torch.eye(3).reshape(1, 1, 3, 3), causal=True, scale=1.0
    )
    assert entropy.mean().item() == pytest.approx(0.4715, abs=5e-5)
    assert most.mean().item() == pytest.approx(0.7988, abs=5e-5)
    assert logit.flatten().tolist() == [1.0, 5.0, 9.0]  # of what is visible alone


def test_even_weights_and_a_single_key():
    entropy, most, _ = attention_features(
        torch.zeros(1, 1, 5, 4), torch.randn(1, 1, 5, 4), causal=True
    )
    expected = torch.log(torch.arange(1.0, 6.0))
    torch.testing.assert_close(entropy.flatten(), expected)
    torch.testing.assert_close(most.flatten(), 1 / torch.arange(1.0, 6.0))
    assert entropy[0, 0, 0] == 0 and most[0, 0, 0] == 1


def test_huge_logits_are_exact():
    query = torch.tensor([1e6, 1e30, -1e30]).reshape(1, 1, 3, 1)
    key = torch.tensor([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1)
    entropy, most, logit = attention_features(query, key, causal=False)
    assert entropy.flatten().tolist() == [0, 0, 0] and most.flatten().tolist() == [1, 1, 1]
    assert logit.flatten().tolist() == pytest.approx([3e6, 3e30, -1e30])


def test_a_nan_is_seen_where_it_counts_and_nowhere_else():
    torch.manual_seed(0)
    query, key = torch.randn(1, 2, 6, 4), torch.randn(1, 1, 6, 4)
    clean = attention_features(query, key, causal=True)
    key[0, 0, 4] = math.nan
    query[0, 1, 0, 2] = math.nan
    found = attention_features(query, key, causal=True)
    lost = torch.zeros(1, 2, 6, dtype=torch.bool)
    lost[:, :, 4:] = True
    lost[0, 1, 0] = True
    for values, before in zip(found, clean):
        assert torch.equal(values.isnan(), lost)
        assert torch.equal(values[~lost], before[~lost])


def test_infinities_do_not_raise():
    query, key = torch.ones(1, 1, 2, 1), torch.tensor([1.0, -math.inf]).reshape(1, 1, 2, 1)
    entropy, most, logit = attention_features(query, key, causal=False)  # one key is out of reach
    assert entropy.tolist() == [[[0, 0]]] and most.tolist() == [[[1, 1]]]
    assert logit.tolist() == [[[1, 1]]]
    entropy, most, logit = attention_features(query, -key, causal=False)
    assert entropy.isnan().all() and most.isnan().all() and (logit == math.inf).all()


def test_a_query_that_sees_nothing_is_zero():
    torch.manual_seed(0)
    query, key = torch.randn(1, 1, 4, 3), torch.randn(1, 1, 2, 3)
    found = attention_features(query, key, causal=True)  # the first two see no key
    mask = torch.tensor([False, True, False, True]).reshape(1, 1, 4, 1)
    masked = attention_features(query, key, causal=False, mask=mask)
    lowest = torch.finfo(torch.bfloat16).min
    added = torch.where(mask, 0.0, lowest).to(torch.bfloat16)
    padded = attention_features(query, key, causal=False, mask=added)
    for values in found:
        assert values[0, 0, :2].tolist() == [0, 0] and (values[0, 0, 2:] != 0).any()
    for one, two in zip(masked, padded):
        assert one[0, 0, ::2].tolist() == [0, 0] and torch.equal(one, two)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0)])
def test_nothing_in_it(shape):
    for values in attention_features(torch.ones(shape), torch.ones(shape), causal=True):
        assert values.shape == shape[:3] and values.isfinite().all()
    no_keys = attention_features(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 0, 4), causal=False)
    assert all((values == 0).all() for values in no_keys)


def test_what_does_not_fit_is_told():
    ones = torch.ones
    with pytest.raises(ValueError, match="four dimensions"):
        attention_features(ones(2, 3, 4), ones(2, 3, 4), causal=True)
    for shape in ((1, 2, 3, 4), (2, 2, 3, 5), (2, 0, 3, 4), (2, 4, 3, 4)):
        with pytest.raises(ValueError, match="do not fit"):
            attention_features(ones(2, 3, 3, 4), ones(shape), causal=True)


class Sizes(TorchDispatchMode):
    """The operations that are called, and the bytes of the largest storage that comes out of one."""

    def __init__(self):
        super().__init__()
        self.largest = 0
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.seen.append(str(function))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor):
                self.largest = max(self.largest, value.untyped_storage().nbytes())
        return result


def test_memory_is_linear_in_the_sequence(monkeypatch):
    """One head's weights would be 256 MB: no storage is larger than a block or the keys."""
    query, key = torch.randn(1, 8192, 4, 16), torch.randn(1, 8192, 4, 16)
    monkeypatch.setattr(isolated, "no_modes", contextlib.nullcontext)  # else the mode sees nothing
    with Sizes() as sizes:
        attention_features(query, key, layout="bshd", causal=True)
    assert "aten.bmm.default" in sizes.seen
    assert sizes.largest <= max(attention.CPU_BYTES, query.nbytes) < 4e6


def test_peak_memory_of_a_long_sequence():
    """Measured by the allocator, in a process whose peak is nothing else's."""
    program = """
import resource, torch
from trainmon.torch.features.attention import attention_features
torch.set_num_threads(1)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
query, key = torch.randn(1, 4, 8192, 16), torch.randn(1, 4, 8192, 16)
attention_features(query[:, :, :64], key[:, :, :64], causal=True)
before = peak()
attention_features(query, key, causal=True)
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64e6


def test_nothing_of_the_user_is_seen_or_changed():
    torch.manual_seed(0)
    query = torch.randn(1, 2, 6, 4, requires_grad=True)
    key = torch.randn(1, 2, 6, 4, requires_grad=True)
    expected = attention_features(query, key, causal=True)
    state = torch.get_rng_state()
    with Sizes() as sizes, torch.autocast("cpu", dtype=torch.bfloat16):
        torch.set_default_dtype(torch.float64)
        try:
            found = attention_features(query, key, causal=True)
        finally:
            torch.set_default_dtype(torch.float32)
    assert sizes.seen == []
    assert torch.equal(state, torch.get_rng_state())
    for one, two in zip(found, expected):
        assert torch.equal(one, two) and not one.requires_grad and one.dtype == torch.float32


def test_a_device_is_never_waited_for(monkeypatch):
    """Looking at a value is an operation of its own: there is none."""
    monkeypatch.setattr(isolated, "no_modes", contextlib.nullcontext)
    query, mask = torch.randn(2, 4, 20, 4), torch.rand(2, 1, 1, 20) > 0.5
    with Sizes() as sizes:
        attention_features(query, query[:, :2], causal=True, mask=mask, most_bytes=4000)
    assert sizes.seen and not any("_local_scalar_dense" in op for op in sizes.seen)
    assert not any(word in op for op in sizes.seen for word in ("nonzero", "is_nonzero", "equal"))
