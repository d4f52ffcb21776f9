# The example of Megatron-core.
from example_case import check


def test_the_example_runs(tmp_path):
    check("megatron_gpt", tmp_path)
