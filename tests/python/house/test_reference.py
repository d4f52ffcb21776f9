"""The Python reference and the quick start: what they say is done, and what was done is what they say."""

import doctest
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import trainmon

PAGE = (Path(__file__).resolve().parents[3] / "docs/quick_start.md").read_text()
NAMES = [name for name in trainmon.__all__ if name != "__version__"]
NO_CALL = {"Watch", "ConfigError"}  # names that nobody calls


def script_in(place: Path) -> Path:
    (script,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    (place / "quick_start.py").write_text(script)
    return place


@pytest.fixture(scope="module")
def after_quick_start(tmp_path_factory):
    place = script_in(tmp_path_factory.mktemp("reference"))
    subprocess.run([sys.executable, "quick_start.py"], cwd=place, check=True, timeout=300)
    return place


def test_quick_start(tmp_path):
    """Each command of the page, in its order, prints what the page shows; "..." is anything."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    options = {
        "cwd": script_in(tmp_path),
        "env": {**os.environ, "PATH": path, "COLUMNS": "80"},
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "timeout": 300,
    }
    commands = re.findall(r"^```console\n\$ (.*?)\n(.*?)^```", PAGE, re.M | re.S)
    assert len(commands) == 4
    for command, shown in commands:
        printed = subprocess.run(command, shell=True, text=True, **options).stdout
        same = doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS)
        assert same, f"$ {command}\n{printed}"


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name, after_quick_start, monkeypatch):
    monkeypatch.chdir(after_quick_start)
    text = inspect.getdoc(getattr(trainmon, name))
    names = {"torch": torch, "trainmon": trainmon}
    example = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    assert example.examples, "no example"
    said = []
    result = doctest.DocTestRunner().run(example, out=said.append)
    assert result.failed == 0, "".join(said)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NO_CALL])
def test_errors_are_named(name):
    text = inspect.getdoc(getattr(trainmon, name))
    assert re.search(r"\w+Error|errors as for read\(\)", text)
