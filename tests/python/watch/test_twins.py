"""What the adapters of two frameworks do alike stands once, in trainmon.base: no function of eight lines
or more has a near-identical twin in the other adapter."""

import ast
import collections
import difflib
import pathlib

import pytest

PYTHON = pathlib.Path(__file__).resolve().parents[3] / "python/trainmon"
LEAST_LINES = 8
ALIKE = 0.8  # share of equal lines: two of ten may have drifted


def functions(folder):
    """(place, lines) of every function, without its docstring and comments, in one spelling."""
    found = []
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
            lines = ast.unparse(node).splitlines()
            if len(lines) >= LEAST_LINES:
                found.append((f"{file.relative_to(folder.parent)} {node.name}", lines))
    return found


def twins(one, two):
    found = []
    others = functions(two)
    for place, lines in functions(one):
        for other, theirs in others:
            shared = sum((collections.Counter(lines) & collections.Counter(theirs)).values())
            if 2 * shared < ALIKE * (len(lines) + len(theirs)):
                continue
            if difflib.SequenceMatcher(None, lines, theirs, autojunk=False).ratio() >= ALIKE:
                found.append((place, other))
    return found


def test_the_adapters_have_no_twins():
    assert functions(PYTHON / "torch") and functions(PYTHON / "mindspore")
    assert twins(PYTHON / "mindspore", PYTHON / "torch") == []


PLANTED = """
def read(self, values):
    {doc}
    found = []
    for name, value in values.items():
        if value is None:
            continue
        found.append((name, value))
        {first}
        {second}
    return found
"""


@pytest.mark.parametrize(
    "first, second, is_twin",
    [
        ("self.count += 1", "self.seal(name)", True),
        ("self.count += 1", "self.close(name)", True),  # has drifted apart in one line
        ("self.total -= value", "self.close(name)", False),
    ],
)
def test_a_planted_twin_is_found(tmp_path, first, second, is_twin):
    one = PLANTED.format(doc='"""Reads."""', first="self.count += 1", second="self.seal(name)")
    two = PLANTED.format(doc="# Reads.", first=first, second=second)
    for folder, text in (("one", one), ("two/inner", two)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.py").write_text(text)
    expected = [("one/a.py read", "two/inner/a.py read")] if is_twin else []
    assert twins(tmp_path / "one", tmp_path / "two") == expected
