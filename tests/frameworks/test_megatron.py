# Megatron-core's GPT on two ranks: what the equality table does not have. Each case is trained watched and
# not, and must end with the same bits.
import collections
import json
import pathlib

import megatron_run as run
import pytest
import torch

import launch
import trainmon
from adapter_rows import assert_is

PARAMETERS = 29
CLOSE = 3e-5  # Megatron adds up in another order than a twin without it


def watched(name, out, monkeypatch):
    """(table() of the run, what each rank saw by other means)."""
    monkeypatch.setattr(launch, "HERE", pathlib.Path(__file__).resolve().parent)
    ranks = run.RANKS.get(name, 2)
    launch.run("megatron_run.py", out, name, ranks=ranks, timeout=200)
    reports = [torch.load(out / f"{rank}.pt") for rank in range(ranks)]
    for report in reports:
        assert report["same"], "watching changed the losses or the weights"
        assert report["patched"] == 0
        health = report["health"]
        assert health["parts_off"] == {} and health["errors"] == 0 and health["refused"] == {}
    return out / "run", reports


def table(path, **how):
    found = trainmon.read_table(str(path), **how)
    columns = {key: list(found[key]) for key in found}
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


def by_place(path, **how):
    """(kind, chunk, step, name) -> rows in their order."""
    found = collections.defaultdict(list)
    for row in sorted(table(path, **how), key=lambda row: row["seq"]):
        found[row["kind"], row["chunk"], row["step"], row["name"]].append(row)
    return found


@pytest.mark.parametrize("name", ["overlap", "chunks", "chained"])
def test_rows_are_those_of_the_same_model_unwrapped(name, tmp_path, monkeypatch):
    """Also where watch() is given the torch optimizer inside Megatron's, model chunks in a list, and
    several optimizers in a chain."""
    path, reports = watched(name, tmp_path, monkeypatch)
    for rank, report in enumerate(reports):
        rows = by_place(path, ranks=rank)
        for one in report["truth"]:
            for parameter, gradient in one["local"][-1].items():
                place = one["chunk"], one["step"], parameter
                sums, parts = rows[("grad_unreduced", *place)], rows[("grad_micro", *place)]
                assert len(sums) == len(parts) == run.MICROS
                for micro, row in enumerate(sums):
                    assert_is(row, one["local"][micro][parameter], CLOSE)
                second = gradient - one["local"][0][parameter]
                assert_is(parts[0], one["local"][0][parameter], CLOSE)
                assert abs(parts[1]["norm"] - float(second.norm())) <= 1e-4 * float(second.norm())
    if name == "chained":  # and, on the side, nothing to optimise
        health = trainmon.read_table(str(tmp_path / "none"))
        assert set(health["kind"]) == {"grad_unreduced"}
        (said,) = (tmp_path / "none").glob("rank_00000/*/run.json")
        assert "has nothing to update" in json.loads(said.read_text())["not_covered"]["steps"]
    rows = by_place(path, merged=True)
    for one in reports[0]["truth"]:
        norm = torch.stack([g.norm() for g in one["mean"].values()]).norm()
        clip = run.CASES[name].get("clip_grad", 0) / float(norm)
        assert 0 <= clip < 1
        for parameter, weight in one["weights"].items():
            place = one["chunk"], one["step"], parameter
            (reduced,) = rows[("grad_reduced", *place)]
            assert_is(reduced, one["mean"][parameter] * (clip or 1), 1e-4 if clip else CLOSE)
            assert bool(int(reduced["flags"]) & 4) == bool(clip)  # kClipAfter
            (origin,) = rows[("param_origin", *place)]
            assert_is(origin, weight)
            for kind in ("param_updated", "exp_avg", "exp_avg_sq"):
                (row,) = rows[(kind, *place)]
                assert row["count"] == weight.numel()


@pytest.mark.parametrize("name", ["tensor", "tensor-distributed"])
def test_tensor_parallel_rows_merge_to_those_of_one_process(name, tmp_path, monkeypatch):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    one, _ = watched("single", tmp_path / "one", monkeypatch)
    two, _ = watched(name, tmp_path / "two", monkeypatch)
    expected, found = by_place(one, merged=True), by_place(two, merged=True)
    kinds = ("grad_reduced", "param_origin", "param_updated", "exp_avg", "exp_avg_sq")
    compared = 0
    for place, (row,) in ((p, rows) for p, rows in expected.items() if p[0] in kinds):
        (other,) = found[place]
        assert other["count"] == row["count"], place
        for statistic in ("norm", "min", "max"):
            scale = row["norm"] if statistic == "norm" else row["absmax"]
            assert abs(other[statistic] - row[statistic]) <= 2e-4 * scale + 1e-7, (place, statistic)
        compared += 1
    assert compared == len(kinds) * PARAMETERS * run.STEPS
    # Half of each of these is on each rank.
    mine = [r for r in table(two, ranks=0) if r["name"].endswith("linear_fc2.weight")]
    counts = {row["count"] for row in mine if row["kind"] == "grad_unreduced"}
    assert counts == {32 * 128 // 2}


def test_a_step_that_the_grad_scaler_skips(tmp_path, monkeypatch):
    path, _ = watched("skip", tmp_path, monkeypatch)
    rows = table(path)
    unreduced = [r for r in rows if r["kind"] == "grad_unreduced" and r["rank"] == 0]
    steps = {(r["window"], r["step"], r["fate"], r["loss_scale"]) for r in unreduced}
    assert steps == {(0, 0, "taken", 1024), (1, 1, "skipped", 1024), (2, 1, "taken", 512)}
    assert all(int(r["flags"]) & 1 for r in unreduced)  # kStillScaled
    assert any(r["nans"] or r["infs"] for r in unreduced if r["window"] == 1)
    reduced = [r for r in rows if r["kind"] == "grad_reduced" and r["rank"] == 0]
    assert {r["window"] for r in reduced} == {0, 2}
    assert not any(int(r["flags"]) & 1 for r in reduced)
