# One warm process for all tests that need trainings which somebody kills.
import pytest

from warm import Warm


@pytest.fixture(scope="session")
def chains(tmp_path_factory):
    with Warm("chain_run.py", tmp_path_factory.mktemp("warm")) as warm:
        yield warm
