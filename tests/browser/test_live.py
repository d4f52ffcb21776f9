"""The page of `trainmon serve` in a real Chromium, while the run is written, deleted and restarted."""

from __future__ import annotations

import json
import shutil
import signal

import numpy as np
import pytest

from served import serving, written
from test_report import MARKUP
from written_run import WrittenRank

NAMES = ("first", MARKUP, "third")


class Live:
    """A run that is written, and its page."""

    def __init__(self, browser, server, path="/", **options):
        server.page(path)  # else a page that loads itself again
        self.server = server
        self.address = server.address.rstrip("/") + path
        self.page = browser.open(self.address, **options)

    def shows(self, step):
        """Waits until the pictures end there."""
        self.page.wait(f"data.axis.length > 0 && data.axis[data.axis.length - 1][1] === {step}")

    def silent(self):
        assert self.page.said() == []
        assert {url.removeprefix(self.address) for url in self.page.requested()} <= {"", "state"}


def add_steps(rank, first, last, names=NAMES, value=1.0):
    for step in range(first, last):
        for name in names:
            rank.observe(np.full(3, value, np.float32), "grad_reduced", name, step)
        rank.monitor.add_scalar("loss", 1.0 / (step + 1))
        rank.end_step()


def view(page):
    return page.evaluate("""({tensor: view.tensor === null ? null : data.rows.names[view.tensor],
        step: view.cursor === null ? null : data.axis[view.cursor][0],
        steps: [stepOfPlace(view.from), stepOfPlace(view.to)], kind: view.kind, search: view.search})""")


@pytest.fixture
def rank(tmp_path):
    one = WrittenRank(tmp_path / "run")
    yield one
    one.stop()


def test_the_page_follows_and_keeps_the_place(browser, rank, tmp_path):
    add_steps(rank, 0, 20)
    with serving(tmp_path / "run") as server:
        live = Live(browser, server)
        page = live.page
        live.shows(19)
        page.wait("document.querySelector('#live').innerText.includes('Newest step 19')")
        assert "Live." in page.text("#live") and "loss 0.05" in page.text("#live")
        page.evaluate("""(() => { view.tensor = data.rows.names.indexOf("third"); moveCursor(binOfStep(7));
            show(4, 10); render.pictures(); })()""")
        page.press("/")
        page.type("thi")
        page.evaluate("document.querySelector('#search').setSelectionRange(1, 2)")
        before = view(page)
        assert before == {
            "tensor": "third", "step": 7, "steps": [4, 14], "kind": "grad_reduced", "search": "thi",
        }  # fmt: skip
        # A tensor that sorts before the others: numbers of tensors change.
        add_steps(rank, 20, 30, ("a new one", *NAMES))
        live.shows(29)
        assert view(page) == before
        assert page.evaluate("""[document.activeElement.id, document.activeElement.selectionStart,
            document.activeElement.selectionEnd, document.activeElement.value]""") == [
            "search",
            1,
            2,
            "thi",
        ]
        assert "third" in page.text("#history h2")
        assert "a new one" in page.evaluate("data.rows.names")
        assert page.evaluate(
            "[...document.querySelectorAll('canvas')].every((one) => one.isConnected)"
        )
        assert page.evaluate("charts.length") == page.count("canvas:not(.swatch)")
        live.silent()


def test_the_whole_run_stays_whole(browser, rank, tmp_path):
    add_steps(rank, 0, 5)
    with serving(tmp_path / "run") as server:
        live = Live(browser, server)
        for first, last in ((5, 9), (9, 30)):
            add_steps(rank, first, last)
            live.shows(last - 1)
            assert live.page.evaluate("[view.from, view.to]") == [0, last]
            assert live.page.evaluate("view.cursor") is None
        live.silent()


def test_a_fault_appears_in_the_verdict(browser, rank, tmp_path):
    add_steps(rank, 0, 10)
    with serving(tmp_path / "run") as server:
        live = Live(browser, server)
        assert "Nothing certainly wrong" in live.page.text("#verdict")
        add_steps(rank, 10, 11, value=np.nan)
        add_steps(rank, 11, 14)
        live.page.wait("document.querySelector('#verdict.bad') !== null")
        assert "step 10" in live.page.text("h1")
        assert live.page.evaluate("sides[0].verdict.step") == 10
        assert live.page.evaluate("markedPlaces().length") == 1
        live.silent()


def test_a_picture_in_use_is_not_taken_away(browser, rank, tmp_path):
    add_steps(rank, 0, 20)
    with serving(tmp_path / "run") as server:
        live = Live(browser, server)
        page = live.page
        page.evaluate("document.querySelector('#controls select').focus()")
        page.evaluate("window.kept = document.activeElement")
        add_steps(rank, 20, 25)
        page.wait("document.querySelector('#live').innerText.includes('There are newer pictures')")
        assert page.evaluate("kept === document.activeElement && kept.isConnected")
        assert page.evaluate("data.axis.length") == 20
        page.wait(
            "document.querySelector('#live').innerText.includes('The pictures end at step 19')"
        )
        page.evaluate("document.activeElement.blur()")
        live.shows(24)
        page.wait("!document.querySelector('#live').innerText.includes('newer pictures')")
        live.silent()


def test_names_are_no_markup(browser, rank, tmp_path):
    add_steps(rank, 0, 3)
    with serving(tmp_path / "run") as server:
        live = Live(browser, server)
        names = (
            MARKUP,
            '</script><img src=x onerror=alert(2)>"&@DATA@',
            "</SCRIPT >",
            "'nonce-" + "0" * 32 + "'",
        )
        rank.monitor.add_scalar("<b>bold</b>", 2.0)
        add_steps(rank, 3, 12, (*NAMES, *names))
        live.shows(11)
        for name in names:
            assert name in live.page.evaluate("data.rows.names")
        assert live.page.count("script") == 4 and live.page.count("img, b") == 0
        assert not live.page._of("Page.javascriptDialogOpening")
        assert MARKUP in live.page.text("#worst")
        live.silent()


def test_a_run_that_ends(browser, rank, tmp_path):
    add_steps(rank, 0, 6)
    with serving(tmp_path / "run") as server:
        live = Live(browser, server)
        rank.stop()
        live.page.wait(
            "document.querySelector('#live').innerText.includes('The run has ended. Nothing has come since')"
        )
        live.page.press("l")
        live.page.wait("document.querySelector('#live').innerText.includes('运行已结束')")
        live.silent()


def test_a_run_that_is_deleted_and_written_anew(browser, tmp_path):
    run = written(tmp_path / "run", 30)
    with serving(run) as server:
        live = Live(browser, server)
        live.shows(29)
        shutil.rmtree(run)
        live.page.wait("document.querySelector('#live').innerText.includes('not there any more')")
        assert live.page.evaluate("data.axis.length") == 30
        assert "Nothing certainly wrong" in live.page.text("#verdict")
        written(run, 7, name="other")
        live.shows(6)
        assert live.page.evaluate("data.rows.names") == ["other"]
        assert "other" in live.page.text("#history h2")
        live.page.wait("document.querySelector('#live').innerText.includes('The run has ended')")
        live.silent()


def test_a_run_that_restarts(browser, tmp_path):
    run = written(tmp_path / "run", 10)
    with serving(run) as server:
        live = Live(browser, server)
        live.page.wait("document.querySelector('#live').innerText.includes('The run has ended')")
        again = WrittenRank(run)
        again.monitor.set_start_step(0, 6)
        for step in range(8):
            again.observe(np.ones(3, np.float32), "grad_reduced", "w", step)
            again.end_step()
        live.shows(13)
        live.page.wait("document.querySelector('#live').innerText.includes('Live.')")
        assert live.page.evaluate("data.restarts") == [6]
        again.stop()
        live.silent()


def test_a_run_that_begins_while_its_page_is_open(browser, rank, tmp_path):
    with serving(tmp_path / "run") as server:
        live = Live(browser, server)
        assert "Nothing was recorded" in live.page.text("#verdict")
        live.page.wait(
            "document.querySelector('#live').innerText.includes('No rows were written yet')"
        )
        add_steps(rank, 0, 4)
        live.shows(3)
        assert live.page.evaluate("tensorMap.rows.length") == 3
        live.silent()


def test_the_list_leads_to_a_run(browser, tmp_path):
    name = MARKUP.replace("/", ":")
    written(tmp_path / name, 5)
    written(tmp_path / "b", 5)
    with serving(tmp_path) as server:
        server.page(f"/{name.replace('<', '%3C').replace('>', '%3E')}/")
        page = browser.open(server.address, ready="document.readyState === 'complete'")
        page.wait("document.querySelectorAll('td a').length === 2")
        assert name in page.evaluate(
            "[...document.querySelectorAll('td a')].map((one) => one.innerText)"
        )
        assert page.count("script") == 0
        written(tmp_path / "c", 5)
        page.wait("document.querySelectorAll('td a').length === 3")  # it loads itself again
        page.evaluate(
            f"[...document.querySelectorAll('a')].find((one) => one.innerText === {json.dumps(name)}).click()"
        )
        page.wait("document.body && document.body.dataset.ready === 'yes'")
        assert name in page.text("header")
        assert page.said() == []
        assert {url.removeprefix(server.address).split("/")[-1] for url in page.requested()} <= {
            "",
            "state",
        }


def test_the_server_goes_and_the_page_stays(browser, tmp_path):
    with serving(written(tmp_path / "run", 8)) as server:
        live = Live(browser, server)
        assert server.end(signal.SIGINT)[0] == 0
        live.page.wait(
            "document.querySelector('#live').innerText.includes('has not answered since')"
        )
        assert live.page.evaluate("data.axis.length") == 8
        assert live.page.count("#verdict") == 1


def test_a_page_that_is_not_seen_asks_nothing(browser, rank, tmp_path):
    add_steps(rank, 0, 3)
    with serving(tmp_path / "run") as server:
        live = Live(browser, server)
        live.page.evaluate(
            "Object.defineProperty(document, 'hidden', { get: () => true, configurable: true })"
        )
        live.page.evaluate("new Promise((done) => setTimeout(done, 1500))")
        asked = len(live.page.requested())
        live.page.evaluate("new Promise((done) => setTimeout(done, 3000))")
        assert len(live.page.requested()) == asked
        live.page.evaluate("delete document.hidden")
        add_steps(rank, 3, 6)
        live.shows(5)
