# Megatron-core's pipeline parallelism on two ranks: rows are those of the stages chained in one process.
import pathlib

import megatron_parallel_run as run
import pytest
import torch

import launch
import trainmon
from adapter_rows import assert_is

CLOSE = 3e-5  # one process adds up in another order


@pytest.mark.parametrize("name", run.CASES)
def test_rows_of_a_pipeline_are_those_of_its_stages_in_one_process(name, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "HERE", pathlib.Path(__file__).resolve().parent)
    launch.run("megatron_parallel_run.py", tmp_path, name, ranks=2, timeout=200)
    reports = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for report in reports:
        assert report["same"], "watching changed the losses or the weights"
        health = report["health"]
        assert health["parts_off"] == {} and health["errors"] == 0 and health["refused"] == {}
    truth = reports[0]["truth"]
    stages = 2 * run.CASES[name]
    assert {key[1] for key in truth} == set(range(stages))
    table = trainmon.read_table(str(tmp_path / "run"))
    columns = {key: list(table[key]) for key in table}
    seen, given = set(), {}
    for values in zip(*columns.values()):
        row = dict(zip(columns, values))
        if row["kind"] == "input":
            given.setdefault((int(row["chunk"]), int(row["step"]), row["element"]), []).append(row)
        if row["kind"] not in run.KINDS_OF_TRUTH:
            continue
        micro = int(row["micro_step"]) if row["kind"] == "grad_unreduced" else -1
        key = row["kind"], int(row["chunk"]), row["name"], int(row["step"]), micro
        assert key not in seen and int(row["chunk"]) % 2 == row["rank"]
        seen.add(key)
        assert_is(row, truth[key], CLOSE)
    assert seen == truth.keys()
    # A stage may go forward with all micro steps before it goes back with one: it has the calls in order.
    assert len(given) == stages * run.STEPS * 4
    for (_, step, element), rows in given.items():
        place = {"input.0": 0, "input.1": 1, "input.2": 2, "input.labels": 0}[element]
        assert len(rows) == run.MICROS
        for micro, row in enumerate(sorted(rows, key=lambda one: one["seq"])):
            assert_is(row, run.inputs(step, micro)[place], 1e-12)
    answer = trainmon.diagnose(str(tmp_path / "run"))
    assert answer["findings"] == [] and answer["evidence"]["input"] == {
        "fingerprints": stages * run.STEPS * run.MICROS
    }
