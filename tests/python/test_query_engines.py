"""trainmon.query in both engines: the same answers, and DuckDB held to reading and computing."""

from __future__ import annotations

import math
import sys
import time
from decimal import Decimal

import numpy as np
import pytest

import trainmon
from trainmon import querying
from written_run import WrittenRank

QUERIES = [
    "SELECT step, kind, count(*), max(norm), sum(nans) FROM stats GROUP BY step, kind",
    "SELECT name, step, norm FROM stats WHERE kind = 'actv' AND step BETWEEN 2 AND 5",
    "SELECT rank, seq FROM rows WHERE rank = 1 AND step > 3 AND step <= 6",
    "SELECT rank, seq FROM stats s WHERE 1 = s.rank AND 3 < s.step AND 7 >= s.step",
    "SELECT count(*) FROM stats WHERE step < 4.5 OR rank = 0",
    "SELECT count(*) FROM stats WHERE kind = 'no such kind' OR kind = 'grads'",
    "SELECT count(*) FROM stats WHERE kind = 'no such kind'",
    "SELECT count(*) FROM stats WHERE kind = 'grads'",
    "SELECT count(*) FROM stats WHERE rank = 7",
    "SELECT count(*) FROM stats WHERE NOT (rank = 1)",
    "SELECT count(*) FROM stats WHERE kind = 'grad_reduced' OR (kind = 'actv' AND step < 4)",
    "SELECT a.name, a.step, b.norm FROM stats a JOIN stats b"
    " ON b.step = a.step AND b.rank = a.rank AND b.seq = a.seq WHERE a.step = 1",
    "WITH stats AS (SELECT * FROM rows WHERE step = 2) SELECT count(*) FROM stats WHERE step = 3",
    "WITH w AS (SELECT step, min(min) AS low FROM stats GROUP BY step) SELECT * FROM w",
    "SELECT * FROM stats ORDER BY rank, seq LIMIT 40",
    "SELECT name, norm, mean, max, zeros, infs, nans, shape FROM stats WHERE step = 7",
    "SELECT typeof(step) IN ('integer', 'BIGINT'), step FROM stats WHERE rank = 0",
    "SELECT rank, step, name, value FROM logged",
    "SELECT s.step, s.norm, l.value FROM stats s JOIN logged l USING (rank, step)"
    " WHERE s.name = 'a' AND l.name = 'loss'",
    "SELECT rank, step, name, value FROM declared WHERE type = 'number'",
    "SELECT rank, rule, kind, name, step, count FROM alerts",
    "SELECT count(*) FROM gaps",
    "SELECT 9223372036854775807, -9223372036854775808, 'ümlaut', NULL, 1e308 * 10",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two ranks; NaN, infinities, names of many sorts, scalars beyond 2^53."""
    out = tmp_path_factory.mktemp("engines") / "run"
    rng = np.random.default_rng(3)
    for number in range(2):
        rank = WrittenRank(out, number, 2)
        for window in range(12):
            for name in ["a", 'b"c', "ümlaut, x"]:
                rank.observe(rng.normal(size=5), "actv", name, window, element="output")
            bad = np.array([np.nan, np.inf, 1.0]) if window == 7 else rng.normal(size=3)
            rank.observe(bad, "grad_reduced", "a", window)
            infinite = np.array([np.inf, 1.0]) if window == 8 else rng.normal(size=2)
            rank.observe(infinite, "grad_reduced", "b", window)
            rank.monitor.add_scalar("loss", [1.5, math.nan, math.inf, 2.0**60][window % 4])
            rank.end_step()
        rank.stop()
    return out


def plain(rows: list[tuple]) -> list[tuple]:
    """In one order, and with the types of SQLite: DuckDB sums to integers of 128 bits."""
    out = []
    for row in rows:
        assert all(type(cell) in (int, float, str, bool, Decimal, type(None)) for cell in row)
        out.append(tuple(int(c) if type(c) in (bool, Decimal) else c for c in row))
    return sorted(out, key=lambda row: [(cell is not None, str(cell)) for cell in row])


@pytest.mark.parametrize("sql", QUERIES)
def test_both_engines_give_the_same(run, sql):
    want = trainmon.query(run, sql)
    got = trainmon.query(run, sql, engine="duckdb")
    assert [name.lower() for name in got.columns] == [name.lower() for name in want.columns] or (
        "(" in sql or "922" in sql  # columns without a name
    )
    assert plain(got.rows) == plain(want.rows)


def test_conditions_leave_out_what_need_not_be_read(run, monkeypatch):
    """What reaches scan() for a statement: the columns and conditions, and no more where in doubt."""
    seen = []
    monkeypatch.setattr(
        querying, "scan", lambda path, **which: seen.append(which) or trainmon.scan(path, **which)
    )
    for sql, stats, asked in [
        (
            "SELECT max(NORM) FROM stats WHERE kind = 'actv' AND step >= 2 AND step < 5 AND rank = 1",
            ["norm"],
            {"kinds": "actv", "steps": (2, 5), "ranks": 1},
        ),
        ("SELECT step FROM stats WHERE kind = 'actv' OR step = 1", [], {}),
        ("SELECT a.mean FROM stats a, stats b WHERE a.step = 1", ["mean"], {}),
        ("SELECT * FROM stats WHERE step = 3", list(querying._STATS), {"steps": (3, 3)}),
        ("SELECT stats FROM stats", list(querying._STATS), {}),
    ]:
        trainmon.query(run, sql, engine="duckdb")
        which = seen.pop()
        assert which.pop("all_restarts") is False
        assert which.pop("stats") == stats
        assert which == asked, sql


REFUSED = [
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM arrow_scan(1::POINTER, 2::POINTER, 3::POINTER)",
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM trainmon_scan",
    "SELECT current_setting('threads')",
    "SELECT sleep_ms(100000)",
    "SELECT write_log('x')",
    "SELECT getenv('HOME')",
    "SELECT nextval('x')",
    "COPY (SELECT 1) TO '{out}/copied'",
    "ATTACH '{out}/attached.db'",
    "EXPORT DATABASE '{out}/exported'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET threads = 64",
    "PRAGMA version",
    "CREATE TABLE x (a INT)",
    "DROP VIEW stats",
    "INSERT INTO logged VALUES (1, 2, 3, 'a', 4)",
    "CALL pragma_version()",
    "SHOW TABLES",
    "SELECT 1; SELECT 2",
    "",
    "SELEC 1",
    "SELECT nothing FROM stats",
]


@pytest.mark.parametrize("sql", REFUSED)
def test_hostile_sql_is_refused(run, tmp_path, sql):
    with pytest.raises(ValueError, match="SQL: "):
        trainmon.query(run, sql.format(out=tmp_path), engine="duckdb")
    assert not list(tmp_path.iterdir())


def test_settings_hold_without_the_parser(run, tmp_path, monkeypatch):
    """Each line of defence alone: what the parser let through, DuckDB itself refuses."""
    parsed = querying._checked

    def lenient(database, sql):
        return parsed(database, "SELECT 1 FROM stats")

    monkeypatch.setattr(querying, "_checked", lenient)
    for sql in REFUSED[:4] + [
        s for s in REFUSED if s.split(" ")[0] in ("COPY", "ATTACH", "LOAD", "SET")
    ]:
        with pytest.raises(ValueError, match="SQL: "):
            trainmon.query(run, sql.format(out=tmp_path), engine="duckdb")
    assert not list(tmp_path.iterdir())


def test_time_and_memory_are_bounded(run):
    endless = (
        "SELECT count(*) FROM range(1000000000) a, range(1000000000) b WHERE a.range = -b.range"
    )
    begin = time.monotonic()
    with pytest.raises(ValueError, match="took longer than it may"):
        trainmon.query(run, endless, engine="duckdb", timeout=1.0)
    assert time.monotonic() - begin < 120
    with pytest.raises(ValueError, match="SQL: Out of Memory"):
        trainmon.query(run, "SELECT list(range) FROM range(1000000000)", engine="duckdb")


def test_variables_of_python_are_no_tables(run):
    mine = {"a": np.arange(3)}  # noqa: F841
    with pytest.raises(ValueError, match="no table mine"):
        trainmon.query(run, "SELECT * FROM mine", engine="duckdb")


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"engine": "spark"}, ValueError, "engine must be one of sqlite, duckdb, not 'spark'"),
        ({"sql": 3}, TypeError, "sql must be a str, not int"),
        ({"timeout": -1}, ValueError, "timeout must be"),
        ({"all_restarts": 1}, TypeError, "all_restarts must be"),
    ],
)
def test_what_is_wrong_is_named(run, wrong, error, text):
    with pytest.raises(error, match=text):
        trainmon.query(run, **{"sql": "SELECT 1", **wrong})


@pytest.mark.parametrize("engine", querying.ENGINES)
def test_no_run(tmp_path, engine):
    with pytest.raises(FileNotFoundError):
        trainmon.query(tmp_path / "none", "SELECT 1 FROM stats", engine=engine)


def test_without_duckdb(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ModuleNotFoundError, match="pip install duckdb"):
        trainmon.query(run, "SELECT 1", engine="duckdb")
