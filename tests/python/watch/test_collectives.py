# Collectives on two processes: what functions were given and gave, and that nothing notices.
import json
import math

import pytest
import torch

import launch
import trainmon
import versions
from adapter_rows import assert_is, keys, rows
from trainmon.torch.collectives.functions import compiled

RANKS = 2
PATTERNS = {  # and the functions that are called from such a place
    r"collectives_run\.py\[\d+\] wanted": {"all_reduce"},
    r"\] wanted;.*\] callers;": {"all_reduce"},
    r"^\S*collectives_run\.py\[\d+\] unwanted$": {"broadcast"},
    r"distributed_c10d|trainmon/torch": set(),
    r"nobody": set(),
}


def run(folder, *case):
    """What the ranks report; nothing switched off or refused."""
    launch.run("collectives_run.py", folder, *case, ranks=RANKS, timeout=300)
    reports = [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]
    for report in reports:
        if "health" in report:
            assert report["health"]["parts_off"] == {} and report["health"]["errors"] == 0
            assert report["health"]["refused"] == {}
    return reports


def assert_expected(folder, reports):
    """Exactly the expected rows are there, a list of tensors as one row for each, in order."""
    for rank, report in enumerate(reports):
        found: dict = {}
        for r in rows(folder / "run", kind="cc", rank=rank):
            found.setdefault((r["step"], r["name"], r["call"], r["element"]), []).append(r)
        expected = {tuple(key): tensors for *key, tensors in report["expected"] if tensors != []}
        assert found.keys() == expected.keys()
        for key, tensors in expected.items():
            if tensors is None:
                assert len(found[key]) == 1
                continue
            assert len(found[key]) == len(tensors), key
            for row, tensor in zip(found[key], tensors):
                assert_is(row, tensor, 1e-6)
                assert row["dtype"] == str(tensor.dtype).removeprefix("torch.")


def not_covered(folder, rank=0):
    path = folder / f"run/rank_{rank:05}/restart_0000/run.json"
    return json.loads(path.read_text())["not_covered"]


@versions.since((2, 6), "group_src of a collective")
@pytest.mark.parametrize("backend", ["auto", "ops"])
def test_every_function(backend, tmp_path):
    reports = run(tmp_path, "functions", backend)
    assert len(reports[0]["expected"]) > 90
    assert_expected(tmp_path, reports)
    # Alerts would come from buffers read before anything was received.
    assert reports[0]["health"]["alerts"] == 0
    for name in ("all_reduce_coalesced", "all_gather_coalesced"):
        assert f"what {name} gave as a Future" in not_covered(tmp_path)


def test_point_to_point(tmp_path):
    reports = run(tmp_path, "point_to_point")
    assert_expected(tmp_path, reports)


def test_micro_steps_and_calls(tmp_path):
    run(tmp_path, "places")
    step = [
        *(("all_reduce", 0, 0), ("all_reduce", 0, 1)),
        *(("broadcast", 0, 0), ("broadcast", 0, 1), ("reduce", 0, 0)),
        ("all_reduce", 1, 2),
        *(("broadcast", 1, 2), ("broadcast", 1, 3), ("reduce", 1, 1)),
        ("all_gather", 1, 0),
    ]
    wanted = {"kind": "cc", "element": "post.0", "rank": 1}
    found = keys(tmp_path / "run", "step", "name", "micro_step", "call", **wanted)
    expected = [(s, *call) for s in range(2) for call in step]
    assert list(dict.fromkeys(found)) == expected  # the lists of all_gather are two rows


def test_what_gives_no_row(tmp_path):
    reports = run(tmp_path, "odd")
    assert_expected(tmp_path, reports)
    for rank, report in enumerate(reports):
        assert report["produced"] == len(rows(tmp_path / "run", kind="cc", rank=rank))
        for how in ("asynchronously", "inside _coalescing_manager"):
            assert f"what all_reduce gave {how}" in not_covered(tmp_path, rank)


def test_callers(tmp_path):
    reports = run(tmp_path, "callers", *PATTERNS)
    for index, (pattern, names) in enumerate(PATTERNS.items()):
        found = {name for (name,) in keys(tmp_path / f"{index}/run", "name", kind="cc")}
        assert found == names, pattern
    for report in reports:
        for table in report["seen"]:
            # Whether they are recorded or not: two steps of one call each.
            assert table.keys() == {"all_reduce", "broadcast"}
            (seen,) = table["all_reduce"]
            stack = seen["stack"]
            assert stack[0].endswith("] wanted") and stack[-1].endswith("] <module>")
            assert all("torch/distributed" not in frame for frame in stack)
            assert (seen["dtype"], seen["shape"]) == (["torch.float32"], [[4]])
            assert seen["count"] == 2 and seen["group"] == "gloo, ranks 0 1"
            json.dumps(table)


def test_a_pattern_that_is_none(tmp_path):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    keys = {"kinds": ["cc"], "out": tmp_path / "run", "collective_callers": ["a("]}
    with pytest.raises(ValueError, match=r"collective_callers: 'a\('"):
        trainmon.watch(model, optimizer, **keys)
    with pytest.raises(ValueError, match=r"collective_callers: 'a\('"):
        compiled(["fine", "a("])


def test_everything_is_restored(tmp_path):
    for report in run(tmp_path, "restored"):
        assert report["left"] == {"torch.distributed.all_gather"}  # what another library put there
        assert report["counts"] == [2, 4]
        # No endless recursion between C++ and an override that is ours.
        assert "timed out" in report["said"].lower() and "backend" in report["said"].lower()


def norm(tensors):
    return math.sqrt(sum(float(t.double().norm()) ** 2 for t in tensors))


def trained(folder, kind):
    """What the ranks report of training watched; to the last bit what they report of it bare."""
    reports = run(folder, "train", kind)
    for report in reports:
        for mode in ("functions", "all"):
            health = report[mode]["health"]
            assert health["parts_off"] == {} and health["errors"] == 0 and health["refused"] == {}
            assert len(report["bare"]["trail"]) == len(report[mode]["trail"]) > 20
            assert all(map(torch.equal, report["bare"]["trail"], report[mode]["trail"]))
    return reports


@versions.calls_from_cpp
@pytest.mark.parametrize("kind", ["plain", "compiled"])
def test_ddp(kind, tmp_path):
    reports = trained(tmp_path, kind)
    # Functions see what is called from Python; the operations of DDP come from C++.
    assert {n for (n,) in keys(tmp_path / "functions/run", "name", kind="cc")} == {"all_reduce"}
    assert "cc of DDP's own reduction" in not_covered(tmp_path / "functions")
    for rank, report in enumerate(reports):
        local, reduced = report["all"]["local"], report["all"]["reduced"]
        reduction = {
            (r["step"], r["element"]): r
            for r in rows(tmp_path / "all/run", kind="cc", name="c10d.allreduce_", rank=rank)
        }
        steps = range(len(local))
        assert reduction.keys() == {(s, e) for s in steps for e in ("pre.0", "post.0")}
        for step in steps:
            given, gave = reduction[step, "pre.0"], reduction[step, "post.0"]
            mean = [gradient / RANKS for gradient in local[step]]
            assert math.isclose(given["norm"], norm(mean), rel_tol=1e-5)
            assert math.isclose(gave["norm"], norm(reduced[step]), rel_tol=1e-6)
            assert given["count"] == gave["count"] == sum(t.numel() for t in mean)


@versions.fsdp2
@versions.calls_from_cpp
def test_fully_sharded(tmp_path):
    reports = trained(tmp_path, "fsdp2")
    for mode in ("functions", "all"):
        for rank, report in enumerate(reports):
            found = rows(tmp_path / mode / "run", kind="cc", rank=rank)
            gave = [r for r in found if r["name"].startswith(("reduce_scatter", "_reduce_scatter"))]
            gave = [r for r in gave if r["element"] == "post.0"]
            assert [r["step"] for r in gave] == list(range(4))
            for r, reduced in zip(gave, report[mode]["reduced"]):
                assert math.isclose(r["norm"], norm(reduced), rel_tol=1e-6)
            assert any(r["name"].startswith("all_gather") for r in found)


@versions.compiled_all_reduce
def test_compiled_code_is_as_it_was(tmp_path):
    reports = run(tmp_path, "compiled")
    assert_expected(tmp_path, reports)


@versions.calls_from_cpp
def test_operations_of_a_forward(tmp_path):
    reports = run(tmp_path, "functional")
    assert_expected(tmp_path, reports)
    assert all(report["same"] for report in reports)
    assert "what _c10d_functional.all_reduce gave asynchronously" in not_covered(tmp_path)
