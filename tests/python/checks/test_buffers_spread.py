# Buffers and inputs of models that torch spreads over ranks.
import pytest

import buffers_of_ranks
import launch


@pytest.mark.parametrize("how", ["ddp", "fsdp1", "fsdp1_flat", "fsdp2"])
def test_rows_are_those_of_torch_on_every_rank(how, tmp_path):
    launch.run("spread_buffers_run.py", tmp_path, how, ranks=buffers_of_ranks.RANKS)
    buffers_of_ranks.check(tmp_path, how)
