# DeepSpeed's modes beside those of test_equality_deepspeed.py: float16 with a dynamic loss scale, offloading.
import deepspeed_case
import pytest
import torch
from deepspeed_case import MICRO, ZERO3

import launch

POWER = 20  # the first step overflows float16 with it, and no other with half of it
FP16 = {"compute": torch.float16, "begin": torch.float16, "loss_scale": 2.0**POWER}
CPU = {"offload_optimizer": {"device": "cpu"}}
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


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    deepspeed_case.train({row: ROWS[row] for row in launch.chosen_rows(request)}, folder)
    return folder


@pytest.mark.parametrize("row", ROWS)
def test_rows_equal_those_of_the_oracle_and_training_is_untouched(row, trained):
    deepspeed_case.check(row, *ROWS[row], trained / row)
