"""trainmon.query in both engines: the same answers, and DuckDB held to reading and computing."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from decimal import Decimal

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import launch
import trainmon
from trainmon import querying
from written_run import WrittenRank

QUERIES = [
    "SELECT step, kind, count(*), max(norm), sum(nans) FROM stats GROUP BY step, kind",
    "SELECT name, step, norm FROM stats WHERE kind = 'actv' AND step BETWEEN 2 AND 5",
    "SELECT rank, seq FROM rows WHERE rank = 1 AND step > 3 AND step <= 6",
    "SELECT rank, seq FROM stats s WHERE 1 = s.rank AND 3 < s.step AND 7 >= s.step",
    "SELECT count(*) FROM stats WHERE step < 4.5 OR rank = 0",
    "SELECT count(*), max(norm) FROM stats WHERE step BETWEEN 10 AND 5",
    "SELECT step FROM stats WHERE step > 10 AND step < 5",
    "SELECT step FROM stats WHERE step = 3 AND step = 4",
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


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM stats TABLESAMPLE 100%",
        "SELECT count(*), sum(nans) FROM stats WHERE rank = 1 USING SAMPLE 100 PERCENT",
        "SELECT count(*) FROM stats TABLESAMPLE reservoir(7 ROWS)",
        "SELECT count(*) FROM stats AS t(rank, restart) WHERE rank = 1",
        "SELECT count(*) FROM stats AS t(restart, step) WHERE step = 1",
        "SELECT count(*) FROM rows t(a, b, kind) WHERE kind = 'actv'",
        "SELECT {columns} FROM stats t({columns}) WHERE c1 = 1 AND c7 = 3 ORDER BY ALL",
    ],
)
def test_samples_and_aliases_of_columns_are_duckdbs_own(run, sql):
    rows = pa.table(trainmon.read_table(run))
    sql = sql.format(columns=", ".join(f"c{i}" for i in range(rows.num_columns)))
    with duckdb.connect() as database:
        database.register("stats", rows)
        database.register("rows", rows)
        want = database.execute(sql).fetchall()
    assert [repr(row) for row in trainmon.query(run, sql, engine="duckdb").rows] == [
        repr(row) for row in want
    ]


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
        ("SELECT norm FROM stats WHERE rank = 1 USING SAMPLE 9 ROWS", ["norm"], {}),
        ("SELECT step FROM stats TABLESAMPLE 50% WHERE rank = 1", [], {}),
        ("SELECT step FROM stats t(rank) WHERE rank = 1", list(querying._STATS), {}),
        ("SELECT step FROM stats WHERE step > 9 AND step < 2", [], {"steps": (9, 9)}),
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


# It takes no memory, which would end it sooner on a fast machine.
ENDLESS = "SELECT count(*) FROM range(1000000000000000) WHERE range < 0"


def test_time_and_memory_are_bounded(run):
    begin = time.monotonic()
    with pytest.raises(ValueError, match="took longer than it may"):
        trainmon.query(run, ENDLESS, engine="duckdb", timeout=1.0)
    assert time.monotonic() - begin < 120
    for large in [
        "SELECT list(range) FROM range(1000000000)",
        "SELECT count(*) FROM range(1000000000) a, range(1000000000) b WHERE a.range = -b.range",
    ]:
        with pytest.raises(ValueError, match="SQL: Out of Memory"):
            trainmon.query(run, large, engine="duckdb", timeout=600)


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


def command(run, sql, *options, python=sys.executable):
    """`trainmon query --engine duckdb`, with this Python or another one."""
    return subprocess.run(
        [launch.command_line(), "query", str(run), sql, "--engine", "duckdb", *options],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TRAINMON_PYTHON": str(python)},
    )


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT step, kind, count(*) AS rows, max(norm) AS most FROM stats GROUP BY ALL ORDER BY ALL",
        "SELECT name, step, norm, mean, infs FROM stats WHERE step = 7 OR step = 8 ORDER BY rank, seq",
        "SELECT 9223372036854775807 AS a, -2.5 AS b, 'üm\"l\n,x' AS c, NULL AS d, 'NaN'::DOUBLE AS e",
        "SELECT sum(step) AS s, 1e308 * 10 AS i, -1e308 * 10 AS j, step > 3 AS t FROM stats GROUP BY 4"
        " ORDER BY 4",
        "SELECT norm FROM stats WHERE step = 99",
    ],
)
def test_the_command_prints_what_python_gets(run, sql):
    want = trainmon.query(run, sql, engine="duckdb")
    done = command(run, sql, "--json")
    assert done.returncode == 0, done.stderr
    rows = [tuple(one.values()) for one in json.loads(done.stdout)]
    number = {"nan": None, "inf": math.inf, "-inf": -math.inf}
    got = [tuple(number.get(c, c) if isinstance(c, str) else c for c in row) for row in rows]
    wanted = [
        tuple(None if isinstance(c, float) and math.isnan(c) else c for c in row)
        for row in want.rows
    ]
    assert got == wanted
    assert all(tuple(one) == want.columns for one in json.loads(done.stdout))


def test_both_engines_print_the_same(run):
    sql = "SELECT rank, name, step, norm, nans, shape FROM stats ORDER BY rank, seq"
    for form in ("--csv", "--json", "--quiet"):
        done = command(run, sql, form)
        other = [launch.command_line(), "query", str(run), sql, form]
        assert done.stdout == subprocess.run(other, capture_output=True, text=True).stdout != ""


def test_the_command_says_what_is_wrong(run, tmp_path):
    for sql, text in [
        ("SELECT * FROM read_csv('/etc/passwd')", "SQL: "),
        ("SELEC 1", "SQL: "),
        (ENDLESS, "took longer"),
    ]:
        done = command(run, sql, "--timeout", "1")
        assert (done.returncode, done.stdout) == (2, ""), sql
        assert text in done.stderr
    assert command(tmp_path / "none", "SELECT 1 FROM stats").returncode == 2
    done = command(run, "SELECT 1", "--threads", "2")
    assert done.returncode == 2
    assert "not with --engine duckdb" in done.stderr
    no_python = tmp_path / "no_python"
    no_python.write_text("#!/bin/sh\nexit 1\n")
    no_python.chmod(0o755)
    for python, text in [(no_python, "did not answer"), (tmp_path / "gone", "cannot be started")]:
        done = command(run, "SELECT 1", python=python)
        assert (done.returncode, done.stdout) == (2, "")
        assert text in done.stderr
        assert "TRAINMON_PYTHON" in done.stderr


def test_the_command_says_what_is_not_used(run, tmp_path):
    damaged = tmp_path / "run"
    shutil.copytree(run, damaged)
    segment = min((damaged / "rank_00000").rglob("*.tmlog"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0x55
    segment.write_bytes(data)
    done = command(damaged, "SELECT count(*) AS n FROM stats", "--csv")
    assert done.returncode == 3
    assert segment.name in done.stderr
    assert (
        0
        < int(done.stdout.split()[1])
        < int(command(run, "SELECT count(*) AS n FROM stats", "--csv").stdout.split()[1])
    )
