"""What the page tells of a fault: which tensor, until when, what else; and of what was not there."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest
from pages import FAULT, MOMENTS, NOTICED, SOUND, page_of, silent, trainmon, written

import launch
from written_run import WrittenRank


def ones(factor=1.0):
    return np.full(3, factor, np.float32)


def items(page, section):
    return page.evaluate(
        f"[...document.querySelectorAll('#{section} li')].map((one) => one.innerText)"
    )


def test_the_root_module_and_the_element_are_named(browser, tmp_path):
    rank = WrittenRank(tmp_path / "run")
    for step in range(12):
        bad = 5 <= step < 8
        rank.observe(ones(np.inf if bad else 1), "actv", "", step, element="input.0")
        rank.observe(ones(np.nan if step >= 5 else 2), "actv", "", step, element="output")
        rank.end_step()
    rank.stop()
    assert "forward, rank 0, (root) input.0" in trainmon("diagnose", tmp_path / "run").stdout
    page = browser.open(page_of(tmp_path / "run"))
    assert page.text("h1") == "step 5, forward, rank 0, (root) input.0"
    assert "(root) input.0" in page.text(".facts").splitlines()
    norms = page.evaluate("[...document.querySelectorAll('.norms')].map((one) => one.innerText)")
    assert norms == [
        "rank 0, norm of actv: 1.73 (step 4) \u2192 inf (step 5) \u2192 1.73 (step 11)"
    ]
    assert page.text(".lasted") == "NaN or infinite until step 7"
    assert items(page, "consequences") == [
        "1 other tensor has a NaN or an infinity, the first in step 5: (root) output"
    ]
    framed = "tensorMap.framed.map(({ rows }) => rows.map((row) => tensorMap.rows[row].label))"
    assert page.evaluate(framed) == [["(root) input.0"]]
    assert page.text("#history h2").startswith("History: (root) input.0")
    page.press("l")
    assert page.text("h1").endswith("(root) input.0")
    silent(page)


def changed_weights(out, bad, steps=12):
    """Of which each step makes the next number; others come in between."""
    rank = WrittenRank(out)
    for step in range(steps):
        rank.observe(ones(100 if step in bad else step), "param_origin", "w", step)
        rank.observe(ones(step + 1), "param_updated", "w", step)
        rank.end_step()
    rank.stop()
    return page_of(out)


@pytest.mark.parametrize(
    "bad, also, page_says",
    [
        (range(5, 9), "also in steps 6 to 8", "also in steps 6 to 8, and in no later step"),
        ([5, 7, 11], "also in 2 steps from 7 to 11", "also in 2 steps from 7 to 11"),
        ([5], None, None),
    ],
)
def test_a_finding_of_several_steps_is_told_once(browser, tmp_path, bad, also, page_says):
    page = browser.open(changed_weights(tmp_path / "run", bad))
    said = trainmon("diagnose", tmp_path / "run").stdout
    assert said.count("the weights are not those") == 1
    assert (f"  {also}" in said.splitlines()) if also else ("also" not in said)
    assert page.text("h1") == "step 5, weights, rank 0, w"
    assert page.evaluate("document.querySelector('.lasted')?.innerText ?? null") == page_says
    assert page.count("#consequences") == 0
    found = json.loads(trainmon("diagnose", tmp_path / "run", "--json").stdout)["findings"]
    assert [one["step"] for one in found] == list(bad)


def test_a_nan_says_where_it_went(browser, tmp_path):
    def page_with(bad_of_other):
        rank = WrittenRank(tmp_path / f"run{bad_of_other}")
        for step in range(10):
            rank.observe(ones(np.nan if step == 4 else 1), "grad_reduced", "w", step)
            rank.observe(ones(np.nan if step == bad_of_other else 1), "grad_reduced", "b", step)
            rank.end_step()
        rank.stop()
        return browser.open(page_of(tmp_path / f"run{bad_of_other}"))

    page = page_with(6)
    assert page.text(".lasted") == "NaN or infinite in this step alone"
    assert items(page, "consequences") == [
        "1 other tensor has a NaN or an infinity, the first in step 6: b"
    ]
    page = page_with(None)
    assert items(page, "consequences") == [
        "No other tensor has a NaN or an infinity in this step or later."
    ]


def test_tensors_that_lack_steps_are_named(browser, tmp_path):
    rank = WrittenRank(tmp_path / "run")
    for step in range(60):
        for name in ("2.weight", "4.weight"):
            if name == "2.weight" or not (40 <= step < 46 or step == 50):
                rank.observe(ones(), "grad_reduced", name, step)
                rank.observe(ones(), "update", name, step, element="AdamW.0")
        rank.end_step()
    rank.stop()
    path = page_of(tmp_path / "run")
    page = browser.open(path)
    lines = [one for one in items(page, "not_seen") if "lack" in one]
    assert lines == ["1 tensor of grad_reduced, update lacks 7 steps: 4.weight, 40-45 50"]
    page.press("l")
    assert "grad_reduced, update 的 1 个张量缺少 7 步：4.weight，40-45 50" in items(
        page, "not_seen"
    )


@pytest.mark.parametrize(
    "factor, steps, is_told", [(1000, 6, True), (0.2, 20, True), (0.2, 6, False), (1.1, 6, False)]
)
def test_a_value_that_left_its_history_is_amber(browser, tmp_path, factor, steps, is_told):
    random = np.random.default_rng(1)
    rank = WrittenRank(tmp_path / "run")
    for step in range(100):
        for name in ("2.weight", "4.weight"):
            noise = 1 + 0.1 * random.standard_normal()
            is_bad = name == "4.weight" and 70 <= step < 70 + steps
            rank.observe(ones(factor * noise if is_bad else noise), "grad_reduced", name, step)
            feature = 1e-9 if name == "2.weight" and step == 50 else noise
            rank.observe(ones(feature), "mg_direction", name, step)
        if is_told:
            rank.monitor.add_scalar("loss", 2 * noise if 70 <= step < 70 + steps else noise)
        rank.end_step()
    rank.stop()
    page = browser.open(page_of(tmp_path / "run"))
    assert page.text("h1") == "Nothing certainly wrong"
    style = page.evaluate("document.getElementById('verdict').className")
    text = page.text("#left_history")
    assert (style == "verdict unsure") == is_told, style
    assert (text != "") == is_told
    if is_told:
        assert "grad_reduced on rank 0, step 70" in text and text.endswith("4.weight")
        assert ("It stays away." in text) == (steps > 8)
        assert "Logged loss left its history, too: " in text
        page.evaluate("document.querySelector('#left_history button').click()")
        assert page.text("#history h2").startswith("History: 4.weight, grad_reduced")
        page.press("l")
        assert "rank 0 上的 grad_reduced，第 70 步" in page.text("#left_history")
    silent(page)


def test_data_that_are_others_on_average_are_told(browser, tmp_path):
    rank, drawn = WrittenRank(tmp_path / "run"), np.random.default_rng(3)
    for step in range(420):
        size = np.exp(0.1 * drawn.normal() + (0.15 if step >= 300 else 0.0))
        rank.observe(ones(size), "input", "", step, element="input.0")
        rank.end_step()
    rank.stop()
    left = json.loads(trainmon("diagnose", tmp_path / "run", "--json").stdout)["left_history"]
    assert (left["measure"], left["step"] in range(297, 304)) == ("given", True)
    page = browser.open(page_of(tmp_path / "run"))
    said = f"from step {left['step']} on input is {left['norm']:.3g} in the mean of many steps"
    assert said in page.text("[id$=left_history]")
    silent(page)


def test_data_that_repeat_are_told(browser, tmp_path):
    rank, sizes = WrittenRank(tmp_path / "run"), np.random.default_rng(3).uniform(1, 2, 40)
    for step in range(200):
        rank.observe(ones(sizes[step % 40]), "input", "", step, element="input.0")
        rank.end_step()
    rank.stop()
    page = browser.open(page_of(tmp_path / "run"))
    said = "from step 40 on input goes with that of 40 steps before, by a correlation of 1."
    assert said in page.text("#left_history")
    silent(page)


def test_a_dtype_that_changed_is_told_by_its_name(browser, tmp_path):
    rank = WrittenRank(tmp_path / "run")
    for step in range(60):
        dtype = np.float32 if step < 40 else np.float64
        rank.observe(ones().astype(dtype), "actv", "head", step, element="output")
        rank.end_step()
    rank.stop()
    page = browser.open(page_of(tmp_path / "run"))
    text = "actv on rank 0 is float64 from step 40 on, and was float32 before."
    assert text in page.text("#left_history")
    page.press("l")
    assert "自第 40 步起，rank 0 上的 actv 为 float64，此前为 float32。" in page.text(
        "#left_history"
    )
    silent(page)


def test_what_was_noticed_stands_in_the_banner(browser, runs):
    page = browser.open(page_of(runs / NOTICED))
    assert page.text("h1") == "Nothing certainly wrong"
    assert page.evaluate("document.getElementById('verdict').className") == "verdict unsure"
    said = page.text("#verdict").splitlines()[-1]
    assert said.startswith("step 15, update, rank") and "lr of group 0 changed from" in said
    assert page.count("#left_history") == 0
    silent(page)


def test_a_sound_run_lacks_nothing(browser, runs):
    page = browser.open(page_of(runs / SOUND))
    assert "lack" not in page.text("#not_seen")


@pytest.mark.parametrize("bad, is_told", [(8, True), (15, True), (16, False)])
def test_a_restart_shortly_before_is_told(browser, tmp_path, bad, is_told):
    for start, world in ((0, 2), (5, 1)):
        rank = WrittenRank(tmp_path / "run", world_size=world)
        rank.monitor.set_start_step(0, start)
        for step in range(start, start + 15):
            value = np.nan if start == 5 and step == bad else 1
            rank.observe(ones(value), "grad_reduced", "w", step - start)
            rank.end_step()
        rank.stop()
    page = browser.open(page_of(tmp_path / "run"))
    told = ["Restart 1 began at step 5.", "The world size changed from 2 to 1 in restart 1."]
    assert items(page, "changed") == (told if is_told else [])


def test_a_missing_rank_is_seen(browser, tmp_path):
    rank = WrittenRank(tmp_path / "run", world_size=2)
    for step in range(6):
        for kind in ("grad_unreduced", "grad_reduced"):
            rank.observe(ones(), kind, "w", step)
        rank.end_step()
    rank.stop()
    path = page_of(tmp_path / "run")
    page = browser.open(path)
    assert page.text("h1") == "Nothing certainly wrong, 1 of 2 ranks is missing"
    rows = page.evaluate("""[...document.querySelectorAll('#strip tr')].slice(1).map((row) =>
        [row.children[0].innerText, [...row.querySelectorAll('td')].map((cell) => cell.className + cell.title)])""")
    assert [name for name, _ in rows] == ["rank 0", "rank 1"]
    assert set(rows[1][1]) == {"state greynot seen: left no record"}
    assert "state greenno finding: grad_reduced" in rows[0][1]
    assert "Not checked: replicas, reduce: missing rank 1" in items(page, "checked")
    silent(page)


def test_an_empty_run_has_no_rows_to_check(browser, tmp_path):
    written(tmp_path / "run", steps=0)
    page = browser.open(page_of(tmp_path / "run"))
    assert "Not checked: finite: no rows" in items(page, "checked")


def test_the_bound_of_the_verdict_stands_below_its_line(browser, runs):
    page = browser.open(page_of(runs / MOMENTS))
    page.evaluate("""sides[0].verdict.tensors = [data.rows.names[view.tensor]];
        render.first(); render.pictures()""")
    table = page.evaluate("""[...document.querySelectorAll('#history .numbers tr')].map((row) =>
        [...row.children].map((cell) => cell.innerText))""")
    facts = dict(page.evaluate("""[...document.querySelectorAll('.fact')].map((one) =>
        [one.children[0].innerText, one.children[1].innerText])"""))  # fmt: skip
    verdict = page.evaluate("sides[0].verdict")
    head, *rows = table
    assert head[-2:] == ["Off by", "Rounding explains"]
    named = [row for row in rows if row[0] in [f"rank {rank}" for rank in verdict["ranks"]]]
    assert named and all(row[-2:] == [facts["Off by"], facts["Rounding explains"]] for row in named)
    page.evaluate("moveCursor(view.cursor - 1); render.pictures()")
    assert "Rounding explains" not in page.text("#history")


def test_the_focus_stays_where_it_is(browser, runs):
    page = browser.open(page_of(runs / SOUND))
    page.evaluate("tensorMap.canvas.focus()")
    page.press("ArrowUp")
    page.press("ArrowUp")
    for key in ("ArrowDown", "Enter", "ArrowDown"):
        row = page.evaluate("tensorMap.rows.findIndex((row) => row.tensor === view.tensor)")
        page.press(key)
        assert page.evaluate("document.activeElement === tensorMap.canvas")
        now = page.evaluate("tensorMap.rows.findIndex((row) => row.tensor === view.tensor)")
        assert now == row + (key == "ArrowDown")
    page.evaluate("""(() => {
      const menu = [...document.querySelectorAll('#controls select')].find((one) => one.value === 'norm');
      menu.focus();
      menu.value = 'std';
      menu.dispatchEvent(new Event('change'));
    })()""")
    assert page.evaluate("document.activeElement.value") == "std"
    assert page.evaluate("isInUse()") is False  # a page that follows a run goes on
    page.evaluate("document.activeElement.dispatchEvent(new Event('mousedown'))")
    assert page.evaluate("isInUse()") is True


def answer(command, *more):
    command = command.replace("trainmon", launch.command_line(), 1) + "".join(more)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_layers_features_and_the_most_unusual_have_commands(browser, tmp_path):
    rank = WrittenRank(tmp_path / "run")
    for step in range(20):
        for layer in range(3):
            value = 50 if (step, layer) == (15, 1) else 1 + 0.01 * (step % 3)
            rank.observe(ones(value), "grad_reduced", f"layers.{layer}.w", step)
            rank.observe(ones(layer)[:1], "stable_rank", f"layers.{layer}", step)
        rank.end_step()
    rank.stop()
    page = browser.open(page_of(tmp_path / "run"))
    page.evaluate("moveCursor(7); render.atCursor()")
    rows = json.loads(answer(page.text("#layers code"), " --json"))
    shown = page.evaluate("layerChart.rows.map((row) => [row.layer, row.bars[0].values[0]])")
    assert [(one["name"].removesuffix(".w"), pytest.approx(one["norm"])) for one in rows] == [
        tuple(one) for one in shown
    ]
    rows = json.loads(answer(page.text("#features code"), " --json"))
    assert [one["mean"] for one in rows if one["step"] == 3] == [0, 1, 2] and len(rows) == 60
    (first, *_) = json.loads(answer(page.text("#worst code"), " --json --count 1"))
    assert (first["name"], first["step"]) == ("layers.1.w", 15)
    cells = page.evaluate(
        "[...document.querySelectorAll('#worst tr:nth-child(2) td')].map((one) => one.innerText)"
    )
    assert cells[:4] == ["layers.1.w", "grad_reduced", "0", "15"]
    assert first["norm"] == pytest.approx(float(cells[-1]), rel=1e-3)


def test_norms_have_the_digits_in_which_they_differ(browser, tmp_path, runs):
    def norms(before, now):
        name = f"{before}{now}"
        page = browser.open(changed_weights(tmp_path / name, [5]))
        page.evaluate(f"""sides[0].report.evidence.lines = [{{ rank: 0, before: {{ step: 4, norm: {before} }},
            at: {{ step: 5, norm: {now} }}, last: null }}]; render.first()""")
        return page.evaluate("[...document.querySelectorAll('.norms')].map((one) => one.innerText)")

    assert norms(3.1700001, 3.1704) == [
        "rank 0, norm of param_origin: 3.17 (step 4) \u2192 3.1704 (step 5)"
    ]
    assert norms(3.17, 3.17) == []


def test_each_check_says_what_it_means(browser, runs):
    page = browser.open(page_of(runs / FAULT))
    told = dict(
        page.evaluate(
            """[...document.querySelectorAll('#checked abbr')].map((one) => [one.innerText, one.title])"""
        )
    )
    assert told["gap"] == "weights change in the optimizer's step alone"
    assert set(told) == set(page.evaluate("Object.keys(report.diagnosis.checked)"))
    assert page.evaluate("Object.keys(CHECKS).join() === Object.keys(CHECKS_ZH).join()")


def test_the_own_cost_is_told_where_it_was_measured(browser, tmp_path):
    rank = WrittenRank(tmp_path / "run")
    for step in range(3):
        rank.observe(ones(), "grad_reduced", "w", step)
        rank.end_step()
    note = {
        "budget": 0.05,
        "share": 0.02,
        "kept": [1, 1],
        "every": 1,
        "since_step": 0,
        "out_of_reach": False,
    }
    rank.monitor.set_note("budget", json.dumps(note))
    rank.stop()
    page = browser.open(page_of(tmp_path / "run"))
    said = [line for line in page.text("#overview").splitlines() if line.startswith("Own cost")]
    assert said == ["Own cost: 2 % of the step's time, rank 0; the budget is 5 %."]
    assert "measured share 2%" in trainmon("doctor", tmp_path / "run").stdout
    written(tmp_path / "plain")
    assert "Own cost" not in browser.open(page_of(tmp_path / "plain")).text("#overview")


def test_a_ratio_of_nothing_is_no_nan(browser, tmp_path):
    """Adam's moments of a dead unit are 0; in step 3 they are NaN indeed."""
    rank = WrittenRank(tmp_path / "run")
    for step in range(5):
        rank.observe(ones(), "grad_reduced", "w", step)
        series = [
            rank.monitor.add_series("update_ratio", "w", element=one) for one in ("update", "ratio")
        ]
        first, second = (np.array([0, value], np.float32) for value in (0.1, 0.2))
        if step == 3:
            first[1] = np.nan
        rank.monitor.add_adam_histograms(*series, first, second, step + 1.0, 0.9, 0.999, 1e-8)
        rank.end_step()
    rank.stop()
    page = browser.open(page_of(tmp_path / "run"))
    found = page.evaluate("""data.histograms.lines.map((line) => [line.element, [...data.histograms.steps.keys()].map(
        (i) => (line.bytes[i * line.width + 2] === 0 ? "" : isUndefined(line, i) ? "undefined" : "nan"))])""")
    assert found == [
        ["update", ["", "", "", "nan", ""]],
        ["ratio", ["undefined"] * 3 + ["nan", "undefined"]],
    ]
    to = tmp_path / "picture.png"
    answer(page.text("#histograms code"), f" -o {to}")
    assert to.read_bytes().startswith(b"\x89PNG")
    silent(page)


def test_a_tensor_on_another_rank_is_no_other_tensor(browser, tmp_path):
    for number in range(2):
        rank = WrittenRank(tmp_path / "run", number, 2)
        for step in range(10):
            rank.observe(ones(np.nan if step == (6, 4)[number] else 1), "grad_reduced", "w", step)
            rank.observe(ones(np.nan if step == 7 else 1), "grad_reduced", "b", step)
            if (step, number) != (3, 1):
                rank.observe(ones(), "exp_avg", "w", step)
            rank.observe(ones(), "exp_avg", "b", step)
            rank.end_step()
        rank.stop()
    page = browser.open(page_of(tmp_path / "run"))
    assert page.text("h1") == "step 4, grad_reduced, rank 1, w"
    assert page.text(".lasted") == "NaN or infinite in this step alone"
    assert "1 other tensor has a NaN or an infinity, the first in step 7: b" in items(
        page, "consequences"
    )
    lacking = [one for one in items(page, "not_seen") if "tensor" in one]
    assert lacking == ["1 tensor of exp_avg lacks 1 step: w, 3"]
