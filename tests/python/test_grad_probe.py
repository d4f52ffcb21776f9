# GradProbe: every number and bit against NumPy, which steps it counts, and that training is left alone.
import copy
import gc
import json
import math
import pathlib
import pickle
import tempfile
import weakref

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.optim import optimizer as hooks

import launch
import trainmon
from grad_probe_case import (
    Gradients,
    Still,
    assert_numbers,
    assert_signs,
    crc32,
    md5,
    shares,
    steps,
    summary,
)

ODD = [0.0, -0.0, 1.0, -1.0, 0.1, math.nan, math.inf, -math.inf, 1e-40, 65504.0, -3e38, 2.0**-149]


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


def train(model, optimizer, count, first=0, micro=1, after=None):
    """`count` steps; the gradients that each saw, by name."""
    seen = []
    for step in range(first, first + count):
        optimizer.zero_grad()
        for m in range(micro):
            data = torch.randn(3, 6, generator=torch.Generator().manual_seed(17 * step + m))
            model(data).square().mean().backward()
        seen.append({n: p.grad.clone() for n, p in model.named_parameters()})
        optimizer.step()
        if after is not None:
            after()
    return seen


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


# --- which gradients -----------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [True, False])
def test_the_gradients_of_each_step(tmp_path, bound):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    given = (optimizer,) if bound else ()
    with trainmon.GradProbe(model, *given, out=tmp_path) as probe:
        seen = train(model, optimizer, 4, micro=3)  # accumulated
        assert probe.flush()
        assert steps(probe.directory) == [0, 1, 2, 3]
    for step, gradients_of_step in enumerate(seen):
        lines = summary(probe.directory, step)
        assert list(lines) == [name for name, _ in model.named_parameters()]
        for name, gradient in gradients_of_step.items():
            assert_numbers(lines[name], gradient)
            assert_signs(probe.directory, step, name, gradient, "packed")
    health = probe.health()
    assert health["rows_produced"] == 16 and health["sinks"][0]["rows_written"] == 16


def test_steps_params_and_ranks_choose(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.GradProbe(model, out=tmp_path, steps=[1, 3], params=["2.bias", "0.weight"]) as p:
        train(model, optimizer, 5)
    assert steps(p.directory) == [1, 3]
    assert list(summary(p.directory, 3)) == ["0.weight", "2.bias"]
    # One process is rank 0, whichever ranks are asked for.
    with trainmon.GradProbe(model, out=tmp_path / "ranks", ranks=[5]) as p:
        train(model, optimizer, 1)
    assert steps(p.directory) == [0] and p.directory.endswith("rank0")


def test_parameters_without_a_gradient_have_no_line(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        train(model, optimizer, 1)
        model[0].weight.grad = None
        optimizer.step()
        optimizer.zero_grad()
        optimizer.step()
        train(model, optimizer, 1)
    assert "0.weight" not in summary(probe.directory, 1)
    assert steps(probe.directory) == [0, 1, 3]  # step 2 had no gradient at all


def test_main_grad_is_taken_before_grad(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[0].bias.main_grad = torch.full((5,), 7.0)
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        train(model, optimizer, 1)
    assert summary(probe.directory, 0)["0.bias"]["max"] == "7.0"


def test_a_step_that_the_scaler_skips_is_no_step(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    unscaled = []
    with trainmon.GradProbe(model, optimizer, out=tmp_path) as probe:
        for step in range(4):
            optimizer.zero_grad()
            loss = model(torch.randn(3, 6)).square().mean()
            scaler.scale(loss * (math.inf if step == 1 else 1.0)).backward()
            scaler.unscale_(optimizer)
            unscaled.append(model[0].weight.grad.clone())
            scaler.step(optimizer)
            scaler.update()
    assert steps(probe.directory) == [0, 1, 2]
    for step, gradient in enumerate([unscaled[0], unscaled[2], unscaled[3]]):
        assert_numbers(summary(probe.directory, step)["0.weight"], gradient)


def test_each_parameter_at_the_steps_of_its_own_optimizer(tmp_path):
    model = net()
    one = torch.optim.SGD(model[0].parameters(), lr=0.1)
    two = torch.optim.SGD(model[2].parameters(), lr=0.1)
    torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        values = {"0.weight": [], "2.weight": []}
        for step in range(6):
            model.zero_grad()
            model(torch.randn(3, 6)).square().mean().backward()
            values["0.weight"].append(model[0].weight.grad.clone())
            one.step()
            if step % 3 == 0:  # a third as often
                values["2.weight"].append(model[2].weight.grad.clone())
                two.step()
    assert steps(probe.directory) == list(range(6))
    for name, seen in values.items():
        for step, gradient in enumerate(seen):
            assert_numbers(summary(probe.directory, step)[name], gradient)
            assert_signs(probe.directory, step, name, gradient, "packed")
    assert "2.weight" not in summary(probe.directory, 2)
    assert probe.health()["sinks"][0]["rows_written"] == 6 * 2 + 2 * 2


def test_an_optimizer_made_anew_goes_on_with_the_steps(tmp_path):
    model = net()
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
        seen = train(model, torch.optim.AdamW(model.parameters()), 2, first=2)
    assert steps(probe.directory) == [0, 1, 2, 3]
    assert_numbers(summary(probe.directory, 3)["0.bias"], seen[1]["0.bias"])


def test_other_models_do_not_count(tmp_path):
    model, other = net(), net()
    mine = torch.optim.SGD(model.parameters(), lr=0.1)
    foreign = torch.optim.SGD(other.parameters(), lr=0.1)
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        for _ in range(2):
            train(other, foreign, 2)
            train(model, mine, 1)
    assert steps(probe.directory) == [0, 1]


def test_an_optimizer_of_copies_counts(tmp_path):
    model = net().to(torch.bfloat16)
    copies = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(copies, lr=0.1)
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        for _ in range(3):
            model.zero_grad()
            model(torch.randn(3, 6, dtype=torch.bfloat16)).square().mean().backward()
            for copy_, parameter in zip(copies, model.parameters()):
                copy_.grad = parameter.grad.float()
            optimizer.step()
    assert steps(probe.directory) == [0, 1, 2]


def test_closures_are_looked_at_when_they_have_run(tmp_path):
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    first = []

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(3, 6)).square().mean()
        loss.backward()
        first.append(model[0].weight.grad.clone())
        return loss

    with trainmon.GradProbe(model, out=tmp_path) as probe:
        begins = []
        for _ in range(2):
            begins.append(len(first))
            optimizer.step(closure)
        begins.append(len(first))
        optimizer.step(closure=closure)
    assert steps(probe.directory) == [0, 1, 2] and len(first) > 3
    for step, place in enumerate(begins):
        assert_numbers(summary(probe.directory, step)["0.weight"], first[place])


def test_a_step_inside_a_step_is_one(tmp_path):
    class Twice(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    model = net()
    optimizer = Twice(model.parameters(), lr=0.1)
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        train(model, optimizer, 3)
    assert steps(probe.directory) == [0, 1, 2]


def test_odd_gradients_are_counted_and_the_others_written(tmp_path, caplog):
    model = nn.ModuleDict({"table": nn.Embedding(8, 3, sparse=True), "head": nn.Linear(3, 2)})
    model.register_parameter("turn", nn.Parameter(torch.zeros(2, dtype=torch.complex64)))
    model.register_parameter("none", nn.Parameter(torch.zeros(2, device="meta")))
    optimizer = Still(model.parameters())
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        for _ in range(3):
            model.zero_grad()
            out = model["head"](model["table"](torch.tensor([1, 2, 1]))).sum()
            (out + model.turn.abs().sum()).backward()
            model.none.grad = torch.zeros(2, device="meta")
            optimizer.step()
    for step in range(3):
        assert list(summary(probe.directory, step)) == ["head.weight", "head.bias"]
    assert probe.health()["refused"] == {"sparse_coo": 3, "complex64": 3, "meta": 3}
    assert sum("sparse_coo" in record.message for record in caplog.records) == 1


# --- training is left alone ----------------------------------------------------------------------


def test_training_is_bit_identical_and_nothing_stays(tmp_path):
    def run(probed):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters())
        state = torch.get_rng_state()
        probe = None
        if probed:
            probe = trainmon.GradProbe(model, out=tmp_path, level="L2", digest="md5", signs="npy")
        train(model, optimizer, 5)
        dead = weakref.ref(model[0].weight.grad)
        optimizer.zero_grad()
        assert dead() is None  # no gradient is kept
        torch.equal(state, torch.get_rng_state())
        if probe is not None:
            probe.stop()
        assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
        return [p.detach().clone() for p in model.parameters()], torch.get_rng_state()

    (bare, state), (probed, probed_state) = run(False), run(True)
    assert all(torch.equal(a, b) for a, b in zip(bare, probed, strict=True))
    assert torch.equal(state, probed_state)
    assert not hooks._global_optimizer_pre_hooks and not hooks._global_optimizer_post_hooks


def test_copies_and_pickles_of_what_keeps_a_probe(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.probe = trainmon.GradProbe(model, optimizer, out=tmp_path)
    again = copy.deepcopy(model)
    assert again.probe is None and pickle.loads(pickle.dumps(model)).probe is None
    copied = copy.deepcopy(optimizer)
    copied.step()
    train(model, optimizer, 2)
    model.probe.stop()
    assert steps(model.probe.directory) == [0, 1]


def test_a_probe_does_not_keep_the_model(tmp_path):
    model = net()
    probe = trainmon.GradProbe(model, out=tmp_path)
    dead = weakref.ref(model)
    del model
    gc.collect()
    assert dead() is None
    other = net()
    train(other, torch.optim.SGD(other.parameters(), lr=0.1), 1)
    probe.stop()
    assert steps(probe.directory) == []


def test_stop_can_be_called_again_and_ends_it(tmp_path, caplog):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = trainmon.GradProbe(model, out=tmp_path)
    train(model, optimizer, 1)
    first = probe.stop()
    train(model, optimizer, 1)
    assert probe.stop() == first and steps(probe.directory) == [0]
    trainmon.GradProbe(model, out=tmp_path / "idle").stop()
    assert "nothing was written" in caplog.text


def test_an_error_inside_switches_it_off_and_training_goes_on(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.GradProbe(model, out=tmp_path) as probe:
        train(model, optimizer, 1)
        probe._last = None
        train(model, optimizer, 2)
        assert "grad probe" in probe.health()["parts_off"]
    assert steps(probe.directory) == [0]


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


# --- disks that fail -----------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["too_large", "folder_replaced", "no_descriptors"])
def test_training_goes_on_and_the_loss_is_counted(fault, tmp_path):
    (ended,) = launch.run("grad_probe_run.py", fault, tmp_path, timeout=120)
    report = json.loads(ended.out.splitlines()[-1])
    assert report["losses"] == report["bare"]
    (sink,) = report["health"]["sinks"]
    dropped = sum(sink["rows_dropped"].values())
    assert dropped > 0 and report["health"]["rows_pending"] == 0
    assert sink["rows_written"] + dropped == report["health"]["rows_produced"]
    rank = tmp_path / "rank0"
    assert not list(rank.rglob("*.tmp"))
    lines = [line for step in steps(rank) for line in summary(rank, step)]
    # A summary's lines and its sign files are there together, before and after the fault.
    assert len(lines) == sink["rows_written"]
    assert len(list(rank.rglob("*.sign"))) == len(lines)
    assert 0 in steps(rank) and max(steps(rank)) == report["steps"] - 1
    assert ended.err.count("cannot write (") == 1
