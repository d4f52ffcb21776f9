# Tests beside mindstudio-probe, which has an environment of its own: --peer-python is its interpreter.
import os
import pathlib
import sys

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))


def pytest_addoption(parser):
    parser.addoption("--peer-python", required=True, help="has torch and mindstudio-probe")
    parser.addoption("--peer833-python", required=True, help="has mindstudio-probe 8.3.3")


@pytest.fixture(scope="session")
def peer_python(request):
    return request.config.getoption("--peer-python")


@pytest.fixture(scope="session")
def peer833_python(request):
    return request.config.getoption("--peer833-python")
