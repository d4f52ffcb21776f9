"""Two runs compared: real trainings that are equal but for rounding, that have one bug, that were wrapped
or spread otherwise; and runs written by hand, whose differences are known to the last digit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import matplotlib.image
import numpy as np
import pytest
import torch
from torch import nn

import compat_case as case
import launch
import trainmon
from written_run import WrittenRank

TRAIN = launch.SHARED.parent / "planted/planted_run.py"
STEPS = 6
RUNS = {
    "a": {},
    "again": {"reversed_batch": True},
    "parts": {"micro_batches": 2},
    "learning_rate": {"bug": "learning_rate", "layer": 1, "step": 3, "mkldnn": False},
    "mask": {"bug": "mask", "layer": 0, "step": 2, "mkldnn": False},
    "bf16": {"bug": "bf16", "layer": 2, "step": 0, "mkldnn": False},
}
SPREAD = {
    "ddp": {"mode": "ddp", "one_batch": True},
    "fsdp2": {"mode": "fsdp2", "one_batch": True},
    "own_batches": {},
    "no_all_reduce": {"bug": "all_reduce", "layer": 1, "step": 4, "rank": 1},
}
FOUND = [
    # run, step, kind, name (or the beginning of it), rank
    ("learning_rate", 3, "param_updated", "blocks.1.norm1.weight", -1),
    ("mask", 2, "actv", "blocks.0.attention.out", -1),
    ("bf16", 0, "actv", "blocks.2.up", -1),
]


def command(*arguments, code=None):
    done = subprocess.run(
        [launch.command_line(), "compare", *map(os.fspath, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "160", "TRAINMON_PYTHON": sys.executable},
    )
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Trainings of one process and of two."""
    out = tmp_path_factory.mktemp("runs")

    def asked(some):
        base = {"seed": 9, "steps": STEPS}
        return [json.dumps({**base, "out": str(out / name), **keys}) for name, keys in some.items()]

    launch.run(TRAIN, *asked(RUNS), timeout=300)
    launch.run(TRAIN, *asked(SPREAD), ranks=2, timeout=300)
    return out


# --- trainings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("null", [None, "again"])
@pytest.mark.parametrize(("run", "step", "kind", "name", "rank"), FOUND)
def test_a_bug_is_found_where_it_was_planted(runs, run, step, kind, name, rank, null):
    report = trainmon.compare(runs / "a", runs / run, null=null and runs / null)
    first = report["first"]
    assert (first["step"], first["kind"], first["rank"]) == (step, kind, rank)
    assert first["name"].startswith(name)
    assert first["ratio"] > 1 and first["ratio"] == pytest.approx(
        first["difference"] / first["tolerance"]
    )
    rows = trainmon.read_table(runs / run, kinds=[kind], steps=step)
    at = (rows["name"] == first["name"]) & (rows["element"] == first["element"])
    assert first["b"] == rows[first["stat"]][at][0]
    # Before that step nothing is.
    if step > 0:
        assert trainmon.compare(runs / "a", runs / run, steps=(0, step - 1))["first"] is None


@pytest.mark.parametrize("null", [None, "again"])
def test_another_order_of_summation_is_no_difference(runs, null):
    report = trainmon.compare(runs / "a", runs / "again", null=null and runs / null)
    assert report["first"] is None and report["rows_beyond"] == report["tensors_beyond"] == 0
    assert report["rows"] == report["a"]["rows"] == report["b"]["rows"] > 1000
    assert 0 < max(one["ratio"] for one in report["worst"]) < 1


def test_a_batch_in_parts(runs):
    report = trainmon.compare(runs / "a", runs / "parts")
    assert report["first"] is None
    assert {level["kind"] for level in report["levels"]} == {"grad_reduced", "param_updated"}
    parameters = sum(1 for _ in trainmon.read_table(runs / "a", kinds=["param_updated"], steps=0)["name"])  # fmt: skip
    assert report["rows"] == 2 * parameters * STEPS
    assert any("actv tokens output: 16,384 and 8,192" in text for text in report["different_size"])
    assert "backwards in step 0: 1 in A, 2 in B" in report["remarks"][0]


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
def test_one_process_and_two_of_the_same_batch(runs, mode):
    """Means over ranks and shards merged are what one process computes."""
    report = trainmon.compare(runs / "a", runs / mode, kinds=["grad_reduced", "weights"])
    assert report["first"] is None
    parameters = set(trainmon.read_table(runs / "a", kinds=["param_updated"], steps=0)["name"])
    assert report["tensors"] == 2 * len(parameters)
    assert report["a"]["only_here"] == report["b"]["only_here"] == []


def test_a_rank_whose_gradients_were_not_reduced(runs):
    first = trainmon.compare(runs / "own_batches", runs / "no_all_reduce")["first"]
    assert (first["step"], first["kind"], first["rank"]) == (4, "grad_reduced", 1)
    backward = trainmon.read_table(runs / "own_batches", kinds=["grad_unreduced"], steps=4, ranks=[0])["name"]  # fmt: skip
    assert first["name"] == next(name for name in backward if name.startswith("blocks.1."))
    clean = trainmon.compare(runs / "own_batches", runs / "no_all_reduce", ranks=[0], steps=(0, 4), kinds=["grad_unreduced"])  # fmt: skip
    assert clean["first"] is None and clean["rows"] > 0


def test_a_run_of_the_face_of_msprobe(tmp_path):
    """The same training under both monitors, and twice under msprobe's with another learning rate.
    Its names lack what was squashed: encoder.layers.0 is layers.0."""
    config = {"wg_distribution": True, "xy_distribution": True, "param_distribution": True, "all_xy": True,
              "targets": {}, "ops": ["norm", "min", "max", "mean", "nans"]}  # fmt: skip
    case.run(tmp_path / "a", config, 4)
    model = case.net()
    case.run(tmp_path / "b", config, 4, model=model, optimizer=case.adam(model, lr=0.02))
    model = case.net()
    optimizer = case.adam(model)
    with trainmon.watch(
        model,
        optimizer,
        kinds=["grads", "weights", "activations"],
        every=1,
        out=str(tmp_path / "ours"),
    ):
        case.steps(model, optimizer, 4)

    first = trainmon.compare(tmp_path / "a", tmp_path / "b")["first"]
    assert (first["step"], first["kind"]) == (0, "param_updated")
    both = trainmon.compare(tmp_path / "a", tmp_path / "ours", worst=1000)
    # Its files hold six decimals, which is no difference.
    assert max(abs(one["a"] - one["b"]) for one in both["worst"]) < 0.501e-6
    assert both["first"] is None and both["a"]["format"] == "msprobe_csv"
    assert both["a"]["unmatched"] == sum(
        1 for f in case.folders(tmp_path / "a") for p in f.glob("grad_unreduced*.csv")
        for _ in p.read_text().splitlines()[1:]
    )  # fmt: skip
    compared = {level["kind"] for level in both["levels"]}
    assert {"grad_reduced", "param_origin", "param_updated", "actv", "actv_grad"} <= compared
    assert trainmon.compare(tmp_path / "ours", tmp_path / "b")["first"]["kind"] == "param_updated"


@pytest.mark.parametrize("attribute", ["module", "_checkpoint_wrapped_module", "_orig_mod"])
def test_a_wrapped_model(tmp_path, attribute):
    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            setattr(self, attribute, inner)

        def forward(self, x):
            return getattr(self, attribute)(x)

    kinds = ["grads", "weights"]
    if attribute != "_orig_mod":  # inside of which a compiled module calls no hooks
        kinds.append("activations")
    for name, wrap in (("bare", lambda m: m), ("wrapped", Wrapper)):
        torch.manual_seed(3)
        model = wrap(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with trainmon.watch(model, optimizer, kinds=kinds, every=1, out=str(tmp_path / name)):
            for step in range(3):
                model(case.batch(step)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    report = trainmon.compare(tmp_path / "bare", tmp_path / "wrapped")
    assert report["first"] is None and report["a"]["unmatched"] == 0
    assert report["rows"] == report["a"]["rows"]


# --- runs written by hand --------------------------------------------------------------------------


def write(out, change=None, steps=5, names=("fc.weight", "out.weight"), kind="grad_reduced",
          size=50, dtype=np.float32, ranks=1, **series):  # fmt: skip
    """Every array is a function of rank, step and place among the names; `change(array, ...)` may
    alter it."""
    written = [WrittenRank(out, rank, ranks) for rank in range(ranks)]
    for step in range(steps):
        for rank, one in enumerate(written):
            for number, name in enumerate(names):
                rng = np.random.default_rng([rank, step, number])
                array = rng.normal(size=size).astype(dtype)
                if change is not None:
                    array = change(array, rank, step, number)
                if array is not None:
                    one.observe(array, kind, name, step, **series)
            one.end_step()
    for one in written:
        one.stop()
    return out


def scaled(factor, step, number, rank=0):
    def change(array, r, s, n):
        return array * array.dtype.type(factor) if (r, s, n) == (rank, step, number) else array

    return change


def test_of_one_rank_nothing_is_called_merged(tmp_path):
    """Not even of weights, which several ranks would hold alike."""
    for name, factor in (("a", 1.0), ("b", 1.5)):
        rank = WrittenRank(tmp_path / name)
        for step in range(4):
            array = np.full(5, factor if step == 3 else 1.0, np.float32)
            rank.observe(array, "param_updated", "w", step, replication="identical")
            rank.end_step()
        rank.stop()
    _, out, _ = command(tmp_path / "a", tmp_path / "b", code=1)
    assert out.startswith("first difference: step 3, over all ranks, param_updated w\n")
    assert "merged" not in out


def test_what_a_finding_says(tmp_path):
    a = write(tmp_path / "a")
    b = write(tmp_path / "b", scaled(1.5, 3, 1))
    code, out, err = command(a, b, code=1)
    assert out.startswith("first difference: step 3, rank 0, grad_reduced out.weight\n")
    assert err == ""
    code, out, err = command(a, b, "--json", code=1)
    report = json.loads(out)
    array = np.random.default_rng([0, 3, 1]).normal(size=50).astype(np.float32).astype(np.float64)
    first = report["first"]
    known = {
        "norm": np.linalg.norm(array), "mean": array.mean(), "std": array.std(), "min": array.min(),
        "max": array.max(), "absmax": np.abs(array).max(),
    }  # fmt: skip
    assert first["a"] == pytest.approx(known[first["stat"]], rel=1e-12)
    assert first["b"] == pytest.approx(1.5 * first["a"], rel=1e-6)
    assert list(first) == [
        "step", "rank", "kind", "chunk", "name", "element", "attempt", "micro_step", "call",
        "stat", "a", "b", "difference", "tolerance", "ratio",
    ]  # fmt: skip
    assert list(report) == [
        "first", "rows", "tensors", "rows_beyond", "tensors_beyond", "declared", "worst", "a", "b", "null",
        "different_size", "different_dtype", "remarks", "levels",
    ]  # fmt: skip
    assert (report["rows"], report["rows_beyond"], report["tensors_beyond"]) == (10, 1, 1)
    assert [one["name"] for one in report["worst"]] == ["out.weight", "fc.weight"]
    assert report["worst"][0] == first
    assert report == trainmon.compare(a, b)


def test_the_statistic_furthest_off_is_named_with_its_values(tmp_path):
    """One element, the largest: norm, mean and std hardly notice."""

    def change(array, rank, step, number):
        if step == 2:
            array[np.argmax(np.abs(array))] *= np.float32(1.001)
        return array

    a, b = write(tmp_path / "a", size=2000), write(tmp_path / "b", change, size=2000)
    first = trainmon.compare(a, b)["first"]
    array = np.random.default_rng([0, 2, 1]).normal(size=2000).astype(np.float32)
    largest = np.abs(array).max()
    assert first["stat"] in ("min", "max", "absmax") and first["step"] == 2
    assert abs(first["a"]) == largest
    assert first["difference"] == pytest.approx(0.001 / 1.001, rel=1e-3)


def test_a_difference_in_rounding_is_none(tmp_path):
    def change(array, *_):
        return np.nextafter(array, np.float32(9))

    a, b = write(tmp_path / "a"), write(tmp_path / "b", change)
    _, out, _ = command(a, b, code=0)
    assert out.startswith("no difference beyond tolerance in 10 rows of 2 tensors\n")
    command(a, b, "--tolerance", "0.001", code=1)
    command(a, b, "--tolerance", "0", code=2)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_finite_in_one_run(tmp_path, bad):
    def change(array, rank, step, number):
        if (step, number) == (2, 0):
            array[7] = bad
        return array

    a, b = write(tmp_path / "a"), write(tmp_path / "b", change)
    _, out, _ = command(a, b, "--json", code=1)
    first = json.loads(out)["first"]
    assert (first["step"], first["name"]) == (2, "fc.weight")
    assert first["stat"] == ("nans" if np.isnan(bad) else "infs")
    assert (first["a"], first["b"], first["ratio"]) == (0, 1, "inf")
    command(b, a, code=1)
    assert command(b, b, code=0)[1].startswith("no difference")  # equal where both are bad


def test_rows_without_a_finite_value_are_said(tmp_path):
    def change(array, rank, step, number):
        return array * np.float32(np.nan) if step >= 2 else array

    a = write(tmp_path / "a", change)
    report = trainmon.compare(a, a)
    (remark,) = report["remarks"]
    assert "not compared: 6 pairs of rows" in remark and remark.endswith("out.weight, step 2")
    assert report["rows"] == 4 and "pairs of rows" in "".join(command(a, a, code=0)[1:])


def test_first_is_by_execution_and_not_by_size(tmp_path):
    def change(array, rank, step, number):
        return array * np.float32({(1, 1): 1.01, (1, 0): 1.0, (2, 0): 9.0}.get((step, number), 1.0))

    a, b = write(tmp_path / "a"), write(tmp_path / "b", change)
    report = trainmon.compare(a, b)
    assert (report["first"]["step"], report["first"]["name"]) == (1, "out.weight")
    assert (report["worst"][0]["step"], report["worst"][0]["name"]) == (2, "fc.weight")


def test_forward_comes_before_backward_and_weights_last(tmp_path):
    """Whatever the order in which rows were written."""
    kinds = ["param_updated", "grad_reduced", "actv_grad", "actv"]
    for name, factor in (("a", 1.0), ("b", 2.0)):
        one = WrittenRank(tmp_path / name)
        for step in range(2):
            for kind in kinds:
                array = np.arange(1, 30, dtype=np.float32) * np.float32(factor if step else 1)
                one.observe(array, kind, "fc", step)
            one.end_step()
        one.stop()
    for done in range(4, 0, -1):
        report = trainmon.compare(tmp_path / "a", tmp_path / "b", kinds=kinds[:done])
        assert (report["first"]["kind"], report["first"]["step"]) == (kinds[done - 1], 1)


def test_what_one_run_lacks_is_said_and_the_rest_compared(tmp_path):
    names = ("fc.weight", "out.weight", "more.bias")
    a = write(tmp_path / "a", names=names, steps=6)
    b = write(tmp_path / "b", steps=4)
    code, out, err = command(a, b, code=0)
    assert "more.bias" in err and "10 of 18 rows of A (steps 0 to 5) have no counterpart" in err
    err = command(b, b, "--null", a, code=0)[2]
    assert "10 of 18 rows of the repeated run (steps 0 to 5) have no counterpart" in err
    report = trainmon.compare(a, b)
    assert report["rows"] == 8 and report["a"]["only_here"] == ["grad_reduced more.bias"]
    assert (report["a"]["last_step"], report["b"]["last_step"]) == (5, 3)
    assert (report["a"]["unmatched"], report["b"]["unmatched"]) == (10, 0)


def test_missing_ranks(tmp_path):
    a = write(tmp_path / "a", ranks=2, replication="independent")
    b = write(tmp_path / "b", scaled(3, 1, 0, rank=1), ranks=2, replication="independent")
    first = trainmon.compare(a, b)["first"]
    assert (first["step"], first["rank"]) == (1, 1)
    shutil.rmtree(b / "rank_00001")
    code, _, err = command(a, b, code=3)
    assert "rank 1 of 2 is missing" in err and "10 of 20 rows of A" in err


def test_sizes_and_types_that_differ(tmp_path):
    a = write(tmp_path / "a")
    b = write(tmp_path / "b", lambda x, r, s, n: x[:20] if n == 0 else x)
    report = trainmon.compare(a, b)
    assert report["different_size"] == ["grad_reduced fc.weight: 50 and 20 elements"]
    assert report["rows"] == 5 and report["first"] is None
    c = write(tmp_path / "c", lambda x, r, s, n: x.astype(np.float16), dtype=np.float32)
    report = trainmon.compare(c, write(tmp_path / "d", dtype=np.float32))
    assert "grad_reduced fc.weight: float16 and float32" in report["different_dtype"]
    assert report["first"] is None  # one rounding to the coarser type
    everything = write(tmp_path / "e", size=20)
    assert "out.weight: 50 and 20 elements" in command(a, everything, code=2)[2]


def test_nothing_in_common(tmp_path):
    a = write(tmp_path / "a")
    b = write(tmp_path / "b", names=("x.weight",), kind="param_updated")
    code, out, err = command(a, b, code=2)
    assert out == "" and "no row in common" in err
    for text in ("grad_reduced", "param_updated", "fc.weight", "x.weight", "steps 0 to 4"):
        assert text in err
    with pytest.raises(RuntimeError, match="no row in common"):
        trainmon.compare(a, b)
    assert "there is no" in command(a, tmp_path / "nowhere", code=2)[2]
    (tmp_path / "empty").mkdir()
    assert str(tmp_path / "empty") in command(a, tmp_path / "empty", code=2)[2]


def test_a_damaged_log(tmp_path):
    a = write(tmp_path / "a", steps=40)
    b = shutil.copytree(a, tmp_path / "b")
    log = sorted(b.glob("rank_00000/restart_0000/*.tmlog"))[0]
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0x55
    log.write_bytes(data)
    code, out, err = command(a, b, code=3)
    assert out.startswith("no difference") and "not used of B" in err and log.name in err
    # A finding stands all the same.
    c = write(tmp_path / "c", scaled(2, 1, 0), steps=40)
    command(c, b, code=1)


def test_the_noise_of_a_repeat_takes_the_place_of_fixed_tolerances(tmp_path):
    """fc wanders by a percent, out does not: the same difference is noise in one alone."""

    def wander(seed, factor=0.01, numbers=(0,)):
        def change(array, rank, step, number):
            if number not in numbers:
                return array
            rng = np.random.default_rng([seed, step])
            return array * np.float32(1 + factor * rng.uniform(0.5, 1))

        return change

    a = write(tmp_path / "a")
    again = write(tmp_path / "again", wander(1))
    sound = write(tmp_path / "sound", wander(2))
    wrong = write(tmp_path / "wrong", wander(3, numbers=(0, 1)))
    assert trainmon.compare(a, sound)["first"]["name"] == "fc.weight"
    assert trainmon.compare(a, sound, null=again)["first"] is None
    # The median over the two tensors may be that of fc: a third and fourth one keep it down.
    names = ("fc.weight", "out.weight", "p.weight", "q.weight")
    a, again, wrong = (
        write(tmp_path / f"{name}4", change, names=names)
        for name, change in (
            ("a", None),
            ("again", wander(1)),
            ("wrong", wander(3, numbers=(0, 1))),
        )
    )
    assert trainmon.compare(a, wrong, null=again)["first"]["name"] == "out.weight"
    _, _, err = command(a, wrong, "--null", a)
    assert "equal to A to the bit" in err
    other = write(tmp_path / "other", names=("z",))
    assert "--null has no row in common with A" in command(a, wrong, "--null", other, code=2)[2]


def test_selection_and_table(tmp_path):
    a, b = write(tmp_path / "a"), write(tmp_path / "b", scaled(2, 3, 1))
    command(a, b, "--steps", ":2", code=0)
    command(a, b, "--name", "fc", code=0)
    command(a, b, "--exclude", "out", code=0)
    _, out, _ = command(a, b, "--count", "1", code=1)
    assert [line.split()[3] for line in out.splitlines()[4:]] == ["out.weight"]
    _, out, _ = command("--help", code=0)
    assert "--null" in out and "Examples" in out


def test_converted_runs(tmp_path):
    """CSV and SQLite of a run hold what its log holds, and a difference is found in each."""
    a, b = write(tmp_path / "a"), write(tmp_path / "b", scaled(2, 3, 1))
    for to in ("csv", "sqlite"):
        trainmon.convert(b, tmp_path / f"b.{to}", to=to)
        assert trainmon.compare(b, tmp_path / f"b.{to}")["first"] is None
        first = trainmon.compare(a, tmp_path / f"b.{to}")["first"]
        assert (first["step"], first["name"]) == (3, "out.weight")


def test_names_that_differ_in_a_wrapper_alone_are_two(tmp_path):
    names = ("fc.weight", "module.fc.weight")
    a, b = write(tmp_path / "a", names=names), write(tmp_path / "b", scaled(2, 1, 1), names=names)
    report = trainmon.compare(a, b)
    assert report["tensors"] == 2 and report["first"]["name"] == "module.fc.weight"
    wrapped = write(tmp_path / "w", names=("module.fc.weight", "_orig_mod.module.out.weight"))
    assert trainmon.compare(write(tmp_path / "c"), wrapped)["rows"] == 10


def test_a_picture(tmp_path):
    a, b = write(tmp_path / "a"), write(tmp_path / "b", scaled(2, 3, 1))
    for number, (run, code) in enumerate(((b, 1), (a, 0))):
        file = tmp_path / f"{number}.png"
        _, out, _ = command(a, run, "--json", "--plot", file, code=code)
        assert json.loads(out)["rows"] == 10  # and nothing else on stdout
        image = matplotlib.image.imread(file)
        assert (
            image.shape[0] > 300 and len(np.unique(image.reshape(-1, image.shape[2]), axis=0)) > 5
        )
    _, _, err = command(a, b, "--plot", tmp_path / "p.txt", code=2)
    assert ".png" in err


@pytest.mark.parametrize("argument, value", [("tolerance", 0.0), ("tolerance", float("nan")), ("steps", "x")])  # fmt: skip
def test_wrong_arguments(tmp_path, argument, value):
    a = write(tmp_path / "a", steps=1)
    with pytest.raises((ValueError, TypeError)):
        trainmon.compare(a, a, **{argument: value})
