# Tests of what `make dist` made; scripts/test_dist.sh says with which interpreters.
import pathlib

import pytest
from wheel_case import Wheel

ROOT = pathlib.Path(__file__).resolve().parents[2]


def pytest_addoption(parser):
    parser.addoption("--wheel-python", action="append", default=[], help="runs wheels of x86_64")
    parser.addoption("--arm-root", required=True, help="an arm64 Debian with Python 3.11")
    parser.addoption("--numpy-wheels", required=True, help="a folder of NumPy's wheels")


def pytest_generate_tests(metafunc):
    if "wheel" in metafunc.fixturenames:
        wheels = [Wheel(path) for path in sorted((ROOT / "dist").glob("*.whl"))]
        metafunc.parametrize("wheel", wheels, ids=[f"{w.python}-{w.machine}" for w in wheels])
    if "interpreter" in metafunc.fixturenames:
        pythons = metafunc.config.getoption("--wheel-python")
        metafunc.parametrize("interpreter", pythons, ids=[p.split("/")[-3] for p in pythons])


@pytest.fixture(scope="session")
def wheels():
    return [Wheel(path) for path in sorted((ROOT / "dist").glob("*.whl"))]


@pytest.fixture(scope="session")
def arm_root(request):
    return pathlib.Path(request.config.getoption("--arm-root"))


@pytest.fixture(scope="session")
def numpy_wheels(request):
    return pathlib.Path(request.config.getoption("--numpy-wheels"))
