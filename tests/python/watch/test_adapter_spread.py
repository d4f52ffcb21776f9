# DDP and FSDP2 on two processes: unreduced, reduced and sharded values, and how they are placed.
import json

import numpy as np
import pytest
import torch

import launch
import versions
from adapter_rows import assert_is, keys, rows
from trainmon.torch.wrappers.plain import ddps_of

RANKS = 2
STEPS, MICROS = 3, 2
STATES = ("exp_avg", "exp_avg_sq")
NAMES = {
    *("first.weight", "first.bias", "tied.weight", "tied.bias", "last.weight", "last.bias"),
    *("sometimes.weight", "sometimes.bias", "again.bias"),
}


def train(folder, case):
    launch.run("adapter_spread_run.py", folder, case, ranks=RANKS)
    reports = [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]
    for report in reports:
        health = report["health"]
        assert health["parts_off"] == {} and health["errors"] == 0 and health["refused"] == {}
        assert report["hooks"] == 0 and set(report["left"]) == {None}
    return reports


def run_json(folder, rank=0):
    return json.loads((folder / f"run/rank_{rank:05}/restart_0000/run.json").read_text())


def assert_unreduced(folder, reports, micros=MICROS):
    for rank, report in enumerate(reports):
        found = {
            (r["step"], r["micro_step"], r["name"]): r
            for r in rows(folder / "run", kind="grad_unreduced", rank=rank)
        }
        assert found.keys() == report["local"].keys()
        for key, gradient in report["local"].items():
            if key[1] < micros:
                assert_is(found[key], gradient, 1e-5)


def reduced_of(reports, divide):
    """{(step, name): gradient} as DDP averages over ranks; a rank without one counts as zeros."""
    total = {}
    for report in reports:
        for (step, micro, name), gradient in report["local"].items():
            if micro == MICROS - 1:
                total[step, name] = total.get((step, name), 0) + gradient / divide
    return total


DDP = [
    "ddp",
    "ddp-views",
    "ddp-sync",
    "ddp-views-sync",
    "ddp-static-sync",
    "ddp-bare",
    "ddp-unused-views",
]


@versions.compile_here
def test_ddp_is_found_around_a_model_that_is_compiled():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = torch.nn.Linear(2, 2)
        ddp = torch.nn.parallel.DistributedDataParallel(torch.compile(model))
        assert ddps_of(model) == [ddp] and ddps_of(ddp) == [ddp]
        assert ddps_of(torch.nn.Linear(2, 2)) == []
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("case", DDP)
def test_ddp(case, tmp_path):
    reports = train(tmp_path, case)
    # Reducing in every micro step makes what was there before an average, too.
    assert_unreduced(tmp_path, reports, 1 if "sync" in case else MICROS)
    reduced = reduced_of(reports, RANKS)
    for rank in range(RANKS):
        found = {
            (r["step"], r["name"]): r
            for r in rows(tmp_path / "run", kind="grad_reduced", rank=rank)
        }
        assert {n for _, n in found} == NAMES and found.keys() == reduced.keys()
        if "sync" not in case:
            for key, gradient in reduced.items():
                assert_is(found[key], gradient, 1e-5)
        assert {m for (m,) in keys(tmp_path / "run", "micro_step", kind="grad_reduced")} == {1}
        for kind in ("param_origin", "param_updated", *STATES):
            assert len(rows(tmp_path / "run", kind=kind, rank=rank)) == STEPS * len(NAMES)
    if "unused" in case:
        # Only the rank that used it has an unreduced gradient; both have the reduced one.
        ranks = {
            r
            for (r,) in keys(tmp_path / "run", "rank", kind="grad_unreduced", name="sometimes.bias")
        }
        assert ranks == {0}
    for kind, name in (("grad_reduced", "last.bias"), ("param_updated", "tied.weight")):
        one, two = (
            rows(tmp_path / "run", kind=kind, name=name, rank=rank) for rank in range(RANKS)
        )
        assert [r["norm"] for r in one] == [r["norm"] for r in two]
    assert run_json(tmp_path)["environment"]["spread"] == "ddp"
    # Activations are of this rank's data: names as the user wrote them, nothing twice.
    for rank in range(RANKS):
        found = keys(
            tmp_path / "run",
            "name",
            "element",
            "step",
            "micro_step",
            "call",
            kind="actv",
            rank=rank,
        )
        assert len(found) == len(set(found))
        names = {"", "first", "tied", "again", "last"}
        assert {f[0] for f in found} == names | (
            {"sometimes"} if rank == 0 or "unused" not in case else set()
        )


def test_ddp_ranks_merge(tmp_path):
    import trainmon

    train(tmp_path, "ddp")
    table = trainmon.read_table(str(tmp_path / "run"), merged=True)
    where = table["kind"] == "grad_reduced"
    assert set(table["rank"][where]) == {-1} and where.sum() == STEPS * len(NAMES)
    where = table["kind"] == "grad_unreduced"
    assert set(table["rank"][where]) == {0, 1}
    where = (table["kind"] == "actv") & (table["name"] == "first") & (table["element"] == "output")
    assert list(table["count"][where]) == [RANKS * 4 * 5] * STEPS * MICROS


FSDP2 = ["fsdp2", "fsdp2-kept", "fsdp2-bf16"]


@versions.fsdp2
@pytest.mark.parametrize("case", FSDP2)
def test_fsdp2(case, tmp_path):
    reports = train(tmp_path, case)
    run = tmp_path / "run"
    for rank in range(RANKS):
        unreduced = keys(run, "step", "micro_step", "name", kind="grad_unreduced", rank=rank)
        assert set(unreduced) == {
            (s, m, n) for s in range(STEPS) for m in range(MICROS) for n in NAMES
        }
        assert len(unreduced) == len(set(unreduced))
        for kind in ("grad_reduced", "param_origin", "param_updated", *STATES):
            found = keys(run, "step", "micro_step", "name", kind=kind, rank=rank)
            assert sorted(found) == sorted((s, MICROS - 1, n) for s in range(STEPS) for n in NAMES)
    # last.* has one element: the second rank holds nothing of it, which is a row with count 0.
    counts = [c for (c,) in keys(run, "count", kind="grad_reduced", name="last.bias", rank=1)]
    assert counts == [0] * STEPS
    counts = {
        (r, c) for r, c in keys(run, "rank", "count", kind="param_updated", name="first.weight")
    }
    assert counts == {(0, 9), (1, 6)}
    if case != "fsdp2-bf16":
        assert_unreduced(tmp_path, reports)
        assert_merged(run, reduced_of(reports, RANKS), "grad_reduced")
        assert_merged(run, reports[0]["weights"], "param_origin")
    assert run_json(tmp_path)["environment"]["spread"] == "fsdp2"
    assert run_json(tmp_path)["notes"]["aliases"] == {"tied.weight": ["again.weight"]}


def assert_merged(run, expected, kind):
    """Shards merged over ranks are the statistics of the whole tensor."""
    import trainmon

    table = trainmon.read_table(str(run), kinds=[kind], merged=True)
    assert set(table["rank"]) == {-1}
    for i in range(len(table["kind"])):
        found = {key: table[key][i] for key in table}
        tensor = expected.pop((int(found["step"]), str(found["name"])))
        assert found["count"] == tensor.numel()
        assert np.isclose(found["norm"], float(tensor.double().norm()), rtol=1e-5)
        assert np.isclose(found["max"], float(tensor.max()), rtol=1e-4, atol=1e-7)
    assert not expected


AROUND = ["fsdp1-bare", "fsdp1-flat-bare", "fsdp1-before"]


@pytest.mark.parametrize("case", versions.marked(AROUND))
def test_a_bare_model_under_fsdp1(case, tmp_path):
    """The outermost FSDP1 has the parameters that none inside has, and is not in the model given."""
    reports = around(tmp_path, case)
    table = merged(tmp_path, "param_origin", "grad_reduced")
    weights = reports[0]["weights"]
    assert len(weights) == STEPS * 4
    for kind in ("param_origin", "grad_reduced"):
        assert {key[1:] for key in table if key[0] == kind} == set(weights)
    for key, weight in weights.items():
        (rank, count, norm), *more = table[("param_origin", *key)]
        assert (rank, count, more) == (-1, weight.numel(), []), key
        assert np.isclose(norm, float(weight.double().norm()), rtol=1e-5), key
        assert [row[:2] for row in table[("grad_reduced", *key)]] == [(-1, weight.numel())], key
    said = run_json(tmp_path)
    assert said["notes"].get("spread", said["environment"]["spread"]) == "fsdp1"


@pytest.mark.parametrize("case", versions.marked(["fsdp1-replaced", "fsdp2-replaced"]))
def test_a_module_that_is_replaced_in_a_sharded_model(case, tmp_path):
    """Its parameters are whole on every rank, no parts of one, and nobody reduces their gradients."""
    around(tmp_path, case)
    table = merged(tmp_path, "grad_reduced")
    before, after = (table["grad_reduced", step, "2.weight"] for step in (0, 1))
    assert [row[:2] for row in before] == [(-1, 5)]
    assert sorted(row[:2] for row in after) == [(0, 5), (1, 5)]


def around(folder, case):
    launch.run("adapter_around_run.py", folder, case, ranks=RANKS)
    reports = [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]
    for report in reports:
        health = report["health"]
        assert health["parts_off"] == {} and health["errors"] == 0 and health["refused"] == {}
    return reports


def merged(folder, *kinds):
    """{(kind, step, name): [(rank, count, norm), ...]}"""
    import trainmon

    table = trainmon.read_table(str(folder / "run"), kinds=list(kinds), merged=True)
    found = {}
    for kind, step, name, *row in zip(
        *(table[key] for key in ("kind", "step", "name", "rank", "count", "norm")), strict=True
    ):
        found.setdefault((str(kind), int(step), str(name)), []).append(tuple(row))
    return found
