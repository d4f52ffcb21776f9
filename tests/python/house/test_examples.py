# The examples that need torch only.
import pytest

from example_case import check


@pytest.mark.parametrize("name", ["ddp", "fsdp1", "fsdp2"])
def test_an_example_runs(name, tmp_path):
    check(name, tmp_path)
