# GradProbe: every number and bit against NumPy, what it refuses at the start.
import math
import pathlib
import tempfile

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.optim import optimizer as hooks

import trainmon
from grad_probe_case import (
    Gradients,
    Still,
    assert_numbers,
    assert_signs,
    crc32,
    md5,
    net,
    shares,
    summary,
)

ODD = [0.0, -0.0, 1.0, -1.0, 0.1, math.nan, math.inf, -math.inf, 1e-40, 65504.0, -3e38, 2.0**-149]


def one_step(folder, gradients, **keys):
    """(summary, directory) of one step of these gradients."""
    model = Gradients(**gradients)
    optimizer = Still(model.parameters())
    with trainmon.GradProbe(model, optimizer, out=folder, **keys) as probe:
        optimizer.step()
    return summary(probe.directory, 0), probe.directory


# --- values --------------------------------------------------------------------------------------


@st.composite
def gradients(draw):
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]))
    shape = draw(st.lists(st.integers(0, 9), max_size=3))
    size = math.prod(shape)
    values = draw(
        st.lists(st.sampled_from(ODD) | st.floats(-3, 3, width=32), min_size=size, max_size=size)
    )
    tensor = torch.tensor(values, dtype=torch.float64).to(dtype).reshape(shape)
    layout = draw(st.sampled_from(["plain", "transposed", "strided", "expanded"]))
    if layout == "transposed" and tensor.dim() >= 2:
        return tensor.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "strided" and tensor.dim() >= 1:
        apart = torch.zeros(*shape[:-1], 2 * shape[-1], dtype=dtype)
        apart[..., ::2] = tensor
        return apart[..., ::2]
    if layout == "expanded" and tensor.dim() >= 1 and shape[0] > 0:
        return tensor[:1].expand(shape)
    return tensor


BOUNDS = st.lists(st.integers(-4, 4) | st.floats(-3, 3, width=32), max_size=5, unique_by=float)


@settings(max_examples=120, deadline=None)
@given(gradients(), BOUNDS.map(sorted), st.sampled_from(["md5", "crc32"]), st.integers(1, 3))
def test_every_measure_is_that_of_numpy(gradient, bounds, digest, threads):
    with tempfile.TemporaryDirectory() as folder:
        for form, ternary in (("packed", False), ("packed", True), ("npy", False), ("npy", True)):
            lines, directory = one_step(
                folder, {"w": gradient}, level="L2", bounds=bounds, digest=digest, signs=form,
                ternary=ternary, threads=threads,
            )  # fmt: skip
            assert_signs(directory, 0, "w", gradient, form, ternary)
    line = lines["w"]
    assert_numbers(line, gradient)
    assert line[digest] == {"md5": md5, "crc32": crc32}[digest](gradient)
    edges = ["-inf", *map(repr, bounds), "inf"]
    headings = [f"({low}, {high}]" for low, high in zip(edges, edges[1:])]
    headings[-1] = headings[-1][:-1] + ")"
    assert list(line) == [
        "param_name", digest, *headings, "=0", "max", "min", "norm", "shape",
    ]  # fmt: skip
    found = [line[heading] for heading in (*headings, "=0")]
    assert found == [repr(float(share)) for share in shares(gradient, bounds)]


def test_levels_and_what_they_hold(tmp_path):
    gradient = torch.tensor([[-2.0, 2.0], [0.2, 0.3]])
    numbers = ["max", "min", "norm", "shape"]
    for level, columns, has_signs in (
        ("L0", ["fast64", *numbers], False),
        ("L1", numbers, True),
        ("L2", ["(-inf, -1]", "(-1, 0]", "(0, 1]", "(1, inf)", "=0", *numbers], True),
    ):
        lines, directory = one_step(tmp_path / level, {"w": gradient}, level=level)
        assert list(lines["w"]) == ["param_name", *columns]
        assert lines["w"]["norm"] == "2.851315498352051"
        assert pathlib.Path(directory, "step0").exists() == has_signs
    lines, directory = one_step(tmp_path / "none", {"w": gradient}, signs="none", digest="crc32")
    assert lines["w"]["crc32"] == "e2863940"
    assert not pathlib.Path(directory, "step0").exists()


def test_fast64_tells_equal_bytes_from_others(tmp_path):
    torch.manual_seed(0)
    one = torch.randn(257)
    two = one.clone()
    two[200] = torch.nextafter(two[200], torch.tensor(9.0))
    other = {"a": one, "b": one.clone(), "c": two, "d": torch.randn(514)[::2].copy_(one)}
    lines, _ = one_step(tmp_path, other, level="L0")
    found = {name: line["fast64"] for name, line in lines.items()}
    assert found["a"] == found["b"] == found["d"] != found["c"]
    assert all(len(value) == 16 and int(value, 16) >= 0 for value in found.values())


def test_about_one_bit_per_element(tmp_path):
    gradient = torch.randn(1_000_003)
    _, directory = one_step(tmp_path, {"w": gradient})
    assert pathlib.Path(directory, "step0", "w.sign").stat().st_size <= 1_000_003 / 8 + 64


def test_what_is_said_at_the_start(tmp_path, caplog):
    model = net()
    trainmon.GradProbe(model, out=tmp_path, params=["0.weigth"]).stop()
    assert "'0.weigth'" in caplog.text
    trainmon.GradProbe(model, out=tmp_path).stop()
    assert "rank0 exists" in caplog.text


@pytest.mark.parametrize(
    "keys, error, text",
    [
        ({"level": "L3"}, ValueError, "level must be one of L0, L1, L2, not 'L3'"),
        ({"signs": "bits"}, ValueError, "signs must be one of packed, npy, none"),
        ({"digest": "sha"}, ValueError, "digest must be one of none, md5, crc32, fast64"),
        ({"bounds": [0, 0]}, ValueError, "bounds must ascend: 0 follows 0"),
        ({"bounds": [2**60, 2**60 + 1]}, ValueError, "bounds must ascend"),  # one float64
        ({"bounds": [math.nan]}, ValueError, "bounds"),
        ({"bounds": [2**63]}, ValueError, "bounds must be from"),
        ({"bounds": ["1"]}, TypeError, "bounds must be numbers, not '1'"),
        ({"steps": [-1]}, ValueError, "steps must be integers from 0 on, not -1"),
        ({"ranks": ["0"]}, ValueError, "ranks"),
        ({"params": [3]}, TypeError, "params must be names"),
        ({"optimizer": 3}, TypeError, "optimizer must be"),
        ({"threads": 0}, ValueError, "threads"),
        ({"overflow": "wait"}, ValueError, "overflow"),
    ],
)
def test_bad_arguments_are_named(tmp_path, keys, error, text):
    with pytest.raises(error, match=text.replace("[", r"\[")):
        trainmon.GradProbe(net(), out=tmp_path, **keys)
    assert not hooks._global_optimizer_pre_hooks


def test_models_that_cannot_be_probed(tmp_path):
    model = net()
    for made in (torch.jit.trace(model, torch.ones(1, 6)), torch.jit.script(model)):
        with pytest.raises(TypeError, match="torch.jit.trace"):
            trainmon.GradProbe(made, out=tmp_path)
    with pytest.raises(TypeError, match="not list"):
        trainmon.GradProbe([model], out=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeError, match="file"):
        trainmon.GradProbe(model, out=tmp_path / "file")
