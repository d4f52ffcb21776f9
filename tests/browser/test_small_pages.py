"""The list of runs and the page that waits, in English and Chinese, in a real Chromium."""

from __future__ import annotations

import shutil

import pytest

from served import serving, written

COMPLETE = "document.readyState === 'complete'"
HEADS = {
    "en": ["Run", "Ranks", "Last rows written", "State"],
    "zh": ["运行", "rank 数", "最近写入", "状态"],
}


def heads(page):
    return page.evaluate("[...document.querySelectorAll('th')].map((one) => one.innerText)")


def language(page):
    return page.evaluate("document.documentElement.lang")


def loaded(page, where):
    page.wait(f"location.search === '{where}' && {COMPLETE} && document.body !== null")


@pytest.mark.parametrize(("speaks", "shown"), [("en-US", "en"), ("zh-CN", "zh"), ("de-DE", "en")])
def test_the_list_speaks_the_language_of_the_browser(browser, tmp_path, speaks, shown):
    written(tmp_path / "one", 5)
    with serving(tmp_path) as server:
        page = browser.open(server.address, ready=COMPLETE, language=speaks)
        page.wait("document.querySelectorAll('td a').length === 1")
        assert (heads(page), language(page)) == (HEADS[shown], shown)
        ended = {"en": "has ended", "zh": "已结束"}[shown]
        assert page.text("td:last-child") == ended
        assert page.count("script") == 0 and page.said() == []


def test_the_list_keeps_the_language_that_was_chosen(browser, tmp_path):
    written(tmp_path / "one", 5)
    with serving(tmp_path) as server:
        server.page("/one/")
        page = browser.open(server.address, ready=COMPLETE, language="en-US")
        page.wait("document.querySelectorAll('td a').length === 1")
        assert page.text("#language") == "中文"
        page.evaluate("document.querySelector('#language').click()")
        loaded(page, "?zh")
        assert (heads(page), language(page)) == (HEADS["zh"], "zh")
        written(tmp_path / "two", 5)
        page.wait("document.querySelectorAll('td a').length === 2")  # it loads itself again
        assert heads(page) == HEADS["zh"] and page.text("#language") == "English"
        # The page of a run goes on in this language, and its button changes it.
        page.evaluate("document.querySelector('td a[href^=one]').click()")
        page.wait("document.body && document.body.dataset.ready === 'yes'")
        assert language(page) == "zh" and "没有确定的错误" in page.text("#verdict")
        page.evaluate("document.querySelector('button#language').click()")
        assert language(page) == "en"
        page.wait("document.querySelector('#live').innerText !== ''")
        assert page.said() == []


def test_an_empty_directory_waits_in_chinese(browser, tmp_path):
    with serving(tmp_path) as server:
        page = browser.open(server.address, ready=COMPLETE, language="zh-CN")
        assert "还没有运行" in page.text("body")
        page.evaluate("document.querySelector('#language').click()")
        loaded(page, "?en")
        assert "There is no run yet" in page.text("body")


def test_a_page_that_cannot_be_made_says_so_in_chinese(browser, tmp_path):
    written(tmp_path / "run", 5)
    with serving(tmp_path / "run") as server:
        shutil.rmtree(tmp_path / "run" / "rank_00000")
        page = browser.open(server.address, ready=COMPLETE, language="zh-CN")
        page.wait("document.body && document.body.innerText.includes('无法生成页面：')")
        assert "rank_" in page.text("p")
        page.evaluate("document.querySelector('#language').click()")
        loaded(page, "?en")
        page.wait("document.body && document.body.innerText.includes('could not be made: ')")
