# The equality table, DeepSpeed: ZeRO 0 to 3 give the rows of a training in one process without it.
import deepspeed_case
import pytest
import torch
from deepspeed_case import MICRO, ZERO3

import launch

BF16 = {"compute": torch.bfloat16, "begin": torch.bfloat16}
IDLE = {
    **BF16,
    "idle_steps": 1,
}  # initialize() has the optimizer make its state by a step for nothing
# name -> (title, what is run, precision, what the oracle does)
ROWS = {
    "zero0": ("DeepSpeed ZeRO 0", {"stage": 0}, "fp32", {}),
    "zero1": ("DeepSpeed ZeRO 1", {"stage": 1}, "fp32", {}),
    "zero2": ("DeepSpeed ZeRO 2", {"stage": 2}, "fp32", MICRO),
    "zero3": ("DeepSpeed ZeRO 3", {"stage": 3}, "fp32", ZERO3),
    "zero0_bf16": ("DeepSpeed ZeRO 0, bf16", {"stage": 0, "dtype": "bf16"}, "bf16", IDLE),
    "zero1_bf16": ("DeepSpeed ZeRO 1, bf16", {"stage": 1, "dtype": "bf16"}, "bf16", BF16),
    "zero1_bf16_fp32": (
        "DeepSpeed ZeRO 1, bf16, accumulated in fp32",
        {"stage": 1, "dtype": "bf16", "accumulate": "fp32"},
        "bf16",
        {**BF16, "accumulate": torch.float32, "reduce": torch.bfloat16, "each_micro": True},
    ),
    "zero2_bf16": ("DeepSpeed ZeRO 2, bf16", {"stage": 2, "dtype": "bf16"}, "bf16", {**BF16, **MICRO}),
    "zero3_bf16": ("DeepSpeed ZeRO 3, bf16", {"stage": 3, "dtype": "bf16"}, "bf16", {**BF16, **ZERO3}),
    "zero1_groups": (
        "DeepSpeed ZeRO 1, two groups, clipped, watched before initialize()",
        {"stage": 1, "groups": True, "clip": 0.5, "given": "before"},
        "fp32",
        {"clip": 0.5},
    ),
    "zero3_groups": (
        "DeepSpeed ZeRO 3, sub-groups, clipped, bare model and optimizer",
        {"stage": 3, "groups": True, "clip": 0.5, "given": "bare", "zero": {"sub_group_size": 2000}},
        "fp32",
        {"clip": 0.5, **ZERO3},
    ),
    "zero0_bf16_before": (
        "DeepSpeed ZeRO 0, bf16, watched before initialize()",
        {"stage": 0, "dtype": "bf16", "given": "before"},
        "bf16",
        IDLE,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    deepspeed_case.train({row: ROWS[row] for row in launch.chosen_rows(request)}, folder)
    return folder


@pytest.mark.parametrize("row", ROWS)
def test_rows_equal_those_of_the_oracle_and_training_is_untouched(row, trained):
    deepspeed_case.check(row, *ROWS[row], trained / row)
