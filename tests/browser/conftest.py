# Tests of the page that `trainmon report` writes, in a real Chromium (`make test-browser`).
import pathlib
import sys

PYTHON = pathlib.Path(__file__).resolve().parents[1] / "python"
sys.path[:0] = [str(PYTHON), str(PYTHON / "programs"), str(PYTHON / "look")]

import pytest  # noqa: E402
from browser import Browser  # noqa: E402
from pages import FAULT, FIRST_MOMENT, MOMENTS, NOTHING_FINITE, NOTICED, SOUND  # noqa: E402

import launch  # noqa: E402


@pytest.fixture(scope="session")
def browser():
    one = Browser()
    yield one
    one.close()


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    names = (FAULT, SOUND, NOTHING_FINITE, MOMENTS, FIRST_MOMENT, NOTICED)
    launch.run("diagnose_run.py", out, *names, ranks=2)
    return out
