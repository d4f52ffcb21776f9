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


def test_a_name_is_its_layer(browser, layered):
    page = browser.open(layered[0])
    names = {
        "model.layers.10.attn.q.weight": "model.layers.10", "h.3.mlp": "h.3", "2.weight": "2",
        "encoder.layers.1.blocks.2.w": "encoder.layers.1", "embed.weight": "embed", "w": "w", "fc2.weight": "fc2",
    }  # fmt: skip
    assert page.evaluate(f"{json.dumps(list(names))}.map(layerOf)") == list(names.values())
