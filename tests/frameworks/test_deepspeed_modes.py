# DeepSpeed's modes beside those of test_equality_deepspeed.py: float16 with a dynamic loss scale, offloading.
import functools
import json
import pathlib

import pytest
import torch

import equality_compare
import equality_gpt as gpt
import equality_oracle
import launch

RUN = pathlib.Path(__file__).with_name("equality_deepspeed_run.py")
POWER = 20  # the first step overflows float16 with it, and no other with half of it
FP16 = {"compute": torch.float16, "begin": torch.float16, "loss_scale": 2.0**POWER}
CPU = {"offload_optimizer": {"device": "cpu"}}
MICRO = {"each_micro": True, "reduce_each": True}  # stages 2 and 3
ZERO3 = {**MICRO, "split_linear": True}  # its linear layers add the bias apart
# name -> (title, what is run, precision, what the oracle does)
ROWS = {
    "zero1_fp16": (
        "DeepSpeed ZeRO 1, fp16, loss scaled, first step skipped",
        {"stage": 1, "scale_power": POWER},
        "fp16",
        FP16,
    ),
    "zero2_fp16": (
        "DeepSpeed ZeRO 2, fp16, loss scaled, first step skipped",
        {"stage": 2, "scale_power": POWER},
        "fp16",
        {**FP16, **MICRO},
    ),
    "zero3_fp16": (
        "DeepSpeed ZeRO 3, fp16, loss scaled, first step skipped",
        {"stage": 3, "scale_power": POWER},
        "fp16",
        {**FP16, **ZERO3},
    ),
    "zero1_offload": (
        "DeepSpeed ZeRO 1, optimizer offloaded to the CPU",
        {"stage": 1, "zero": CPU},
        "fp32",
        {},
    ),
    "zero2_offload": (
        "DeepSpeed ZeRO 2, optimizer offloaded to the CPU",
        {"stage": 2, "zero": CPU},
        "fp32",
        MICRO,
    ),
    "zero3_offload": (
        "DeepSpeed ZeRO 3, optimizer and parameters offloaded to the CPU",
        {"stage": 3, "zero": {**CPU, "offload_param": {"device": "cpu"}}},
        "fp32",
        ZERO3,
    ),
}


@functools.cache
def _oracle(options):
    return equality_oracle.train(**dict(options))


@pytest.mark.parametrize("row", ROWS)
def test_rows_equal_those_of_the_oracle_and_training_is_untouched(row, tmp_path):
    title, case, precision, options = ROWS[row]
    accelerator = {"DS_ACCELERATOR": "cpu"}
    launch.run(
        RUN, tmp_path, json.dumps(case), ranks=gpt.RANKS, timeout=300, environment=accelerator
    )
    for rank in range(gpt.RANKS):
        watched, bare = (torch.load(tmp_path / f"{how}.{rank}.pt") for how in ("watched", "bare"))
        for what in ("losses", "final"):
            pairs = list(zip(watched[what], bare[what], strict=True))
            assert pairs and all(torch.equal(a, b) for a, b in pairs), what
    expected = _oracle(tuple(options.items()))
    result = equality_compare.compare(tmp_path / "run", expected, row, title, precision)
    cells = result["cells"].values()
    assert [c["compared"] for c in cells] == [29] * len(gpt.KINDS)
    steps = gpt.STEPS - ("scale_power" in case)
    assert sum(c["rows"] for c in cells) == 29 * steps * (5 + gpt.RANKS * gpt.MICRO_STEPS)
    if "scale_power" in case:
        equality_compare.first_step_is_skipped(tmp_path / "run", 2.0**POWER)
