# docs/reliability.md: it is what its data says, each promise is there, and each test that it names exists.
import json
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
import reliability_doc  # noqa: E402

HOW_MANY = {"A": 7, "B": 9, "C": 5, "D": 7, "E": 4, "F": 9}
TESTS = sorted({test["test"] for p in reliability_doc.promises() for test in p["tests"]})


def test_the_page_is_current():
    assert reliability_doc.PAGE.read_text(encoding="utf-8") == reliability_doc.page()


def test_every_promise_is_there_and_proven_or_said_not_to_be():
    promises = reliability_doc.promises()
    assert [p["id"] for p in promises] == [
        f"{s}{n + 1}" for s in HOW_MANY for n in range(HOW_MANY[s])
    ]
    for promise in promises:
        assert promise["promise"], promise["id"]
        assert bool(promise["tests"] and promise["cannot"]) or "missing" in promise, promise["id"]


@pytest.mark.parametrize("test", TESTS)
def test_what_is_named_exists(test):
    assert reliability_doc.is_there(test)


@pytest.mark.parametrize(
    "test",
    [
        "tests/python/house/no_file.py",
        "tests/python/house/test_reliability.py::test_is_not_there",
        "tests/python/harmless/test_console.py::TestStandardError.test_is_not_there",
        "tests/cpp/monitor/kill_loop_test.cpp::KillLoop.IsNotThere",
    ],
)
def test_what_does_not_exist_is_found_out(test):
    assert not reliability_doc.is_there(test)


def test_new_figures_replace_those_of_the_same_campaign(tmp_path, monkeypatch):
    monkeypatch.setattr(reliability_doc, "FIGURES", tmp_path / "campaign.json")
    old = {"what": "w", "count": 1, "unit": "kills", "failures": 0, "seconds": 1.0}
    kept = {name: {**old, "date": "2026-01-01", "commit": "abc"} for name in ("kills", "forks")}
    (tmp_path / "campaign.json").write_text(json.dumps(kept))
    lines = [json.dumps({**old, "campaign": "kills", "count": count}) for count in (2, 3)]
    (tmp_path / "lines").write_text("\n".join(lines) + "\n")
    reliability_doc.take(tmp_path / "lines")
    found = reliability_doc.figures()
    assert found["forks"] == kept["forks"]
    assert found["kills"]["count"] == 3 and found["kills"]["commit"] != "abc"
    assert "3 kills, no failure" in reliability_doc.page()
