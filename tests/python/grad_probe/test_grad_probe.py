# GradProbe: every number and bit against NumPy, what it refuses at the start.
import math
import pathlib
import tempfile

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.optim import optimizer as hooks
from torch.testing._internal.distributed.fake_pg import FakeStore

import launch
import trainmon
import versions
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
    train,
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
        ({"bounds": ["1"]}, TypeError, "bounds must hold numbers, not str"),
        ({"bounds": 5}, TypeError, "bounds must be an iterable of numbers, not int"),
        ({"bounds": None}, TypeError, "bounds must be an iterable of numbers, not NoneType"),
        ({"bounds": [10**400]}, ValueError, "bounds must be"),
        ({"bounds": [2**53, 2**53 + 1]}, ValueError, "bounds must ascend"),
        ({"steps": 5}, TypeError, "steps must be an iterable of integers from 0 on, not int"),
        ({"steps": [1.0]}, ValueError, "steps must be integers from 0 on, not 1.0"),
        ({"ranks": None}, TypeError, "ranks must be an iterable of integers"),
        ({"params": 5}, TypeError, "params must be an iterable of names of parameters, not int"),
        ({"params": None}, TypeError, "params must be an iterable of names"),
        ({"level": None}, TypeError, "level must be one of L0, L1, L2, not None"),
        ({"signs": []}, TypeError, "signs must be one of packed, npy, none, not []"),
        ({"overflow": b"block"}, TypeError, "overflow must be one of drop_newest, drop_oldest"),
        ({"ternary": "no"}, TypeError, "ternary must be True or False, not 'no'"),
        ({"threads": 1.5}, TypeError, "threads must be an int, not float"),
        ({"threads": 257}, ValueError, "threads must be from 1 to 256, not 257"),
        ({"out": None}, TypeError, "out must be a path, not NoneType"),
        ({"out": 5}, TypeError, "out must be a path, not int"),
        ({"out": ""}, ValueError, "out must be a path, not empty"),
        ({"out": "a\0b"}, ValueError, "out must be a path without NUL"),
        ({"out": b"a\xe9"}, ValueError, "out must be a path in UTF-8"),
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
        trainmon.GradProbe(net(), **({"out": tmp_path / "out"} | keys))
    assert not list(tmp_path.iterdir())
    assert not hooks._global_optimizer_pre_hooks


@pytest.mark.parametrize(
    "bounds", [np.array([-0.5, 2]), np.float64([-0.5, 2]), np.float32([-0.5, 2]),
               [np.float32(-0.5), np.int64(2)], torch.tensor([-0.5, 2]), [torch.tensor(-0.5), 2.0]],
)  # fmt: skip
def test_numbers_of_numpy_and_torch(tmp_path, bounds):
    gradient = torch.tensor([-1.0, 0.0, 1.0, 3.0])
    lines, _ = one_step(
        tmp_path, {"w": gradient}, level="L2", bounds=bounds, steps=np.arange(3), threads=np.int64(2),
        ranks=torch.tensor([0]), ternary=np.bool_(True),
    )  # fmt: skip
    last = "2" if isinstance(bounds, list) and not isinstance(bounds[1], float) else "2.0"
    assert [v for k, v in lines["w"].items() if k[0] == "("] == ["0.25", "0.5", "0.25"]
    assert list(lines["w"])[1:4] == ["(-inf, -0.5]", f"(-0.5, {last}]", f"({last}, inf)"]


def test_a_shorter_run_tells_of_older_steps_and_changes_form(tmp_path, caplog):
    model = Gradients(w=torch.ones(3))
    optimizer = Still(model.parameters())
    for form, steps in (("packed", 5), ("npy", 2)):
        with trainmon.GradProbe(model, optimizer, out=tmp_path, signs=form) as probe:
            for _ in range(steps):
                optimizer.step()
    assert "of the 5 older steps, those that do not come again stay" in caplog.text
    files = sorted(
        str(p.relative_to(probe.directory)) for p in pathlib.Path(probe.directory).rglob("w.*")
    )
    assert files == ["step0/w.npy", "step1/w.npy", "step2/w.sign", "step3/w.sign", "step4/w.sign"]


class Named(torch.nn.Module):
    """Parameters of any names, each with a gradient of its own size."""

    def __init__(self, names):
        super().__init__()
        for size, name in enumerate(names, 1):
            parameter = self._parameters[name] = torch.nn.Parameter(torch.zeros(size))
            parameter.grad = torch.ones(size)


def test_names_that_are_nearly_one(tmp_path):
    model = Named(["a/b", "a%2Fb", "a%252Fb", "nul\0byte", "nul_byte"])
    optimizer = Still(model.parameters())
    with trainmon.GradProbe(model, optimizer, out=tmp_path) as probe:
        optimizer.step()
    files = {path.stem for path in pathlib.Path(probe.directory, "step0").iterdir()}
    assert files == {"a%2Fb", "a%252Fb", "a%25252Fb", "nul%00byte", "nul_byte"}
    assert probe.stop()["sinks"][0]["rows_dropped"] == {}


def test_of_names_that_are_one_the_first_is_written(tmp_path):
    model = Named(["sur\udce9", "sur\\udce9", "other"])
    optimizer = Still(model.parameters())
    with trainmon.GradProbe(model, optimizer, out=tmp_path) as probe:
        optimizer.step()
        optimizer.step()
    for step in (0, 1):
        rows = summary(probe.directory, step)
        assert rows["sur\\udce9"]["shape"] == "[1]" and len(rows) == 2 and "other" in rows
    (sink,) = probe.stop()["sinks"]
    assert sink["rows_written"] == 4 and sink["rows_dropped"] == {"same_file_name": 2}


def test_flush_takes_any_time(tmp_path):
    model = Gradients(w=torch.ones(3))
    optimizer = Still(model.parameters())
    with trainmon.GradProbe(model, optimizer, out=tmp_path) as probe:
        for step, seconds in enumerate((math.inf, 1e300, 10**6, 60)):
            optimizer.step()
            assert probe.flush(seconds)
            assert len(summary(probe.directory, step)) == 1
        for seconds, error in (("x", TypeError), (math.nan, ValueError), (-1, ValueError)):
            with pytest.raises(error, match="seconds must be a number"):
                probe.flush(seconds)


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


# --- ranks and directories -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "ranks, chosen, said",
    [(1, [5], "there is one process, of rank 0"), (2, [9], "there are ranks 0 to 1, none"), (2, [1, 9], "")],
)  # fmt: skip
def test_ranks_that_do_not_exist_are_said(tmp_path, caplog, monkeypatch, ranks, chosen, said):
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    monkeypatch.setenv("RANK", "0")
    model = net()
    optimizer = Still(model.parameters())
    model(torch.ones(1, 6)).sum().backward()
    probe = trainmon.GradProbe(model, out=tmp_path, ranks=chosen)
    optimizer.step()
    assert said in caplog.text and bool(said) == ("ranks" in caplog.text)
    assert probe.directory == str(tmp_path / "rank0")  # of a rank that is not chosen, too
    assert probe.flush() and (probe.health() == {}) == (ranks > 1)
    probe.stop()
    assert (tmp_path / "rank0" / "grad_summary_0.csv").exists() == (ranks == 1)


def test_a_directory_has_one_writer(tmp_path):
    model = net()
    first = trainmon.GradProbe(model, out=tmp_path)
    with pytest.raises(RuntimeError, match="rank0 is being written by another live probe"):
        trainmon.GradProbe(model, out=tmp_path)
    assert len(hooks._global_optimizer_pre_hooks) == 1
    first.stop()
    with pytest.raises(ValueError, match="threads"):
        trainmon.GradProbe(model, out=tmp_path, threads=0)
    dropped = trainmon.GradProbe(model, out=tmp_path)
    dropped.stop()


def test_two_processes_in_one_directory(tmp_path):
    """As under mp.spawn before init_process_group(), where each takes itself for rank 0."""
    launch.run("grad_probe_spawn_run.py", tmp_path, timeout=180)
    ended = [(tmp_path / f"ended{rank}").read_text() for rank in (0, 1)]
    assert sorted(text[:7] for text in ended) == ["refused", "wrote 0"]
    assert "is being written by another live probe" in max(ended, key=len)


def test_a_rank_that_comes_late_is_said(tmp_path, caplog):
    model = net()
    model(torch.ones(1, 6)).sum().backward()
    probe = trainmon.GradProbe(model, out=tmp_path)
    torch.distributed.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    try:
        for _ in range(2):
            Still(model.parameters()).step()
    finally:
        torch.distributed.destroy_process_group()
    probe.stop()
    assert caplog.text.count("this process became rank 1 after the probe was made") == 1


# --- why nothing was written ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "case, why",
    [
        ("no_step", "no optimizer stepped that has parameters of the model"),
        ("foreign", "no optimizer stepped that has parameters of the model"),
        pytest.param("skipped", "GradScaler skipped every step", marks=versions.cpu_fused),
        ("steps", "no step was one of those asked for"),
        ("params", "no optimizer that stepped has one of the parameters asked for"),
        ("gradients", "no parameter had a gradient"),
        ("refused", "no gradient could be measured"),
        ("error", "an error switched it off (health.json: parts_off); 2 steps"),
    ],
)
def test_the_true_reason_is_said(tmp_path, caplog, case, why):
    model, other = net(), net()
    fused = {"fused": True} if case == "skipped" else {}  # SGD of older torch has no such argument
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **fused)
    keys = {"steps": {"steps": [7]}, "params": {"params": ["none"]}}.get(case, {})
    probe = trainmon.GradProbe(model, out=tmp_path, **keys)
    if case == "foreign":
        train(other, torch.optim.SGD(other.parameters(), lr=0.1), 1)
    elif case == "skipped":
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(model(torch.ones(1, 6)).sum() * math.inf).backward()
        scaler.step(optimizer)
    elif case == "gradients":
        optimizer.step()
    elif case == "refused":
        for parameter in model.parameters():
            parameter.main_grad = "none"
        optimizer.step()
    elif case != "no_step":
        if case == "error":
            probe._last = None
        train(model, optimizer, 3)
    probe.stop()
    (said,) = [r.message for r in caplog.records if why in r.message]
    assert sum("nothing was written" in r.message for r in caplog.records) == (case != "error")
