"""The page of two runs in a real Chromium: the first difference, lines of both, and where they differ."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pages import FAULT, SOUND, page_of, silent, trainmon, written

from written_run import WrittenRank

MARKUP = "<img src=x onerror=alert(1)>"
DIFFERENCE = "#maps canvas[aria-label^='Difference of A and B']"


@pytest.fixture(scope="module")
def both(runs):
    return page_of(runs / SOUND, runs / FAULT)


def test_the_first_screen_says_where_they_differ_and_what_each_run_says(browser, runs, both):
    said = trainmon("compare", runs / SOUND, runs / FAULT).stdout.splitlines()
    page = browser.open(both)
    assert said[0].removeprefix("first difference: ") in page.text("#difference h1")
    for line in said[1:3]:
        assert line.strip() in page.text("#difference")
    assert "Nothing certainly wrong" in page.text("#verdict_a")
    place = trainmon("diagnose", runs / FAULT).stdout.splitlines()[0]
    assert place.removeprefix("first wrong: ") in page.text("#verdict_b")
    bottoms = page.evaluate(
        "['difference', 'verdict_a', 'verdict_b'].map((id) => place(id).getBoundingClientRect().bottom)"
    )
    assert max(bottoms) < 900  # without scrolling
    assert f"trainmon compare {runs / SOUND} {runs / FAULT}" in page.text("#reproduce")
    silent(page)


def test_both_runs_are_marked(browser, both):
    page = browser.open(both)
    framed = """map.framed.map((one) => [one.step, one.isDifference, one.rows.map((row) => map.rows[row].label)])"""
    page.evaluate("paintNow()")
    marks = {
        name: page.evaluate(f"(() => {{ const map = {name}; return {framed}; }})()")
        for name in ("differenceMap", "tensorMap", "rankMap")
    }
    assert marks["differenceMap"][0] == [15, True, ["2.weight"]]
    assert marks["tensorMap"] == [[15, True, ["2.weight"]], [15, False, ["2.weight"]]]
    # Rank 1 of both runs at the first difference, of B at its verdict.
    assert marks["rankMap"] == [
        [15, True, ["A, rank 1", "B, rank 1"]],
        [15, False, ["B, rank 1"]],
    ]
    silent(page)


def test_lines_of_both_runs_have_two_styles_and_a_legend(browser, both):
    page = browser.open(both)
    chart = "charts.find((one) => one.note?.closest('#history'))"
    series = page.evaluate(f"{chart}.series.map((one) => [one.label, one.isDashed])")
    assert [label for label, _ in series] == ["A, rank 0-1", "B, rank 0", "B, rank 1"]
    assert [dashed for _, dashed in series] == [False, True, True]
    keys = page.evaluate("""[...document.querySelectorAll('#history .line-key')].map((one) =>
        [one.innerText, one.classList.contains('dashed')])""")
    assert keys == series
    assert page.evaluate("tensorMap.rows.every((row) => row.lines.every((line) => line.run === 1))")
    page.evaluate("view.run = 0; render.pictures()")
    assert page.evaluate("tensorMap.rows.every((row) => row.lines.every((line) => line.run === 0))")
    silent(page)


def run_of(out, change, name="w", **config):
    """Two tensors over 40 steps; `change(step, array)` gives what is recorded of the second."""
    generator = np.random.default_rng(7)
    rank = WrittenRank(out, **config)
    for step in range(40):
        for tensor in ("sound", name):
            array = generator.standard_normal(8).astype(np.float32)
            rank.observe(array if tensor == "sound" else change(step, array), "grad_reduced", tensor, step)  # fmt: skip
        rank.end_step()
    rank.stop()
    return out


def test_the_difference_map_shows_how_far_apart_they_are(browser, tmp_path):
    factors = {20: 1.5, 30: 1 + 1e-4}

    def other(step, array):
        if step == 35:
            array[2] = np.nan
        return array * np.float32(factors.get(step, 1))

    a = run_of(tmp_path / "a", lambda step, array: array)
    b = run_of(tmp_path / "b", other)
    page = browser.open(page_of(a, b))
    codes = page.evaluate("""(() => {
      const row = differenceMap.rows.findIndex((one) => one.label === 'w');
      const cells = (at) => [...extremesOf(differenceMap.rows[at].seen.map((one) => differenceMap.cellsOf(one)), 0, 40)];
      return [cells(row), cells(1 - row)].map((some) => some.map((code) => [levelOf(code), toneOf(code)]));
    })()""")
    level = page.evaluate("LEVEL")
    ours, others = codes
    assert all(one == [level["value"], 0] for one in others)
    for step, (found, tone) in enumerate(ours):
        if step == 35:
            assert found == level["nan"]
        elif step in factors:
            norms = np.array([1.0, factors[step]])
            apart = np.ptp(norms) / norms.max()
            assert found == level["value"]
            assert tone == pytest.approx(1 + np.log10(apart) / 8, abs=2e-3)
        else:
            assert (found, tone) == (level["value"], 0)
    left, up, width, height = page.box(DIFFERENCE)
    row = page.evaluate("differenceMap.rows.findIndex((one) => one.label === 'w')")
    x = left + 230 + 20.5 / 40 * (width - 238)
    page.mouse("mouseMoved", x, up + 12 + (row + 0.5) / 2 * (height - 32))
    assert "Relative difference 0.333" in page.text("#tip")
    silent(page)


def test_what_one_run_alone_has_is_counted_and_listed(browser, tmp_path):
    def some(out, ranks, steps, names):
        for number in range(ranks):
            rank = WrittenRank(out, number, ranks)
            for step in range(steps):
                for name in names:
                    rank.observe(np.ones(3, np.float32), "grad_reduced", name, step)
                rank.end_step()
            rank.stop()
        return out

    a = some(tmp_path / "a", 1, 12, ["shared", *(f"only.{i}{MARKUP}" for i in range(9))])
    b = some(tmp_path / "b", 2, 20, ["shared", "fresh"])
    page = browser.open(page_of(a, b))
    shown = page.text("#only_in_one")
    assert "Tensors of A alone: 9" in shown and f"only.0{MARKUP}" in shown and "and 4 more" in shown
    assert "Tensors of B alone: 1" in shown and "grad_reduced fresh" in shown
    assert "Ranks of B alone: 1" in shown and "it has steps 0 to 19" in shown
    found = json.loads(trainmon("compare", a, b, "--json").stdout)
    assert f"{found['b']['unmatched']} of {found['b']['rows']} rows of B" in shown
    assert page.evaluate("differenceMap.rows.map((row) => row.label)") == ["shared"]
    assert page.evaluate("data.axis.length") == 20
    assert page.count("img") == 0
    silent(page)


def test_names_that_wrappers_change_are_one(browser, tmp_path):
    a = run_of(tmp_path / "a", lambda step, array: array, "layers.0.weight")
    b = run_of(
        tmp_path / "b",
        lambda step, array: array * np.float32(np.nan if step == 30 else 1),
        "module.layers.0._orig_mod.weight",
    )
    page = browser.open(page_of(a, b))
    assert "layers.0.weight" in page.evaluate("differenceMap.rows.map((row) => row.label)")
    assert "step 30" in page.text("#difference h1") and "step 30" in page.text("#verdict_b")
    page.evaluate("paintNow()")
    assert page.evaluate("rankMap.framed.map((one) => one.rows)") == [[0, 1], [1]]
    silent(page)


def test_nothing_in_common_and_damage_have_a_page(browser, tmp_path):
    written(tmp_path / "a", "here")
    written(tmp_path / "b", "there")
    done = trainmon("report", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "a.html")
    assert done.returncode == 3 and "no row in common" in done.stdout
    page = browser.open(tmp_path / "a.html")
    assert "The runs have nothing to compare" in page.text("#difference")
    assert "no row in common" in page.text("#difference")
    assert "Nothing certainly wrong" in page.text("#verdict_b")
    silent(page)
    log = written(tmp_path / "damaged", "here", steps=200).directory
    (file,) = log.glob("**/*.tmlog")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    page = browser.open(page_of(tmp_path / "a", tmp_path / "damaged"))
    assert "damaged:" in page.text("#not_seen_b")
    assert "The record is not complete" in page.text("#verdict_b")
    silent(page)


def test_two_equal_runs_say_so(browser, runs):
    page = browser.open(page_of(runs / SOUND, runs / SOUND), language="zh-CN")
    assert "没有超出舍入的差异" in page.text("#difference")
    assert page.evaluate("markedPlaces().length") == 0 and page.count("#apart") == 0
    silent(page)


def test_a_page_can_be_shown_again(browser, runs, both):
    """Whoever has a later page gives its parts again; what was chosen stays."""
    page = browser.open(both)
    page.evaluate("view.kind = 'grad_reduced'; view.tensor = kindInSight().lines[3].tensor; render.pictures()")  # fmt: skip
    chosen = page.evaluate("[view.kind, view.tensor]")
    again = "unpacked().then((bytes) => { takeReport(); load(bytes); render.first(); render.pictures(); })"  # fmt: skip
    page.evaluate(again)
    assert page.evaluate("[view.kind, view.tensor]") == chosen
    assert "grad_reduced" in page.text("#history h2")
    assert page.count("#difference") == page.count("#layers") == 1
    silent(page)
