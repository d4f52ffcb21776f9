"""`trainmon.report`: the object that a notebook shows."""

from __future__ import annotations

import html
import re
import subprocess

import numpy as np
import pytest

import launch
import trainmon
from written_run import WrittenRank


def written(out, bad=None, name="w"):
    rank = WrittenRank(out)
    for step in range(12):
        array = np.full(3, np.nan if step == bad else 1.0, np.float32)
        rank.observe(array, "grad_reduced", name, step)
        rank.end_step()
    rank.stop()
    return out


def command(*arguments):
    words = [launch.command_line(), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=300)


def test_it_says_what_the_command_says(tmp_path):
    a, b = written(tmp_path / "a"), written(tmp_path / "b", 5)
    for runs, verdicts, apart in (((a,), (None, None), False), ((b,), ("step 5", None), False),
                                  ((a, b), (None, "step 5"), True)):  # fmt: skip
        page = trainmon.report(*runs)
        done = command("report", *runs, "-o", tmp_path / "c.html")
        assert str(page).splitlines() == done.stdout.splitlines()
        assert page.html == (tmp_path / "c.html").read_text()
        for place, expected in zip((page.verdict, page.verdict_b), verdicts):
            assert (place is None) == (expected is None)
            assert expected is None or place.startswith(expected)
        assert (page.difference is not None) == apart


def test_the_frame_holds_the_page_and_grants_scripts_alone(tmp_path):
    page = trainmon.report(written(tmp_path / "a", 5, '"></iframe><b>&amp;'))
    shown = page._repr_html_()
    (attributes,) = re.findall(r"\A<iframe ([^>]*?) srcdoc=\"[^\"]*\"></iframe>\Z", shown)
    assert re.findall(r'sandbox="(.*?)"', attributes) == ["allow-scripts"]
    (inside,) = re.findall(r'srcdoc="([^"]*)"', shown)
    assert html.unescape(inside) == page.html


def test_it_is_saved(tmp_path):
    page = trainmon.report(written(tmp_path / "a"))
    page.save(tmp_path / "a.html")
    page.save(tmp_path / "a.html")  # a report is replaced
    assert (tmp_path / "a.html").read_text() == page.html
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(RuntimeError, match="is there and no report"):
        page.save(tmp_path / "mine")
    page.save(tmp_path / "mine", overwrite=True)
    with pytest.raises(RuntimeError, match="is a directory"):
        page.save(tmp_path)
    with pytest.raises(RuntimeError, match="none"):
        page.save(tmp_path / "none" / "a.html")


def test_rows_are_chosen_and_the_size_is_kept(tmp_path):
    run = written(tmp_path / "a")
    page = trainmon.report(run, kinds="grads", include="w", ranks=0, steps=(3, 5))
    assert str(page) == "nothing certainly wrong in 3 rows"
    assert "trainmon show" in page.html and "--steps 3:5" in page.html
    assert len(trainmon.report(run, max_size=1).html) <= 1 << 20


@pytest.mark.parametrize("arguments, error, said", [
    ({"run": "no_such_run"}, FileNotFoundError, "no_such_run"),
    ({"run_b": "no_such_run"}, FileNotFoundError, "no_such_run"),
    ({"run": 3}, TypeError, "run must be a path"), ({"run_b": 3}, TypeError, "run_b must be a path"),
    ({"max_size": 0}, ValueError, "max_size must be 1 to 1024"), ({"max_size": 1.5}, TypeError, "max_size must be an int"),
    ({"kinds": "gards"}, ValueError, "gards"), ({"steps": "x"}, TypeError, "steps"),
])  # fmt: skip
def test_bad_arguments_are_named(tmp_path, monkeypatch, arguments, error, said):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "a")
    with pytest.raises(error, match=said):
        trainmon.report(**{"run": tmp_path / "a", **arguments})
