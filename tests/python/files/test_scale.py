"""The SQL of docs/scale.md in DuckDB. In Spark and Ray Data, too: tests/scale."""

from __future__ import annotations

import pytest

import scale_case
import trainmon.parquet


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scale")
    scale_case.write_run(folder / "run")
    trainmon.parquet.write_dataset(str(folder / "run"), folder / "set")

    def ask(query):
        names = {"DATASET": str(folder / "set"), "QUERY": scale_case.blocks(query)[0]}
        exec(scale_case.setup("duckdb"), names)
        return names["answer"]

    return ask, scale_case.expected(folder / "run")


@pytest.mark.parametrize("query", scale_case.NAMES)
def test_duckdb(answers, query):
    ask, expected = answers
    scale_case.assert_same(ask(query), expected[query])


def test_every_query_of_the_document_is_run():
    import re

    headings = re.findall(r"^## (\w+): ", scale_case.DOCUMENT.read_text(), re.M)
    assert tuple(headings) == scale_case.NAMES
