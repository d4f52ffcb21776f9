"""Other statistics than the norm, and their distribution over layers, in a real Chromium. Oracle: NumPy."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pages import page_of, silent

from written_run import WrittenRank

STEPS = 12
CANVAS = "#layers canvas"
ORACLES = {
    "norm": lambda array: np.sqrt(np.sum(array**2)),
    "mean": np.mean,
    "std": np.std,
    "absmax": lambda array: np.abs(array).max(),
    "zeros": lambda array: np.mean(array == 0),
}


@pytest.fixture(scope="module")
def layered(tmp_path_factory):
    """Five layers of two tensors and an embedding, on two ranks."""
    out = tmp_path_factory.mktemp("layers") / "run"
    generator = np.random.default_rng(3)
    arrays = {}
    names = ["embed.weight", *(f"model.layers.{i}.{part}" for i in range(5) for part in ("attn.weight", "mlp.bias"))]  # fmt: skip
    for number in range(2):
        rank = WrittenRank(out, number, 2)
        for step in range(STEPS):
            for i, name in enumerate(names):
                array = generator.standard_normal(40).astype(np.float32) * np.float32(1 + i)
                array[: i + step] = 0
                if (number, step, name) == (1, 7, "model.layers.3.mlp.bias"):
                    array[-1] = np.nan
                arrays[name, number, step] = array.astype(np.float64)
                rank.observe(array, "actv", name, step)
            rank.end_step()
        rank.stop()
    return page_of(out), arrays


@pytest.mark.parametrize("stat", ORACLES)
def test_every_statistic_is_that_of_numpy(browser, layered, stat):
    path, arrays = layered
    page = browser.open(path)
    page.evaluate(f"view.stat = {json.dumps(stat)}; view.tensor = 0; render.pictures()")
    shown = page.evaluate(f"""(() => {{
      const kind = data.rows.kinds.get('actv'), found = [];
      for (const line of kind.lines) for (let bin = 0; bin < {STEPS}; ++bin)
        found.push([data.rows.names[line.tensor], line.rank, bin, String(kind.cell(line, bin, view.stat).value)]);
      return found;
    }})()""")
    assert len(shown) == len(arrays)
    for name, rank, step, text in shown:
        expected = ORACLES[stat](arrays[name, rank, step])
        value = float(text)
        if np.isnan(expected):
            assert np.isnan(value) or stat == "absmax"
        else:
            scale = np.sqrt(np.mean(arrays[name, rank, step] ** 2))
            assert value == pytest.approx(expected, rel=1e-2, abs=1e-6 * scale if stat != "zeros" else 0.003)  # fmt: skip
    assert f", {stat} FROM stats" in page.text("#history code")
    silent(page)


def test_a_bar_is_the_distribution_of_a_layer(browser, layered):
    path, arrays = layered
    page = browser.open(path)
    page.evaluate("view.stat = 'norm'; view.cursor = 5; render.pictures()")
    rows = page.evaluate("layerChart.rows.map((row) => [row.layer, row.bars[0].values])")
    assert [layer for layer, _ in rows] == ["embed", *(f"model.layers.{i}" for i in range(5))]
    for layer, values in rows:
        expected = sorted(
            ORACLES["norm"](array)
            for (name, _, step), array in arrays.items()
            if step == 5 and name.startswith(f"{layer}.")
        )
        np.testing.assert_allclose(values, expected, rtol=1e-6)
    left, up, width, height = page.box(CANVAS)
    page.mouse("mouseMoved", left + 400, up + 6 + 1.5 / 6 * (height - 28))
    values = rows[1][1]
    tip = page.text("#tip")
    assert "model.layers.0" in tip and "2 tensors, 4 values" in tip
    assert f"median {np.median(values):.3g}" in tip
    # Another step, by the keyboard; a NaN is told and is no value.
    page.evaluate("tensorMap.canvas.focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    assert "at step 7" in page.text("#layers h2")
    bar = page.evaluate(
        "layerChart.rows.filter((row) => row.layer === 'model.layers.3').map((row) => [row.bars[0].values.length, layerChart.barText(row.bars[0])])"
    )
    assert bar[0][0] == 3 and "NaN" in bar[0][1]
    page.press("/")
    page.type("layers.2")
    assert page.evaluate("layerChart.rows.map((row) => row.layer)") == ["model.layers.2"]
    silent(page)


def test_the_map_is_coloured_by_the_statistic(browser, layered):
    path, _ = layered
    page = browser.open(path)
    page.evaluate("view.color = 'size'; view.stat = 'zeros'; render.pictures(); paintNow()")
    image = (
        "[...new Uint32Array(tensorMap.image.data.buffer)].reduce((a, v) => (a * 31 + v) >>> 0, 7)"
    )
    first = page.evaluate(image)
    page.evaluate("view.stat = 'absmax'; render.pictures(); paintNow()")
    assert page.evaluate(image) != first
    assert page.evaluate("document.querySelector('select[aria-label=Statistic]').value") == "absmax"
    silent(page)


PLACES = {
    "model.layers.10.attn.q.weight": ("model.layers.10", "model.layers.*.attn.q.weight", 10),
    "h.3.mlp": ("h.3", "h.*.mlp", 3),
    "2.weight": ("2", "*.weight", 2),
    "blocks.3.experts.7.w1": ("blocks.3", "blocks.*.experts.7.w1", 3),
    "blocks.3.experts.8.w1": ("blocks.3", "blocks.*.experts.8.w1", 3),
    "blocks.10.experts.7.w1": ("blocks.10", "blocks.*.experts.7.w1", 10),
    "module.blocks._checkpoint_wrapped_module.4.experts.7._orig_mod.w1": ("blocks.4", "blocks.*.experts.7.w1", 4),
    "embed.weight": ("embed", None, None),
    "w": ("w", None, None),
    "": ("(root)", None, None),
    "fc2.weight": ("fc2", None, None),
    "layers.12345678901.w": ("layers.12345678901", None, None),
    "<b>.1.w": ("<b>.1", "<b>.*.w", 1),
}  # fmt: skip


def choose(page, label, value):
    page.evaluate(f"""(() => {{
      const menu = document.querySelector('select[aria-label={label}]');
      menu.value = {json.dumps(value)};
      menu.dispatchEvent(new Event('change'));
    }})()""")


def menu_of(page, label):
    return page.evaluate(
        f"[...document.querySelectorAll('select[aria-label={label}] option')].map((one) => one.value)"
    )


@pytest.fixture(scope="module")
def odd_names(tmp_path_factory):
    rank = WrittenRank(tmp_path_factory.mktemp("names") / "run")
    for step in range(4):
        for i, name in enumerate(PLACES):
            rank.observe(np.full(3, 1 + i, np.float32), "grad_reduced", name, step)
        rank.observe(np.full(3, 1, np.float32), "actv", "h.3", step, element="output")
        rank.observe(np.full(3, 1, np.float32), "actv", "h.4", step, element="output")
        rank.end_step()
    rank.stop()
    return page_of(rank.directory.parents[1])


def test_a_name_has_a_layer_and_a_part(browser, odd_names):
    page = browser.open(odd_names)
    found = page.evaluate(
        "data.rows.names.map((name, i) => [name, data.rows.layers[i], data.rows.parts[i], data.rows.depths[i]])"
    )
    places = {
        name: tuple(place)
        for name, *place in found
        if not name.startswith("h.") or name == "h.3.mlp"
    }
    assert places == PLACES
    # A part in the menu is one that several layers have.
    assert menu_of(page, "Rows") == ["", "layer", "blocks.*.experts.7.w1"]
    choose(page, "Kind", "actv")
    assert menu_of(page, "Rows") == ["", "layer", "h.* output"]
    choose(page, "Rows", "h.* output")
    choose(page, "Kind", "grad_reduced")  # which has no such part
    assert page.evaluate("view.group") == ""
    choose(page, "Rows", "blocks.*.experts.7.w1")
    rows = page.evaluate("tensorMap.rows.map((row) => [row.label, row.tensors.length])")
    assert rows == [["layer 3", 1], ["layer 4", 1], ["layer 10", 1]]
    assert "3 of 13 tensors" in page.text("#found")
    silent(page)


def test_one_part_over_all_layers(browser, layered):
    path, arrays = layered
    page = browser.open(path)
    part = "model.layers.*.attn.weight"
    assert menu_of(page, "Rows") == ["", "layer", part, "model.layers.*.mlp.bias"]
    choose(page, "Rows", part)
    page.evaluate("moveCursor(5); render.atCursor()")
    assert page.evaluate("tensorMap.rows.map((row) => row.label)") == [
        f"layer {i}" for i in range(5)
    ]
    assert f"Layer x step: {part}" in page.text("#maps")
    assert f"at step 5: actv {part}, norm" in page.text("#layers h2")
    assert "layer numbers from left to right" in page.text("#layers")
    rows = page.evaluate("layerChart.rows.map((row) => row.bars[0].values)")
    for i, values in enumerate(rows):
        expected = sorted(
            ORACLES["norm"](arrays[f"model.layers.{i}.attn.weight", rank, 5]) for rank in (0, 1)
        )
        np.testing.assert_allclose(values, expected, rtol=1e-6)
    left, up, width, height = page.box(CANVAS)
    page.mouse("mouseMoved", left + 230 + (width - 238) * 3.5 / 5, up + 100)
    assert page.text("#tip").startswith("layer 3") and "1 tensor, 2 values" in page.text("#tip")
    # A mark stands above the number of its layer.
    drawn = f"""(() => {{
      paintNow();
      const canvas = document.querySelector('{CANVAS}'), copy = document.createElement('canvas');
      [copy.width, copy.height] = [canvas.width, canvas.height];
      const pen = copy.getContext('2d', {{ willReadFrequently: true }});
      pen.drawImage(canvas, 0, 0);
      const [scale, color] = [canvas.width / canvas.clientWidth, theme().nan];
      return [0, 1, 2, 3, 4].map((row) => {{
        const [x, each] = [layerChart.middle(row) * scale, layerChart.each * scale * 0.4];
        const pixels = pen.getImageData(x - each, 0, 2 * each, 12 * scale).data;
        for (let at = 0; at < pixels.length; at += 4) if (color.every((v, i) => pixels[at + i] === v)) return true;
        return false;
      }});
    }})()"""
    assert page.evaluate(drawn) == [False] * 5
    choose(page, "Rows", "model.layers.*.mlp.bias")
    page.evaluate("moveCursor(7); render.atCursor()")
    assert page.evaluate(drawn) == [i == 3 for i in range(5)]  # its NaN
    # The order of the map is another one, that of the layers stays.
    choose(page, "Order", "unusual")
    assert page.evaluate("tensorMap.rows[0].label") == "layer 3"
    assert page.evaluate("layerChart.rows.map((row) => row.layer)") == [
        f"layer {i}" for i in range(5)
    ]
    page.evaluate("switchLanguage()")
    assert "层 x 步" in page.text("#maps") and "第 3 层" in page.evaluate("tensorMap.rows[0].label")
    silent(page)


def test_the_map_by_layers(browser, layered):
    page = browser.open(layered[0])
    choose(page, "Rows", "layer")
    rows = page.evaluate(
        "tensorMap.rows.map((row) => [row.label, row.tensors.length, row.lines.length])"
    )
    assert rows == [["embed", 1, 2], *([f"model.layers.{i}", 2, 4] for i in range(5))]
    # A row has the extreme of its tensors: the NaN of one of them.
    assert page.evaluate(
        "tensorMap.rows.map((row) => row.seen.some((line) => line.kind.cell(line, 7).nans > 0))"
    ) == [False, False, False, False, True, False]
    page.evaluate("tensorMap.canvas.focus(); view.tensor = 0")
    for _ in range(4):
        page.press("ArrowDown")
    assert page.evaluate("data.rows.names[view.tensor]") == "model.layers.3.mlp.bias"
    page.press("Enter")
    assert "model.layers.3.mlp.bias" in page.text("#history h2")
    page.evaluate("goToNextWorst()")
    assert page.evaluate("view.group") == ""
    silent(page)
