# Ranks that differ: one is not watched, one cannot write, one's hooks raise. None waits for another.
"""Rank 1 has the fault. Both ranks must end in time, with the losses and weights of a training that
nobody watches, and rank 0 with all its rows.
"""

import functools
import json

import pytest
import torch

import launch
import trainmon

WRAPPERS = ("ddp", "fsdp1", "fsdp1_flat", "fsdp2", "tensor_parallel")


FAULTS = ("unwatched", "sink", "raising")  # the last one stays for the life of a process


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """row -> folder with a bare training, and one with each fault"""

    @functools.cache
    def of(row):
        folder = tmp_path_factory.mktemp(row)
        launch.run("equality_torch_run.py", folder, row, "both", *FAULTS, ranks=2, timeout=600)
        return folder / row

    return of


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("row", WRAPPERS)
def test_a_rank_that_differs_holds_up_nobody(row, fault, trained):
    folder = trained(row) / fault
    for rank in range(2):
        expected = torch.load(trained(row) / f"bare.{rank}.pt")
        got = torch.load(folder / f"watched.{rank}.pt")
        for what in ("losses", "final"):
            pairs = list(zip(got[what], expected[what], strict=True))
            assert pairs and all(torch.equal(a, b) for a, b in pairs), what
    health = json.loads((folder / "health.0.json").read_text())
    assert health["parts_off"] == {} and health["errors"] == 0
    table = trainmon.read_table(str(folder / "run"), stats=["count"])
    mine = [kind for rank, kind in zip(table["rank"].tolist(), table["kind"].tolist()) if rank == 0]
    for kind in ("grad_unreduced", "grad_reduced", "param_updated", "exp_avg"):
        assert mine.count(kind) >= 3 * 13  # a rank of FSDP1 has something of so many at least
    others = {rank for rank in table["rank"].tolist() if rank}
    if fault == "unwatched":
        assert others == set() and not (folder / "health.1.json").exists()
        return
    health = json.loads((folder / "health.1.json").read_text())
    if fault == "sink":
        assert others == set() and health["errors"] > 0, health
    else:
        assert any("ZeroDivisionError: planted" in why for why in health["parts_off"].values())
