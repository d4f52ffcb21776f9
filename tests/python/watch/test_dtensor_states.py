"""State that lies otherwise than its DTensor parameter: merged rows are those of the whole tensor."""

from __future__ import annotations

import math

import pytest
import torch

import launch
import trainmon
import versions

pytestmark = versions.fsdp2
CASES = ("embedding", "norm", "whole")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    out = tmp_path_factory.mktemp("dtensor_states")
    launch.run("dtensor_states_run.py", out, ranks=2)
    return out


@pytest.mark.parametrize("case", CASES)
def test_merged_state_is_that_of_the_whole_tensor(out, case):
    whole = torch.load(out / f"{case}.pt")
    rows = trainmon.read(out / case, merged=True, stats=["norm", "count"])
    found = {}
    for row in rows.itertuples():
        found.setdefault((row.step, row.kind, row.name), []).append(row)
    for key, tensor in whole.items():
        rows = found.pop(key)
        assert len(rows) in (1, 2), key  # two: each rank has one of its own
        for row in rows:
            assert row.count == tensor.numel(), (key, row.replication)
            assert math.isclose(row.norm, tensor.norm().item(), rel_tol=1e-5), (key, row.norm)
    assert {kind for _, kind, _ in found} >= {"grad_reduced", "param_origin", "param_updated"}
    for key, rows in found.items():
        shape = {(row.count, row.replication) for row in rows}
        if key[1] == "grad_micro" and case != "whole":
            lies = {row.replication for row in found[key[0], "grad_unreduced", key[2]]}
            assert {replication for _, replication in shape} == lies, key


@pytest.mark.parametrize("case", CASES)
def test_such_trainings_are_sound(out, case):
    diagnosis = trainmon.diagnose(out / case)
    assert diagnosis["verdict"] is None and diagnosis["findings"] == []
