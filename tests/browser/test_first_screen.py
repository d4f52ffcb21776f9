"""The first screen of the page of `trainmon report`: what it claims, counts, names and leaves out."""

from __future__ import annotations

import json
import os
import subprocess

import numpy as np
import pytest
from pages import FAULT, MOMENTS, SOUND, few_steps, page_of, silent, trainmon

import launch
from written_run import WrittenRank


def test_the_strip_claims_no_more_than_was_found(browser, runs):
    page = browser.open(page_of(runs / SOUND))
    for words in ("no finding", "无发现"):
        cells = page.evaluate("""[...document.querySelectorAll('#strip td.green')].map((cell) =>
            [cell.innerText, cell.title])""")
        assert cells and all(text == f"\u2713 {words}" for text, _ in cells)
        assert all(title.startswith(words) for _, title in cells)
        assert "fine" not in page.text("#strip") and "正常" not in page.text("#strip")
        page.press("l")


def test_one_of_a_thing_is_singular(browser, tmp_path):
    page = browser.open(few_steps(tmp_path / "run", [1.0]))
    assert "1 row of 1 rank, steps 0 to 0" in page.text("#verdict")
    assert "Recorded: step 0: grad_reduced" in page.text("#not_seen")
    assert "1 of 1 tensor" in page.text("#found").splitlines()
    said = page.evaluate("""[say('running', 1), say('running', 2), say('torn', 1), say('torn', 2),
        say('left_out_ranks', 1), say('on_ranks', '3', 1), say('left_out_lines', 1)]""")
    assert [one.split(":")[0].split(",")[0] for one in said] == [
        "1 rank still writes", "2 ranks still write", "1 file ends in the middle of a record.",
        "2 files end in the middle of a record.", "1 rank is left out here", "(rank 3)", "1 line",
    ]  # fmt: skip
    assert not page.evaluate(
        "Object.keys(WORDS).some((key) => /[{}]/.test(say(key, 1, 1, 1, 1, 1)))"
    )


def test_two_tensors_are_both(browser, tmp_path):
    rank = WrittenRank(tmp_path / "run")
    for step in range(3):
        for name in ("a", "b"):
            array = np.full(2, np.nan if step == 2 else 1, np.float32)
            rank.observe(array, "grad_reduced", name, step)
        rank.end_step()
    rank.stop()
    page = browser.open(page_of(tmp_path / "run"))
    assert "both tensors" in page.text("h1") and "both tensors" in page.text(".facts")
    page.press("l")
    assert "全部 2 个张量" in page.text("h1")


def test_a_kind_says_where_it_ends_and_which_rank_has_less(browser, tmp_path):
    for number in range(2):
        rank = WrittenRank(tmp_path / "run", number, 2)
        for step in range(24):
            if 4 <= step < (16 if number == 0 else 10):
                rank.observe(np.ones(3, np.float32), "param_origin", "w", step)
            if step % 5 == 0:  # ends at 20, where it was due
                rank.observe(np.ones(3, np.float32), "exp_avg", "w", step)
            rank.observe(np.ones(3, np.float32), "grad_reduced", "w", step)
            rank.end_step()
        rank.stop()
    page = browser.open(page_of(tmp_path / "run"))
    lines = page.text("#not_seen").splitlines()
    assert (
        "Recorded: 12 of the 12 steps from 4 to 15: param_origin; the first step of the run is 0; "
        "the last step of the run is 23"
    ) in lines
    assert "Recorded: 5 of the 21 steps from 0 to 20: exp_avg" in lines
    assert "Recorded: 24 of the 24 steps from 0 to 23: grad_reduced" in lines
    assert [line for line in lines if line.startswith("Rank ")] == [
        "Rank 1: 6 of 12 steps: param_origin"
    ]


def test_the_first_screen_shows_how_large_the_fault_is(browser, runs):
    page = browser.open(page_of(runs / FAULT))
    sql = (
        "SELECT norm FROM stats WHERE kind = 'param_origin' AND name = '2.weight' AND rank = 1 "
        "AND step IN (14, 15, 23) ORDER BY step"
    )
    norms = [
        one["norm"] for one in json.loads(trainmon("query", runs / FAULT, sql, "--json").stdout)
    ]
    before, at, last = (float(text) for text in page.evaluate(
        "document.querySelector('.norms').innerText.match(/[\\d.]+(e\\d+)?(?= \\(step)/g)"))  # fmt: skip
    assert [before, at, last] == pytest.approx(norms, rel=0.02)
    assert "must be equal" in page.text("#verdict")
    assert page.evaluate("[...document.querySelectorAll('dt')].map((one) => one.innerText)") == [
        "Step", "Stage", "Rank", "Tensor",
    ]  # fmt: skip
    page = browser.open(page_of(runs / MOMENTS))
    verdict = json.loads(trainmon("diagnose", runs / MOMENTS, "--json").stdout)["verdict"]
    facts = dict(
        page.evaluate("""[...document.querySelectorAll('.fact')].map((one) =>
        [one.children[0].innerText, one.children[1].innerText])""")
    )
    assert verdict["bound"] > 0
    assert float(facts["Off by"]) == pytest.approx(verdict["value"], rel=0.05)
    assert float(facts["Rounding explains"]) == pytest.approx(verdict["bound"], rel=0.05)
    assert "rounding explains" not in page.text("#verdict")  # once, and not with other digits


def test_no_card_is_empty_and_the_strip_comes_before_the_commands(browser, runs):
    page = browser.open(page_of(runs / FAULT))
    assert page.count("#changed") == 0
    assert "No declared value changed in the ten steps before." in page.text("#not_seen")
    ids = page.evaluate("[...document.querySelectorAll('section')].map((one) => one.id)")
    assert ids.index("strip") < ids.index("reproduce") < ids.index("maps")


@pytest.mark.parametrize("width", [400, 700])
@pytest.mark.parametrize("language", ["en-US", "zh-CN"])
def test_a_narrow_window_shows_the_red_cells(browser, runs, width, language):
    page = browser.open(page_of(runs / FAULT), size=(width, 900), language=language)
    assert (
        page.evaluate("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)")
        <= width
    )
    edges = page.evaluate("""[...document.querySelectorAll('#strip td, #strip th, .block, figure, canvas, #legend span')]
        .filter((one) => !one.closest('.numbers')).map((one) => one.getBoundingClientRect().right)""")
    assert max(edges) <= width
    assert page.evaluate("document.querySelector('#strip .scroll').scrollWidth") <= page.evaluate(
        "document.querySelector('#strip .scroll').clientWidth"
    )
    assert page.evaluate("tensorMap.plot") > width / 3
    # Chinese stands upright in a column; English lies on its side.
    turned = "getComputedStyle(document.querySelector('#strip tr:first-child span')).transform"
    assert (page.evaluate(turned) == "none") == (language == "zh-CN")
    silent(page)


def test_an_empty_selection_is_the_headline(browser, runs, tmp_path):
    to = tmp_path / "a.html"
    trainmon("report", runs / SOUND, "-o", to, "--name", "zzz")
    page = browser.open(to)
    assert page.text("h1") == "Nothing matches the selection"
    assert "--name zzz" in page.text("#reproduce")
    silent(page)


def test_marks_of_direction_turn_no_label(browser, tmp_path):
    name = "layer\u202ethgiew\u2066.x\u200f"
    shown = "layer\\u{202e}thgiew\\u{2066}.x\\u{200f}"
    values = [1.0] * 11 + [np.nan]
    page = browser.open(few_steps(tmp_path / "run", values, name))
    for place in ("#verdict", "#history", "#worst"):
        assert shown in page.text(place), place
    for text in (
        "document.body.innerText",
        "tensorMap.rows[0].label",
        "charts.map((one) => one.label).join()",
    ):
        assert not set("\u202e\u2066\u200f") & set(page.evaluate(text))
    command = page.text("#history code").replace("trainmon", launch.command_line(), 1) + " --json"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "LC_ALL": "C.UTF-8"})  # fmt: skip
    assert len(json.loads(done.stdout)) == len(values), done.stderr


def test_what_came_before_the_verdict_is_no_consequence(browser, runs):
    page = browser.open(page_of(runs / FAULT))
    assert page.count("#noticed") == 0 and page.count("#candidates li") == 2
    page.evaluate("sides[0].findings[report.verdict_at + 1].step -= 3; render.first()")
    assert page.count("#noticed li") == 1 and page.count("#candidates li") == 1
    assert page.count("#consequences") == 0


def test_one_of_two_ranks_is_told_with_or(browser, runs):
    page = browser.open(page_of(runs / FAULT))
    page.evaluate(
        "Object.assign(sides[0].verdict, { one_of_ranks: true, ranks: [0, 1] }); render.first()"
    )
    assert "0 or 1" in page.text(".facts").splitlines()
    page.press("l")
    assert "rank 0 或 1" in page.text("h1")
    page.evaluate("sides[0].verdict.ranks = [0, 1, 2, 5]; render.first()")
    assert "rank 0-2 5 中的一部分" in page.text("h1")
    page.press("l")
    assert "some of 0-2 5" in page.text(".facts").splitlines()


def test_what_was_not_recorded_is_told_once(browser, tmp_path):
    rank = WrittenRank(tmp_path / "run")
    rank.monitor.set_not_covered("moments", "their optimizer is not known")
    for step in range(3):
        rank.observe(np.ones(3, np.float32), "grad_reduced", "w", step)
        rank.end_step()
    rank.stop()
    page = browser.open(page_of(tmp_path / "run"))
    assert page.text("main").count("their optimizer is not known") == 1


def test_only_equations_say_that_two_things_must_be_equal(browser, runs):
    page = browser.open(page_of(runs / FAULT))
    exact = "Object.keys(CHECKS_ZH).filter((check) => isExact({ check, value: 0, bound: 0 }))"
    assert page.evaluate(exact) == ["gap", "replicas", "reduce", "exp_avg", "exp_avg_sq", "update"]
