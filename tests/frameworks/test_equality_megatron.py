# The equality table, Megatron-core's wrappers: the same model gives the same rows, whatever wraps it.
import functools
import pathlib

import pytest
import torch
from equality_megatron_run import LOSS_SCALE, ROWS

import equality_compare
import equality_gpt as gpt
import equality_oracle
import launch

BF16 = {"begin": torch.bfloat16, "compute": torch.bfloat16, "accumulate": torch.float32}
FP16 = {
    "begin": torch.float16,
    "compute": torch.float16,
    "accumulate": torch.float32,
    "loss_scale": LOSS_SCALE,
}
ORACLES = {"fp32": {}, "bf16": BF16, "fp16": FP16}


def _title(settings):
    parts = ["Megatron DDP"]
    parts += ["distributed optimizer"] if "distributed" in settings else []
    parts += ["overlap_grad_reduce"] if "overlap" in settings else []
    parts += ["bf16 with fp32 masters"] if "bf16" in settings else []
    parts += ["fp16, loss scaled, first step skipped"] if "fp16" in settings else []
    return ", ".join(parts)


@functools.cache
def _oracle(precision):
    return equality_oracle.train(**ORACLES[precision])


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """A folder for each row: all are trained in one start."""
    folder = tmp_path_factory.mktemp("rows")
    rows = ",".join(launch.chosen_rows(request))
    launch.run(pathlib.Path(__file__).with_name("equality_megatron_run.py"), folder, rows, ranks=2)
    return folder


@pytest.mark.parametrize("row", ROWS)
def test_rows_equal_those_of_the_oracle_and_training_is_untouched(row, trained):
    folder = trained / row
    for rank in range(2):
        watched, bare = (torch.load(folder / f"{how}.{rank}.pt") for how in ("watched", "bare"))
        for what in ("losses", "final"):
            pairs = list(zip(watched[what], bare[what], strict=True))
            assert pairs and all(torch.equal(a, b) for a, b in pairs), what
    precision = next((p for p in ("bf16", "fp16") if p in ROWS[row]), "fp32")
    result = equality_compare.compare(
        folder / "run", _oracle(precision), row, _title(ROWS[row]), precision
    )
    cells = result["cells"].values()
    assert [c["compared"] for c in cells] == [29] * len(gpt.KINDS)
    steps = gpt.STEPS - (precision == "fp16")
    assert sum(c["rows"] for c in cells) == 29 * steps * (5 + 2 * gpt.MICRO_STEPS)
    if precision == "fp16":
        equality_compare.first_step_is_skipped(folder / "run", LOSS_SCALE)
