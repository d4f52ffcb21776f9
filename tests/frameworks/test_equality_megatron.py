# The equality table, Megatron-core's wrappers: the same model gives the same rows, whatever wraps it.
import functools
import pathlib

import pytest
import torch
from equality_megatron_run import ROWS

import equality_compare
import equality_gpt as gpt
import equality_oracle
import launch

BF16 = {"begin": torch.bfloat16, "compute": torch.bfloat16, "accumulate": torch.float32}


def _title(settings):
    parts = ["Megatron DDP"]
    parts += ["distributed optimizer"] if "distributed" in settings else []
    parts += ["overlap_grad_reduce"] if "overlap" in settings else []
    return ", ".join(parts + (["bf16 with fp32 masters"] if "bf16" in settings else []))


@functools.cache
def _oracle(is_bf16):
    return equality_oracle.train(**(BF16 if is_bf16 else {}))


@pytest.mark.parametrize("row", ROWS)
def test_rows_equal_those_of_the_oracle_and_training_is_untouched(row, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "HERE", pathlib.Path(__file__).resolve().parent)
    for how in ("watched", "bare"):
        launch.run("equality_megatron_run.py", tmp_path, row, how, ranks=2, timeout=120)
    for rank in range(2):
        watched, bare = (torch.load(tmp_path / f"{how}.{rank}.pt") for how in ("watched", "bare"))
        for what in ("losses", "final"):
            pairs = list(zip(watched[what], bare[what], strict=True))
            assert pairs and all(torch.equal(a, b) for a, b in pairs), what
    is_bf16 = "bf16" in ROWS[row]
    precision = "bf16" if is_bf16 else "fp32"
    result = equality_compare.compare(
        tmp_path / "run", _oracle(is_bf16), row, _title(ROWS[row]), precision
    )
    cells = result["cells"].values()
    assert [c["compared"] for c in cells] == [29] * len(gpt.KINDS)
    assert sum(c["rows"] for c in cells) == 29 * gpt.STEPS * (5 + 2 * gpt.MICRO_STEPS)
