"""`trainmon.report` in a notebook: executed by a kernel, exported by nbconvert, seen in Chromium."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from pages import FAULT, SOUND

CODE = "import trainmon\npage = trainmon.report({run!r}, {other!r})\nprint(page)"


@pytest.fixture(scope="module")
def exported(runs, tmp_path_factory):
    notebook = nbformat.v4.new_notebook()
    code = CODE.format(run=str(runs / SOUND), other=str(runs / FAULT))
    notebook.cells = [nbformat.v4.new_code_cell(code), nbformat.v4.new_code_cell("page")]
    NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
    # The other templates load programs of others from the network.
    body, _ = HTMLExporter(template_name="basic").from_notebook_node(notebook)
    path = tmp_path_factory.mktemp("notebook") / "notebook.html"
    path.write_text(f"<!doctype html><meta charset='utf-8'><body data-ready='yes'>{body}")
    return notebook, path


def test_the_cell_prints_what_the_page_begins_with(exported):
    notebook, _ = exported
    printed = notebook.cells[0].outputs[0].text.splitlines()
    assert printed[0].startswith("first difference: step 15")
    assert printed[2:] == [
        "A: nothing certainly wrong in 3,120 rows",
        "B: first wrong: step 15, weights, rank 1, 2.weight",
    ]
    shown = notebook.cells[1].outputs[0].data
    assert shown["text/plain"].startswith("<trainmon report: first difference: step 15")
    assert shown["text/html"].startswith('<iframe sandbox="allow-scripts" ')


def test_the_frame_draws_and_reaches_nothing(browser, exported):
    page = browser.open(exported[1], frames=True)
    frame = page.frame()
    frame.wait("document.body.dataset.ready === 'yes'")
    frame.evaluate("paintNow()")
    assert "step 15" in frame.text("#difference h1")
    assert frame.evaluate("charts.length") > 3
    drawn = """[...document.querySelectorAll('canvas:not(.swatch)')].map((one) => {
        const { data } = one.getContext('2d').getImageData(0, 0, one.width, one.height);
        return new Set(new Uint32Array(data.buffer)).size;
    })"""
    assert min(frame.evaluate(drawn)) > 3  # colours
    reach = """(() => { try { return String(%s); } catch (error) { return error.name; } })()"""
    for what in ("parent.document.body", "top.location.href", "localStorage.length", "document.cookie"):  # fmt: skip
        assert frame.evaluate(reach % what) == "SecurityError", what
    assert frame.evaluate("origin") == "null"
    # Nor may it go elsewhere in the parent's place.
    assert page.count("iframe[sandbox='allow-scripts']") == 1
    for one in (page, frame):
        assert one.said() == [] and one.requested() == []
