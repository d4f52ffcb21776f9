"""The command line in a working directory where somebody has left files with names of Python's."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import launch
from written_run import WrittenRank

TRAP = "import os, pathlib\npathlib.Path(os.environ['SPRUNG']).touch()\n"
NAMES = (
    "trainmon",
    "numpy",
    "json",
    "sys",
    "runpy",
    "site",
    "encodings",
    "sitecustomize",
    "usercustomize",
    "argparse",
    "matplotlib",
    "pyarrow",
)


@pytest.fixture
def run(tmp_path):
    rank = WrittenRank(tmp_path / "run")
    for window in range(4):
        rank.observe(np.ones(8, np.float32) * window, "grad_reduced", "w", window)
        rank.end_step()
    rank.stop()
    return tmp_path / "run"


def called(folder, *arguments, **environment):
    environment = {
        **os.environ,
        "TRAINMON_PYTHON": sys.executable,
        "SPRUNG": str(folder / "sprung"),
        **environment,
    }
    command = [launch.command_line(), *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("path", [None, ":", ":/nonexistent", "/nonexistent::"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("plot", "RUN", "-o", "a.png"),
        ("convert", "RUN", "--to", "parquet", "-o", "a.parquet"),
        ("merge", "RUN", "--to", "parquet", "-o", "merged.parquet"),
        ("compare", "RUN", "RUN", "--plot", "c.png"),
        ("doctor",),
    ],
    ids=lambda arguments: "-".join(arguments[:1] + arguments[2:4]),
)
def test_python_of_the_working_directory_is_not_run(run, tmp_path, arguments, path):
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(TRAP)
    environment = {} if path is None else {"PYTHONPATH": path}
    done = called(folder, *(run if word == "RUN" else word for word in arguments), **environment)
    assert not (folder / "sprung").exists(), done.stderr
    is_well = launch.finds_nothing(done.returncode, done.stdout)
    assert is_well, done.stdout + done.stderr
    if arguments[0] != "doctor":
        assert (folder / arguments[-1]).exists()


def test_a_path_that_the_user_set_is_searched(run, tmp_path):
    """PYTHONPATH may be how trainmon is found at all."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "trainmon.py").write_text(TRAP)
    done = called(tmp_path, "plot", run, "-o", "a.png", PYTHONPATH=f":{tmp_path / 'mine'}")
    assert (tmp_path / "sprung").exists() and done.returncode != 0
