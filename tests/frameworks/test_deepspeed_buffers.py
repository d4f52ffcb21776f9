# Buffers and inputs of models that DeepSpeed spreads over ranks.
import pytest

import buffers_of_ranks
import launch


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_rows_are_those_of_torch_on_every_rank(stage, tmp_path):
    accelerator = {"DS_ACCELERATOR": "cpu"}
    ranks = buffers_of_ranks.RANKS
    launch.run(
        "spread_buffers_run.py", tmp_path, f"zero{stage}", ranks=ranks, environment=accelerator
    )
    buffers_of_ranks.check(tmp_path, f"zero{stage}")
