"""Attention, routers, spectra and histograms on the page. Oracle: NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from pages import page_of, silent, written

from written_run import WrittenRank

STEPS, HEADS = 12, 5


@pytest.fixture(scope="module")
def featured(tmp_path_factory):
    out = tmp_path_factory.mktemp("features") / "run"
    generator = np.random.default_rng(9)
    rank = WrittenRank(out)
    series = [rank.monitor.add_series("update_ratio", "w", element=element, dtype="float32") for element in ("update", "ratio")]  # fmt: skip
    entropies, updates = {}, {}
    for step in range(STEPS):
        for head in range(HEADS):
            value = generator.standard_normal(1).astype(np.float32)
            if (step, head) == (4, 2):
                value[:] = np.nan
            entropies[step, head] = float(value[0])
            rank.observe(value, "attn_entropy", f"core.{head}", step)
        rank.observe(np.ones(4, np.float32), "grad_reduced", "w", step)
        first = generator.standard_normal(300).astype(np.float32) * np.float32(0.3)
        second = generator.random(300).astype(np.float32)
        rank.monitor.add_adam_histograms(*series, first, second, step + 1.0, 0.9, 0.999, 1e-8)
        corrected = first.astype(np.float64) / (1 - 0.9 ** (step + 1))
        updates[step] = corrected / (np.sqrt(second / (1 - 0.999 ** (step + 1))) + 1e-8)
        rank.end_step()
    rank.stop()
    return page_of(out), entropies, updates


def test_a_kind_shows_least_median_and_largest(browser, featured):
    path, entropies, _ = featured
    page = browser.open(path)
    assert page.evaluate(
        "[...document.querySelectorAll('#features figcaption')].map((one) => one.innerText)"
    ) == [f"attn_entropy median of {HEADS} lines"]
    points = page.evaluate("""(() => { const p = spreadOf(data.rows.kinds.get('attn_entropy'), 0);
        return [p.low, p.value, p.high, p.marks]; })()""")
    for step in range(STEPS):
        values = np.array([entropies[step, head] for head in range(HEADS)])
        values = values[np.isfinite(values)]
        expected = values.min(), np.median(values), values.max()
        assert [column[step] for column in points[:3]] == pytest.approx(expected, rel=1e-6)
        assert bool(points[3][step] & 2) == (step == 4)
    box = page.box("#features button")
    page.click(box[0] + 5, box[1] + 5)
    assert page.evaluate("[view.kind, view.stat]") == ["attn_entropy", "mean"]
    silent(page)


def test_histograms_are_those_of_the_updates(browser, featured):
    path, _, updates = featured
    page = browser.open(path)
    lines = page.evaluate("data.histograms.lines.map((line) => [line.label, line.low, line.high, line.bins])")  # fmt: skip
    assert lines == [["w update", -1, 1, 30], ["w ratio", -1, 1, 30]]
    shares = page.evaluate("""(() => { const line = data.histograms.lines[0];
        return data.histograms.steps.map((_, i) => [...line.bytes.subarray(i * line.width, (i + 1) * line.width)].map(shareOfByte)); })()""")
    for step, (below, above, nans, *bins) in enumerate(shares):
        counts, _ = np.histogram(updates[step], bins=30, range=(-1, 1))
        # One byte is the square root of a share, rounded up; an element at an edge may be next to it.
        np.testing.assert_allclose(np.sqrt(bins), np.sqrt(counts / 300), atol=0.06)
        assert np.sqrt(below) == pytest.approx(np.sqrt(np.mean(updates[step] < -1)), abs=0.02)
        assert np.sqrt(above) == pytest.approx(np.sqrt(np.mean(updates[step] > 1)), abs=0.02)
        assert nans == 0 and [b > 0 for b in bins].count(True) >= np.count_nonzero(counts) - 2
    page.evaluate("paintNow()")
    left, up, width, height = page.box("#histograms canvas")
    page.mouse("mouseMoved", left + 230 + 3.5 / STEPS * (width - 238), up + height / 2 - 6)
    assert "Step 3" in page.text("#tip") and "0 .. 0.0667: " in page.text("#tip")
    assert page.count("#histograms canvas") == 2
    silent(page)


def test_a_run_without_them_has_no_section(browser, tmp_path):
    written(tmp_path / "run")
    page = browser.open(page_of(tmp_path / "run"))
    assert page.count("#features, #histograms") == 0
    silent(page)
