# The equality table, trainers: the same model gives the same rows, whoever owns its loop.
import functools
import pathlib

import pytest
import torch

import equality_compare
import equality_gpt as gpt
import equality_oracle
import launch

ROWS = {
    "trainer": "Transformers Trainer (DDP)",
    "accelerate": "Accelerate (DDP)",
    "lightning": "Lightning Trainer (DDP)",
    "fabric": "Lightning Fabric (DDP)",
}


@functools.cache
def oracle():
    return equality_oracle.train()


@pytest.mark.parametrize("row", ROWS)
def test_rows_equal_those_of_the_oracle_and_training_is_untouched(row, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "HERE", pathlib.Path(__file__).resolve().parent)
    launch.run("equality_trainers_run.py", tmp_path, row, ranks=gpt.RANKS, timeout=240)
    for rank in range(gpt.RANKS):
        watched, bare = (torch.load(tmp_path / f"{how}.{rank}.pt") for how in ("watched", "bare"))
        for what in ("losses", "final"):
            pairs = list(zip(watched[what], bare[what], strict=True))
            assert pairs and all(torch.equal(a, b) for a, b in pairs), what
    result = equality_compare.compare(
        tmp_path / "run",
        oracle(),
        row,
        ROWS[row],
        renamed=lambda name: name.removeprefix("gpt."),  # the LightningModule's attribute
    )
    cells = result["cells"].values()
    assert [c["compared"] for c in cells] == [29] * len(gpt.KINDS)
    assert sum(c["rows"] for c in cells) == 29 * gpt.STEPS * (5 + gpt.RANKS * gpt.MICRO_STEPS)
