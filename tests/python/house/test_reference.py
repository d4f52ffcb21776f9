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

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts/site"))
import cpp_reference  # noqa: E402
import python_reference  # noqa: E402

PAGE = (ROOT / "docs/quick_start.md").read_text()
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
    assert len(commands) == 5
    for command, shown in commands:
        printed = subprocess.run(command, shell=True, text=True, **options).stdout
        same = doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS)
        assert same, f"$ {command}\n{printed}"


def run_example(value, name, given):
    text = inspect.getdoc(value)
    names = {"torch": torch, "trainmon": trainmon, **given}
    example = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    assert example.examples, "no example"
    said = []
    result = doctest.DocTestRunner().run(example, out=said.append)
    assert result.failed == 0, "".join(said)


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name, after_quick_start, monkeypatch):
    monkeypatch.chdir(after_quick_start)
    run_example(getattr(trainmon, name), name, {})


CLASSES = python_reference.classes()
METHODS = [(cls, name) for cls in CLASSES for name, _, _ in python_reference.members(cls)]


def test_methods_are_found():
    assert {(trainmon.Watch, "summary"), (trainmon.Watch, "directory")} <= set(METHODS)
    assert {"Watch", "GradProbe", "Table", "Report"} <= {cls.__name__ for cls, _ in METHODS}


@pytest.mark.parametrize(("cls", "name"), METHODS, ids=[f"{c.__name__}.{n}" for c, n in METHODS])
def test_examples_of_methods_run(cls, name, after_quick_start, tmp_path, monkeypatch):
    """Those of Watch and GradProbe go on after the step in the example of their class."""
    (tmp_path / "trainmon_runs").symlink_to(after_quick_start / "trainmon_runs")
    monkeypatch.chdir(tmp_path)
    given = {}
    if cls.__name__ in {"Watch", "GradProbe"}:
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        given = {"model": model, "optimizer": optimizer}
        if cls is trainmon.Watch:
            given["mon"] = trainmon.watch(model, optimizer, out="one_step")
        else:
            given["probe"] = trainmon.GradProbe(model, optimizer, out="probed")
        model(torch.ones(8, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    run_example(getattr(cls, name), f"{cls.__name__}.{name}", given)
    for name in {"mon", "probe"} & set(given):
        given[name].stop()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NO_CALL])
def test_errors_are_named(name):
    text = inspect.getdoc(getattr(trainmon, name))
    assert re.search(r"\w+Error|errors as for read\(\)", text)


HEADERS = cpp_reference.headers(ROOT)


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.name)
def test_cpp_names_have_examples(header):
    """Types, constants, functions and members are in an example, which the C++ tests compile and run."""
    names = {n: c for block in HEADERS[header] for n, c in cpp_reference.names(block).items()}
    assert names
    examples = cpp_reference.examples(ROOT)
    without = [n for n, c in names.items() if not any(e.shows(n, c) for e in examples)]
    assert not without


def test_cpp_names_are_found():
    """As many as somebody counted in two headers; a name that is missed has no example to miss."""
    (sink,) = (blocks for path, blocks in HEADERS.items() if path.name == "sink.h")
    assert [cpp_reference.names(block) for block in sink] == [
        {"RunInfo": False},
        {
            "Sink": False,
            **dict.fromkeys(["name", "open", "write", "flush", "close"], True),
            **dict.fromkeys(["rows_left_out", "rows_deleted", "rows_expired"], True),
        },
    ]
    (tensor,) = (blocks for path, blocks in HEADERS.items() if path.name == "tensor.h")
    names = {name for block in tensor for name in cpp_reference.names(block)}
    functions = {"dtype_name", "dtype_from_name", "dtype_size", "element_count"}
    assert names == {"DType", "Device", "TensorView", *functions}


def test_cpp_examples_are_built():
    listed = (ROOT / "tests/cpp/reference.cmake").read_text()
    files = [path.name for path in (ROOT / "tests/cpp/reference").glob("*_test.cpp")]
    assert files
    assert all(f"reference/{name}" in listed for name in files)
