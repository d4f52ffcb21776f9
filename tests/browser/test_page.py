"""The page of `trainmon report` in a real Chromium: what it says, draws, and does when it is used."""

from __future__ import annotations

import json
import random
import subprocess

import numpy as np
import pytest
from pages import (
    FAULT,
    FIRST_MOMENT,
    MOMENTS,
    NOTHING_FINITE,
    SOUND,
    few_steps,
    page_of,
    silent,
    trainmon,
    written,
)

import launch
from written_run import WrittenRank

MARKUP = "<script>alert(1)</script>"
ODD = "</script><img src=x onerror=alert(2)><b>bold</b>&amp;"
TENSORS, RANKS = (
    "#maps canvas[aria-label='Tensor x step']",
    "#maps canvas[aria-label^='Rank x step']",
)
STEPS, LINES, NAN_AT, SPIKE_AT = 1500, 30, (1203, 7), (641, 20)
# Colours of src/report/page/50_view.js in the light theme.
NAN_COLOR, INF_COLOR, FAR_COLOR = [204, 0, 204], [22, 25, 29], [217, 95, 2]


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    """More columns than the map has pixels, with one NaN and one spike."""
    out = tmp_path_factory.mktemp("long") / "run"
    generator = np.random.default_rng(2)
    rank = WrittenRank(out)
    for step in range(STEPS):
        for i in range(LINES):
            array = (1 + 0.05 * generator.standard_normal(3)).astype(np.float32)
            if (step, i) == NAN_AT:
                array[1] = np.nan
            if (step, i) == SPIKE_AT:
                array *= 1e5
            rank.observe(array, "grad_reduced", f"model.layers.{i}.q_proj.weight", step)
        for i in range(25):
            rank.monitor.add_scalar("loss" if i == 0 else f"logged_{i}", float(step % 9 + i))
        rank.end_step()
    rank.stop()
    return page_of(out)


def pixels(page, chart, color):
    """Where in a map's plot, as shares of its width and height, pixels have this colour."""
    expression = f"""(() => {{
      const map = {chart}, color = {json.dumps(color)}, found = [];
      const {{ data, width, height }} = map.image;
      for (let at = 0; at < data.length; at += 4)
        if (data[at + 3] === 255 && color.every((v, i) => data[at + i] === v))
          found.push([(at / 4 % width) / width, Math.floor(at / 4 / width) / height]);
      return found;
    }})()"""
    return page.evaluate(expression)


def middle_of(page, selector, row, rows, bin, bins, gutter=230, top=12, below=20):
    left, up, width, height = page.box(selector)
    plot, body = width - gutter - 8, height - top - below
    return left + gutter + (bin + 0.5) / bins * plot, up + top + (row + 0.5) / rows * body


@pytest.mark.parametrize("name", [FAULT, NOTHING_FINITE])
def test_the_first_screen_says_what_is_wrong(browser, runs, name):
    said = trainmon("diagnose", runs / name)
    page = browser.open(page_of(runs / name))
    shown = page.text("#verdict")
    first, *more = said.stdout.splitlines()
    assert first.removeprefix("first wrong: ") in shown
    assert more[0].strip() in shown
    verdict = json.loads(trainmon("diagnose", runs / name, "--json").stdout)["verdict"]
    for fact in (str(verdict["step"]), *map(str, verdict["ranks"]), *verdict["tensors"]):
        assert fact in page.text(".facts").splitlines()
    assert page.evaluate("document.querySelector('h1').getBoundingClientRect().bottom < 200")
    assert page.count("#verdict canvas, .blocks canvas") == 0
    (following,) = [line for line in said.stderr.splitlines() if line.startswith("next: ")]
    assert following.removeprefix("next: ") in page.text("#reproduce")
    silent(page)


def test_where_nothing_is_wrong_it_says_what_was_checked(browser, runs):
    page = browser.open(page_of(runs / SOUND))
    assert "Nothing certainly wrong" in page.text("#verdict")
    assert "steps 0 to 23" in page.text("#verdict")
    checked = json.loads(trainmon("diagnose", runs / SOUND, "--json").stdout)["checked"]
    for check, times in checked.items():
        assert f"{check} {times:,}" in page.text("#checked")
    assert "All ranks wrote a complete record." in page.text("#not_seen")
    silent(page)


# What a change of the weights on rank 1 left is told of rank 1 alone; copies of moments differ on either of two.
@pytest.mark.parametrize(
    "name, stage, of_the_other", [(FAULT, "weights", "green"), (FIRST_MOMENT, "moments", "amber")]
)
def test_the_strip_blames_one_stage_and_rank(browser, runs, name, stage, of_the_other):
    page = browser.open(page_of(runs / name))
    table = page.evaluate("""[...document.querySelectorAll('#strip tr')].map((row) =>
        [...row.children].map((cell) => cell.className.replace('state ', '') || cell.innerText))""")
    head, *ranks = table
    for rank, cells in enumerate(ranks):
        states = dict(zip(head, cells))
        assert states[stage] == ("red" if rank == 1 else of_the_other)
        assert states["loss"] == "grey"
        assert states["input"] == states["local gradients"] == "green"


def test_the_rows_of_the_verdict_are_shown_first(browser, runs):
    for name, kind in ((FAULT, "param_origin"), (MOMENTS, "exp_avg_sq")):
        page = browser.open(page_of(runs / name))
        assert kind in page.text("#history h2")
        silent(page)


def test_a_click_on_a_row_opens_its_line(browser, runs):
    page = browser.open(page_of(runs / FAULT))
    assert "2.weight" in page.text("#history h2")
    names = page.evaluate("tensorMap.rows.map((row) => row.label)")
    row = names.index("4.bias")
    page.click(*middle_of(page, TENSORS, row, len(names), 9, 24))
    assert "4.bias" in page.text("#history h2")
    assert "4.bias" in page.text("#maps")
    shown = page.text("#history table")
    assert shown.split()[:2] == ["Step", "9"]
    sql = (
        "SELECT rank, norm FROM stats WHERE kind = 'param_origin' AND name = '4.bias' AND step = 9"
    )
    for one in json.loads(trainmon("query", runs / FAULT, sql, "--json").stdout):
        assert f"{one['norm']:.4g}" in shown
    silent(page)


def test_no_zoom_loses_an_extreme(browser, long_run):
    page = browser.open(long_run)
    assert page.evaluate("tensorMap.plot") < STEPS
    for _ in range(2):
        for (step, line), color in ((NAN_AT, NAN_COLOR), (SPIKE_AT, FAR_COLOR)):
            found = pixels(page, "tensorMap", color)
            assert found, color
            for x, y in found:
                assert x * STEPS == pytest.approx(step, abs=3)
                assert int(y * LINES) == line
        page.evaluate("view.rank = 0; render.pictures(); paintNow()")
    # A range that is dragged over with the mouse, then the whole run again.
    left, up, width, height = page.box(TENSORS)
    x = lambda step: left + 230 + step / STEPS * (width - 238)  # noqa: E731
    page.mouse("mouseMoved", x(1180), up + 60)
    page.mouse("mousePressed", x(1180), up + 60, button="left", clickCount=1)
    page.mouse("mouseMoved", x(1230), up + 60, button="left")
    page.mouse("mouseReleased", x(1230), up + 60, button="left", clickCount=1)
    page.evaluate("paintNow()")
    begin, end = page.evaluate("[view.from, view.to]")
    assert 1170 < begin < 1185 and 1225 < end < 1240
    found = pixels(page, "tensorMap", NAN_COLOR)
    assert all(
        begin + x * (end - begin) == pytest.approx(NAN_AT[0] + 0.5, abs=0.6) for x, _ in found
    )
    assert len(found) > 50 and pixels(page, "tensorMap", FAR_COLOR) == []
    page.press("0")
    assert page.evaluate("[view.from, view.to]") == [0, STEPS]
    silent(page)


def test_a_line_keeps_its_extreme(browser, long_run):
    """More points than pixels: where the spike of the line is drawn, and nothing else so high."""
    page = browser.open(long_run)
    page.evaluate(f"""(() => {{
      view.tensor = data.rows.names.indexOf("model.layers.{SPIKE_AT[1]}.q_proj.weight");
      render.pictures(); paintNow();
    }})()""")
    high = """(() => {
      paintNow();
      const chart = charts.find((one) => one.note?.closest('#history'));
      const copy = document.createElement('canvas'), color = theme().lines[0], found = [];
      const { width } = chart.canvas, wanted = [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));
      [copy.width, copy.height] = [width, 60];
      const pen = copy.getContext('2d', { willReadFrequently: true });
      pen.drawImage(chart.canvas, 0, 0);
      const { data: pixels } = pen.getImageData(0, 0, width, 60);
      for (let at = 0; at < pixels.length; at += 4)
        if (wanted.every((v, i) => Math.abs(pixels[at + i] - v) < 24)) found.push(chart.placeOf(at / 4 % width));
      return found;
    })()"""
    page.evaluate("view.cursor = null")
    for begin, end in ((0, STEPS), (600, 700)):
        page.evaluate(f"show({begin}, {end - begin})")
        found = page.evaluate(high)
        assert found and np.abs(np.subtract(found, SPIKE_AT[0] + 0.5)).max() < (end - begin) / 100
    page.evaluate("show(700, 100)")
    page.evaluate("paintNow()")
    assert "logarithmic" not in page.text("#history h2")
    silent(page)


def test_the_cursor_is_as_thin_in_all_pictures(browser, tmp_path):
    page = browser.open(few_steps(tmp_path / "run", [1.0, 1.5] * 6))
    wide = """(() => {
      moveCursor(4); paintNow();
      const color = [1, 3, 5].map((i) => parseInt(theme().accent.slice(i, i + 2), 16));
      return charts.map((chart) => {
        const copy = document.createElement('canvas');
        [copy.width, copy.height] = [chart.canvas.width, chart.canvas.height];
        const pen = copy.getContext('2d', { willReadFrequently: true });
        pen.drawImage(chart.canvas, 0, 0);
        const { data: pixels } = pen.getImageData(chart.x(4) - 2, 12, chart.x(5) - chart.x(4) + 4, 1);
        let found = 0;
        for (let at = 0; at < pixels.length; at += 4)
          found += color.every((v, i) => Math.abs(pixels[at + i] - v) < 40);
        return [chart.constructor.name, found];
      });
    })()"""
    found = dict(page.evaluate(wide))
    assert found["LineChart"] == found["HeatMap"] == 1
    silent(page)


def test_at_most_twenty_charts_and_the_others_are_counted(browser, long_run):
    page = browser.open(long_run)
    assert page.evaluate("charts.length") == 20
    shown = page.evaluate(
        "[...document.querySelectorAll('figcaption')].map((one) => one.innerText)"
    )
    assert shown[0].startswith("loss") and len(shown) == 16
    assert "10 charts are left out" in page.text("#overview")  # of 25 scalars and one norm
    silent(page)


def test_search_and_keyboard(browser, long_run):
    page = browser.open(long_run)
    page.press("/")
    page.type("layers.2 proj")
    assert page.evaluate("tensorMap.rows.map((row) => row.label)") == [
        f"model.layers.{i}.q_proj.weight" for i in (2, *range(20, 30))
    ]
    assert f"11 of {LINES} tensors" in page.text("#found")
    page.evaluate("document.getElementById('search').value = ''")
    page.type("mdl12qpr")  # letters in order
    assert page.evaluate("tensorMap.rows.map((row) => row.label)") == [
        "model.layers.12.q_proj.weight"
    ]
    page.press("Escape")
    page.press("n")
    assert page.evaluate("[view.cursor, data.rows.tensors[view.tensor]]") == [
        NAN_AT[0], f"model.layers.{NAN_AT[1]}.q_proj.weight",
    ]  # fmt: skip
    page.press("n")
    assert page.evaluate("[view.cursor, data.rows.tensors[view.tensor]]") == [
        SPIKE_AT[0], f"model.layers.{SPIKE_AT[1]}.q_proj.weight",
    ]  # fmt: skip
    page.evaluate("tensorMap.canvas.focus()")
    for key in (
        "ArrowRight",
        "ArrowRight",
        "ArrowLeft",
        "ArrowDown",
        "ArrowDown",
        "ArrowUp",
        "Enter",
    ):
        page.evaluate("tensorMap.canvas.focus()")
        page.press(key)
    assert page.evaluate("view.cursor") == SPIKE_AT[0] + 1
    assert f"layers.{SPIKE_AT[1] + 1}." in page.text("#history h2")
    page.press("+")
    assert page.evaluate("view.to - view.from") == STEPS / 2
    page.press("-")
    assert page.evaluate("view.to - view.from") == STEPS
    page.press("l")
    assert page.evaluate("document.documentElement.lang") == "zh"
    silent(page)


@pytest.mark.parametrize("language", ["en-US", "zh-CN"])
def test_search_forgives_a_typing_error(browser, tmp_path, language):
    rank = WrittenRank(tmp_path / "run")
    names = [
        *(f"layers.{i}.{part}" for i in (0, 1) for part in ("attention.q_proj", "mlp.down_proj")),
        "intention", "near.attention.weigt", "near.attention.weight", "编码器.注意力机制权重.w",
    ]  # fmt: skip
    for name in names:
        rank.observe(np.ones(3, np.float32), "grad_reduced", name, 0)
    rank.end_step()
    rank.stop()
    page = browser.open(page_of(tmp_path / "run"), language=language)

    def found(search):
        page.evaluate("document.getElementById('search').value = ''")
        page.press("/")
        page.type(search)
        shown = page.evaluate("tensorMap.rows.map((row) => row.label)")
        assert str(len(shown)) in page.text("#found")
        page.press("Escape")
        return shown

    both = ["layers.0.attention.q_proj", "layers.1.attention.q_proj"]
    # A letter that lacks, is too many, another one, and two that changed places.
    for search in ("atention", "attenntion", "attemtion", "attnetion"):
        assert found(f"layers {search}") == found(f"{search} layers") == both, search
    assert found("atention 1") == both[1:]
    assert found("atention")[:2] == both and "intention" not in found("atention")
    # One error is nearer than two.
    assert found("atention weight") == ["near.attention.weight", "near.attention.weigt"]
    assert found("down_porj 0") == ["layers.0.mlp.down_proj"]
    assert found("注意力机械权重") == ["编码器.注意力机制权重.w"]
    assert found("zzzzzz") == []
    for odd in ("-", '"', "-a", "[(*", "\\", "a|b", "'s"):  # no exception
        found(odd)
    silent(page)


def test_the_worst_list_leads_to_the_place(browser, long_run):
    page = browser.open(long_run)
    rows = page.evaluate("[...document.querySelectorAll('#worst tr')].map((row) => row.innerText)")
    assert f"layers.{NAN_AT[1]}." in rows[1] and str(NAN_AT[0]) in rows[1]
    assert f"layers.{SPIKE_AT[1]}." in rows[2] and str(SPIKE_AT[0]) in rows[2]
    assert f"{LINES - 20} others are not listed" in page.text("#worst")
    box = page.box("#worst tr:nth-child(3) button")
    page.click(box[0] + 5, box[1] + 5)
    assert page.evaluate("view.cursor") == SPIKE_AT[0]
    assert f"layers.{SPIKE_AT[1]}." in page.text("#history h2")


def test_five_marks_are_five(browser, tmp_path):
    rank = WrittenRank(tmp_path / "run")
    late = rank.monitor.add_series("grad_reduced", "late")
    for step in range(12):
        for name, kind in (("nan", 0), ("inf", 0), ("absent", 0), ("gone", 1)):
            array = np.ones(3, np.float32)
            if step == 6:
                array[0] = {"nan": np.nan, "inf": np.inf}.get(name, 1)
            if step == 6 and name in ("absent", "gone"):
                continue
            rank.observe(array, ("grad_reduced", "param_origin")[kind], name, step)
        if step == 6:
            rank.monitor.add_late_row(late, "float32", [3], step, 0, 0)
        rank.end_step()
    rank.monitor.seal_late()
    rank.stop()
    page = browser.open(page_of(tmp_path / "run"))

    def told(kind, name):
        return page.evaluate(f"""(() => {{
          const kind = data.rows.kinds.get({json.dumps(kind)});
          const line = kind.lines.find((one) => data.rows.tensors[one.tensor] === {json.dumps(name)});
          return [cellText(line, 6), levelOf(extremesOf([cellsOf(line)], 6, 7)[0])];
        }})()""")

    said = [told("grad_reduced", name) for name in ("nan", "inf", "late", "absent")]
    said.append(told("param_origin", "gone"))
    texts, levels = zip(*said)
    assert texts == ("NaN, 1 NaN", "inf, 1 inf", "rows dropped", "absent", "not recorded")
    assert len(set(levels)) == 5
    swatches = page.evaluate("""[...document.querySelectorAll('#legend canvas')].map((one) =>
        String(one.getContext('2d').getImageData(0, 0, 28, 14).data))""")
    assert len(set(swatches)) == len(swatches) == 6
    silent(page)


def test_dark_and_chinese(browser, runs):
    path = page_of(runs / FAULT)
    light = browser.open(path)
    dark = browser.open(path, dark=True, language="zh-CN")
    background = "getComputedStyle(document.body).backgroundColor"
    assert light.evaluate(background) == "rgb(255, 255, 255)"
    assert dark.evaluate(background) == "rgb(20, 23, 27)"
    assert "第 15 步，权重，rank 1，2.weight" in dark.text("h1")
    assert "最先出错" in dark.text("#verdict") and "没有看到什么" in dark.text("#not_seen")
    plain = {"NaN", "Rank"}
    untranslated = dark.evaluate(
        "Object.keys(WORDS).filter((key) => WORDS[key][0] === WORDS[key][1])"
    )
    assert {dark.evaluate(f"WORDS.{key}[0]") for key in untranslated} <= plain | {"rank %1"}
    checks = dark.evaluate("Object.keys(CHECKS_ZH)")
    answer = json.loads(trainmon("diagnose", runs / FAULT, "--json").stdout)
    # Here every check is made, but for that of a logged norm.
    assert set(checks) == {*answer["checked"], "norm"}
    box = dark.box("#language")
    dark.click(box[0] + 5, box[1] + 5)
    assert "step 15, weights, rank 1, 2.weight" in dark.text("h1")
    silent(light)
    silent(dark)


def test_it_prints(browser, runs):
    page = browser.open(page_of(runs / FAULT), dark=True)
    printed = page.print()
    assert printed.startswith(b"%PDF") and len(printed) > 20_000
    assert page.evaluate("isPrinting") is False
    silent(page)


def test_names_are_no_markup(browser, tmp_path):
    rank = WrittenRank(tmp_path / "run")
    for step in range(12):
        for name in (MARKUP, ODD, "sound"):
            is_bad = step == 9 and name != "sound"
            rank.observe(
                np.full(3, np.nan if is_bad else 1, np.float32), "grad_reduced", name, step
            )
            rank.monitor.add_scalar(name, float(step))
        rank.end_step()
    rank.stop()
    for language in ("en-US", "zh-CN"):
        page = browser.open(page_of(tmp_path / "run"), language=language)
        assert MARKUP in page.text("#verdict") and ODD in page.text("#verdict")
        assert MARKUP in page.text("#worst") and MARKUP in page.text("#overview")
        assert page.count("script") == 4 and page.count("img, b") == 0
        assert not page._of("Page.javascriptDialogOpening")
        silent(page)


def test_ten_thousand_odd_names(browser, tmp_path):
    odd = random.Random(4)
    letters = "abcxyz._-/\\<>&\"'`${}()[];\n\t\0\u202e\u2028é漢😀%1"
    rank = WrittenRank(tmp_path / "run")
    for i in range(10_000):
        name = "".join(odd.choice(letters) for _ in range(odd.randrange(1, 60))) + str(i)
        rank.observe(np.ones(2, np.float32), "actv", name, 0)
    rank.end_step()
    rank.stop()
    page = browser.open(page_of(tmp_path / "run"))
    assert "of 10,000 tensors" in page.text("#found")
    page.press("/")
    page.type("漢 <")
    assert 0 < page.evaluate("tensorMap.rows.length") < 10_000
    silent(page)


@pytest.mark.parametrize("name", ["layers.1.weight", 'it\'s $HOME `id` "two" \\ words!'])
def test_each_picture_has_its_command(browser, tmp_path, name):
    rank = WrittenRank(tmp_path / "run")
    for step in range(12):
        rank.observe(np.full(3, step + 1, np.float32), "grad_reduced", name, step)
        rank.observe(np.ones(3, np.float32), "grad_reduced", "other", step)
        rank.monitor.add_scalar("loss", 0.5 + step)
        rank.end_step()
    rank.stop()
    page = browser.open(page_of(tmp_path / "run"))
    page.evaluate(f"view.tensor = data.rows.names.indexOf({json.dumps(name)}); render.pictures()")
    answers = {}
    for section in ("history", "maps", "overview"):
        command = page.text(f"#{section} code")
        assert command.startswith("trainmon query ")
        command = command.replace("trainmon", launch.command_line(), 1) + " --json"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        answers[section] = json.loads(done.stdout)
    norms = [one["norm"] for one in answers["history"]]
    np.testing.assert_allclose(norms, [np.sqrt(3) * (step + 1) for step in range(12)])
    assert {one["name"] for one in answers["maps"]} == {name, "other"} and len(
        answers["maps"]
    ) == 24
    assert [one["value"] for one in answers["overview"]] == [0.5 + step for step in range(12)]


def test_a_restart_is_told(browser, tmp_path):
    for start in (0, 5):
        rank = WrittenRank(tmp_path / "run")
        rank.monitor.set_start_step(0, start)
        for step in range(start, start + 8):
            rank.observe(np.ones(3, np.float32), "grad_reduced", "w", step - start)
            rank.end_step()
        rank.stop()
    page = browser.open(page_of(tmp_path / "run"))
    assert "Restart 1 began at step 5." in page.text("#changed")
    assert "2 restarts; they begin at steps 0, 5." in page.text("#overview")
    assert page.evaluate("data.restarts") == [5]
    silent(page)


def test_a_page_every_time(browser, tmp_path):
    log = written(tmp_path / "damaged", steps=200).directory
    (file,) = log.glob("**/*.tmlog")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    written(tmp_path / "empty", steps=0)
    written(tmp_path / "one_step", steps=1)
    written(tmp_path / "missing", world_size=4)
    written(tmp_path / "not_finite", array=np.full(3, np.nan, np.float32))
    written(tmp_path / "zeros", array=np.zeros(3, np.float32))
    scalars = WrittenRank(tmp_path / "scalars")
    for step in range(5):
        scalars.monitor.add_scalar("loss", np.nan if step == 3 else 1.0)
        scalars.end_step()
    scalars.stop()
    expected = {
        "damaged": "The record is not complete", "empty": "Nothing was recorded", "one_step": "Nothing certainly wrong",
        "missing": "The record is not complete", "not_finite": "step 0", "zeros": "Nothing certainly wrong", "scalars": "step 3",
    }  # fmt: skip
    for name, text in expected.items():
        page = browser.open(page_of(tmp_path / name))
        assert text in page.text("#verdict"), name
        silent(page)
    assert "ranks 1-3 of 4 are missing" in browser.open(tmp_path / "missing.html").text("#not_seen")
    assert "damaged:" in browser.open(tmp_path / "damaged.html").text("#not_seen")


def test_damaged_pictures_leave_the_first_screen(browser, runs):
    path = page_of(runs / FAULT)
    html = path.read_text(encoding="utf-8")
    begin = html.index('id="data">') + 400
    path.write_text(html[:begin] + "AAAA" + html[begin + 4 :], encoding="utf-8")
    page = browser.open(path)
    assert "2.weight" in page.text("#verdict")
    assert "The pictures cannot be shown" in page.text("#pictures")
    assert page.requested() == []


TICKS = "charts.find((one) => one.note?.closest('#history')).ticks()"


@pytest.mark.parametrize("values, is_log", [
    ([0.05] * 12, False), ([0.05, 0.050001] * 6, False), ([1e7, 1e7 + 8] * 6, False),
    ([1e-30, 1e30] * 6, True), ([1, 60] * 6, True), ([3, 4, 5] * 4, False), ([0, 1e-4] * 6, False),
])  # fmt: skip
def test_ticks_differ_and_a_logarithm_is_told(browser, tmp_path, values, is_log):
    page = browser.open(few_steps(tmp_path / "run", values))
    ticks = page.evaluate(TICKS)
    texts = [text for _, text in ticks]
    assert len(texts) >= 2 and len(set(texts)) == len(texts)
    step = np.diff([value for value, _ in ticks]).min()
    assert all(abs(float(text) - value) < step / 4 for value, text in ticks)
    page.evaluate("paintNow()")
    assert ("logarithmic scale" in page.text("#history h2")) == is_log
    silent(page)


def test_a_history_without_finite_values_has_no_ticks(browser, tmp_path):
    page = browser.open(few_steps(tmp_path / "run", [np.nan] * 12))
    page.evaluate("paintNow()")
    assert page.evaluate(TICKS) == []
    assert "no finite value" in page.text("#history h2")
    silent(page)


def test_a_band_is_named_where_there_is_one(browser, tmp_path):
    page = browser.open(few_steps(tmp_path / "run", [1.0, 2.0] * 6))
    assert "norm over steps" in page.text("#history") and "the band" not in page.text("#history")
    generator = np.random.default_rng(1)
    rank = WrittenRank(tmp_path / "long")
    for step in range(1200):
        for i in range(120):
            array = generator.standard_normal(2).astype(np.float32)
            rank.observe(array, "grad_reduced", f"w{i}", step)
        rank.end_step()
    rank.stop()
    page = browser.open(page_of(tmp_path / "long", "--max-size", "1"))
    assert page.evaluate("data.rows.width") > 1 and "the band" in page.text("#history")


def test_the_verdict_leads_the_unusual_lines(browser, tmp_path):
    """Its own history is wilder than the verdict's tensor at the step of the verdict."""
    generator = np.random.default_rng(3)
    rank = WrittenRank(tmp_path / "run")
    for step in range(40):
        for name in ("wild", "found", "later"):
            array = generator.random(3).astype(np.float32) + 1
            if (name, step) in (("wild", 20), ("found", 12)):
                array *= 1e6
            if name == "found" and step == 30:
                array[1] = np.inf
            if name == "later" and step == 33:
                array[1] = np.nan
            rank.observe(array, "grad_reduced", name, step)
        rank.end_step()
    rank.stop()
    page = browser.open(page_of(tmp_path / "run"))
    table = page.evaluate("""[...document.querySelectorAll('#worst tr')].slice(1).map((row) =>
        [...row.children].map((cell) => cell.innerText))""")
    assert [row[0] for row in table] == ["found", "later", "wild"]
    assert table[0][3:5] == ["30", "verdict, not finite"]
    assert "common" not in page.text("#worst")


def test_a_sound_run_says_what_is_ordinary(browser, runs):
    page = browser.open(page_of(runs / SOUND))
    assert "values up to about 20 are common" in page.text("#worst")
    scores = page.evaluate("worstLines().map((one) => one.line.score)")
    assert sum(score < 10 for score in scores) > 0.9 * len(scores)


@pytest.mark.parametrize("dark", [False, True])
def test_the_map_frames_the_verdict_and_is_not_red(browser, runs, dark):
    page = browser.open(page_of(runs / FAULT), dark=dark)
    page.evaluate("paintNow()")
    colors = page.evaluate("theme()")
    red = [int(colors["bad"][i : i + 2], 16) for i in (1, 3, 5)]
    for name in ("less", "more", "nan", "inf"):
        assert np.abs(np.subtract(colors[name], red)).max() > 40, name
    # Blue against orange, for those who do not see red and green apart.
    assert colors["less"][2] > colors["less"][0] and colors["more"][0] > colors["more"][2]
    ink = [int(colors["ink"][i : i + 2], 16) for i in (1, 3, 5)]

    def at(chart, dx, dy, row, rows):
        return page.evaluate(f"""(() => {{
          const map = {chart}, bin = binOfStep(15), scale = devicePixelRatio;
          const x = map.x(bin) + {dx} * (map.x(bin + 1) - map.x(bin));
          const y = map.y({row}) + {dy} * (map.y({row} + 1) - map.y({row}));
          return [...map.canvas.getContext('2d').getImageData(Math.round(x * scale), Math.round(y * scale), 1, 1).data].slice(0, 3);
        }})()""")

    names = page.evaluate("tensorMap.rows.map((row) => row.label)")
    for chart, row, count in (
        ("tensorMap", names.index("2.weight"), len(names)),
        ("rankMap", 1, 2),
    ):
        assert at(chart, 0.2, 0.5, row, count) == colors["more"]
        assert at(chart, 0, 0.5, row, count) == ink
    assert at("rankMap", 0, 0.5, 0, 2) != ink


def test_the_legend_shows_the_scale(browser, runs):
    page = browser.open(page_of(runs / FAULT))
    shades = """new Set(new Uint32Array(document.querySelector('#legend .bar').getContext('2d')
        .getImageData(0, 7, 300, 1).data.buffer)).size"""
    assert page.evaluate(shades) > 100
    labels = "[...document.querySelectorAll('.bar-key > span > span')].map((one) => one.innerText)"
    assert page.evaluate(labels) == ["a thousandth", "its median", "thousandfold"]
    page.evaluate("view.color = 'size'; render.pictures()")
    least, middle, most = map(float, page.evaluate(labels))
    assert most == pytest.approx(8.3e37, rel=0.1) and least < middle < most
