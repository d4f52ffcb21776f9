# Megatron-core's GPT on two ranks: rows of every wrapper and optimizer of it, and an undisturbed training.
import pathlib

import megatron_run as run
import pytest
import torch

import launch
import trainmon
from adapter_rows import assert_is

PARAMETERS = 29
# Megatron adds gradients up in another order than a twin without it does.
CLOSE = {"float32": 3e-5, "bfloat16": 3e-2}


@pytest.fixture
def watched(request, tmp_path, monkeypatch):
    """The run directory of a case, and what each rank saw."""
    monkeypatch.setattr(launch, "HERE", pathlib.Path(__file__).resolve().parent)
    launch.run("megatron_run.py", tmp_path, request.param, ranks=2)
    reports = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    for report in reports:
        assert report["same"], "watching changed the losses or the weights"
        assert report["patched"] == []
        health = report["health"]
        assert health["parts_off"] == {} and health["errors"] == 0 and health["refused"] == {}
    return request.param, tmp_path / "run", reports


def table(path, **how):
    found = trainmon.read_table(str(path), **how)
    columns = {key: list(found[key]) for key in found}
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


ORACLE = ["plain", "overlap", "distributed", "distributed-overlap", "chunks", "bf16"]


@pytest.mark.parametrize("watched", [*ORACLE, "bf16-distributed"], indirect=True)
def test_rows_are_those_of_the_same_model_unwrapped(watched):
    name, path, reports = watched
    close = CLOSE["bfloat16" if "bf16" in name else "float32"]
    chunks = run.CASES[name].get("chunks", 1)
    expected = chunks * PARAMETERS * run.STEPS
    for rank, report in enumerate(reports):
        rows = [r for r in table(path) if r["rank"] == rank]
        found = {
            (r["chunk"], r["step"], r["micro_step"], r["name"]): r
            for r in rows
            if r["kind"] == "grad_unreduced"
        }
        assert len(found) == expected * run.MICROS
        for chunk, step, sums in report["truth"]["unreduced"]:
            for micro, gradients in enumerate(sums):
                for parameter, gradient in gradients.items():
                    assert_is(found[chunk, step, micro, parameter], gradient, close)
                    assert found[chunk, step, micro, parameter]["dtype"] == "float32"
        micros = [r for r in rows if r["kind"] == "grad_micro"]
        assert len(micros) == expected * run.MICROS
    merged = {(r["kind"], r["chunk"], r["step"], r["name"]): r for r in table(path, merged=True)}
    truth = reports[0]["truth"]
    for chunk, step, gradients in truth["reduced"]:
        for parameter, gradient in gradients.items():
            row = merged["grad_reduced", chunk, step, parameter]
            assert row["count"] == gradient.numel()
            if "clip_grad" not in run.CASES[name]:
                assert_is(row, gradient, close)
    for chunk, step, weights in truth["weights"]:
        for parameter, weight in weights.items():
            assert_is(merged["param_origin", chunk, step, parameter], weight, max(close, 1e-9))
            for kind in ("param_updated", "exp_avg", "exp_avg_sq"):
                row = merged[kind, chunk, step, parameter]
                assert row["count"] == weight.numel() and row["dtype"] == "float32"
