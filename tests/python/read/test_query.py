"""trainmon query against pandas and sqlite3 over what trainmon.read gives."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess

import numpy as np
import pytest

import launch
import trainmon
from sqlite_oracle import database_of
from written_run import WrittenRank

QUERIES = [
    "SELECT step, kind, count(*), max(norm), sum(nans) FROM stats GROUP BY step, kind",
    "SELECT name, step, norm FROM stats WHERE kind = 'actv' AND step BETWEEN 2 AND 5",
    "SELECT rank, seq FROM stats WHERE rank = 1 AND step > 3 AND step <= 6",
    "SELECT count(*) FROM stats WHERE step < 4.5 OR rank = 0",
    "SELECT count(*) FROM stats WHERE kind = 'no such kind' OR kind = 'grads'",
    "SELECT count(*) FROM stats WHERE rank = 7",
    "SELECT count(*) FROM stats WHERE kind = 'grad_reduced' OR step = 3",
    "SELECT count(*) FROM stats WHERE step < 3 OR step > 8",
    "SELECT count(*) FROM stats WHERE kind = 'grad_reduced' OR (kind = 'actv' AND step < 4)",
    "SELECT kind, count(*) FROM stats WHERE kind = 'grad_reduced' OR step = 3 GROUP BY kind",
    "SELECT count(*) FROM stats WHERE (rank = 0 AND step = 5) OR (rank = 1 AND step = 6)",
    "SELECT count(*) FROM stats a, stats b WHERE a.step = b.step AND a.name = b.name"
    " AND a.kind = 'grad_reduced' AND (b.kind = 'actv' OR b.step = 2)",
    "SELECT count(*) FROM stats WHERE step = 3 AND kind IN ('actv', 'grad_reduced')",
    "SELECT a.name, a.step, b.norm FROM stats a JOIN stats b"
    " ON b.step = a.step AND b.rank = a.rank AND b.seq = a.seq WHERE a.step = 1",
    "SELECT name FROM stats WHERE norm IS NULL ORDER BY seq",
    "WITH w AS (SELECT step, min(min) AS low FROM stats GROUP BY step) SELECT * FROM w",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("query") / "run"
    rng = np.random.default_rng(3)
    for number in range(2):
        rank = WrittenRank(out, number, 2, sinks=["log", "sqlite"], segment_mb=0.01)
        for window in range(12):
            for name in ["a", 'b"c', "ümlaut, x"]:
                rank.observe(rng.normal(size=5), "actv", name, window, element="output")
            bad = np.array([np.nan, np.inf, 1.0]) if window == 7 else rng.normal(size=3)
            rank.observe(bad, "grad_reduced", "a", window)
            rank.monitor.add_scalar("loss", window * 0.5)
            rank.end_step("skipped" if window == 4 else "taken")
        rank.stop()
    return out


@pytest.fixture(scope="module")
def oracle(run):
    return database_of(run)


def query(run, sql, *options):
    return subprocess.run(
        [launch.command_line(), "query", str(run), sql, *options],
        capture_output=True,
        text=True,
        timeout=60,
    )


def rows_of(run, sql):
    """As tuples, in any order; not finite numbers come as strings."""
    done = query(run, sql, "--csv")
    assert done.returncode == 0, done.stderr
    _, *lines = csv.reader(io.StringIO(done.stdout, newline=""))
    return sorted(tuple(line) for line in lines)


def as_text(value):
    if value is None:
        return ""
    if isinstance(value, float):
        return "inf" if math.isinf(value) else repr(value)
    return str(value)


def same_cell(found, wanted):
    if found == wanted:
        return True
    try:
        return float(found) == float(wanted)
    except ValueError:
        return False


@pytest.mark.parametrize("sql", QUERIES)
def test_the_answer_is_sqlites_own(run, oracle, sql):
    wanted = sorted(tuple(as_text(v) for v in row) for row in oracle.execute(sql).fetchall())
    found = rows_of(run, sql)
    assert len(found) == len(wanted)
    key = [tuple(as_text(c) for c in row) for row in wanted]
    for one, other in zip(found, key, strict=True):
        assert all(map(same_cell, one, other)), (one, other)


def test_a_database_answers_like_its_log(run):
    sql = "SELECT seq, name, step, fate, norm, count FROM stats WHERE rank = 1 ORDER BY seq"
    database = run / "rank_00001" / "restart_0000" / "stats.db"
    assert query(run, sql, "--csv").stdout == query(database, sql, "--csv").stdout != ""


@pytest.mark.parametrize("source", ["log", "sink", "converted"])
def test_a_text_is_compared_as_the_type_of_its_column(run, oracle, tmp_path, source):
    place = run / "rank_00001" / "restart_0000" / "stats.db" if source == "sink" else run
    if source == "converted":
        place = tmp_path / "a.db"
        trainmon.convert(run, place, "sqlite")
    columns = [name for _, name, *_ in oracle.execute("PRAGMA table_info(stats)")]
    assert {"step", "attempt", "loss_scale", "fate", "norm", "count"} <= set(columns)
    for column in columns:
        sums = ", ".join(
            f'sum("{column}" {sign} {value})'
            for sign in ("=", "<", ">")
            for value in ("'1'", "'1.0'", "'8'", "'10'", "'zzz'", "5", "'taken'")
        )
        sql = f"SELECT {sums} FROM stats WHERE rank = '1'"
        if column == "shape":  # '' there where it is not known
            sql += " AND shape <> ''"
        assert trainmon.query(place, sql).rows == oracle.execute(sql).fetchall(), column
    logged = trainmon.read_table(run).scalars
    wanted = ((logged["rank"] == 1) & (logged["step"] == 8)).sum()
    sql = "SELECT count(*) FROM logged WHERE rank = '1' AND step = '8'"
    assert trainmon.query(place, sql).rows == [(wanted,)] == [(1,)]


def test_logged_alerts_and_gaps(run):
    table = trainmon.read_table(run)
    found = json.loads(query(run, "SELECT * FROM logged", "--json").stdout)
    scalars = [
        dict(zip(table.scalars, row, strict=True))
        for row in zip(*(v.tolist() for v in table.scalars.values()), strict=True)
    ]
    order = lambda row: (row["rank"], row["step"], row["value"])  # noqa: E731
    assert sorted(found, key=order) == sorted(scalars, key=order)
    alerts = json.loads(query(run, "SELECT name, rule, count FROM alerts", "--json").stdout)
    assert len(alerts) == len(table.alerts) == 2
    assert query(run, "SELECT * FROM gaps", "--csv").stdout.count("\n") == 1


def test_a_cell_that_is_null_alone_is_a_record(run):
    done = query(run, "SELECT norm FROM stats WHERE norm IS NULL", "--csv")
    assert list(csv.reader(io.StringIO(done.stdout))) == [["norm"], [""], [""]]


def test_json_keeps_types(run):
    sql = "SELECT name, norm, max AS m, 1 AS one, 1 AS one FROM stats WHERE step = 6 AND nans > 0"
    (row, _) = json.loads(query(run, sql, "--json").stdout)
    assert row == {"name": "a", "norm": None, "m": None, "one": 1, "one_2": 1}


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT nme FROM stats", "no such column: nme, at character 8: nme FROM stats"),
        ("SELECT FROM", "syntax error, at character 8"),
        ("SELECT * FROM nowhere", "no such table: nowhere"),
        ("SELECT 1; SELECT 2", "one statement only"),
        ("", "no statement"),
        ("ATTACH 'x.db' AS x", "not authorized"),
        ("CREATE TABLE t (a)", "not authorized"),
        ("DELETE FROM stats", ""),
        ("PRAGMA database_list", "not authorized"),
        ("SELECT load_extension('x')", "not authorized"),
    ],
)
def test_what_is_wrong_is_said(run, sql, says):
    for target in (run, run / "rank_00000" / "restart_0000" / "stats.db"):
        done = query(target, sql)
        assert done.returncode == 2 and done.stdout == ""
        assert says in done.stderr and done.stderr.startswith("trainmon: SQL: ")


def test_usage(run, tmp_path):
    no_sql = subprocess.run(
        [launch.command_line(), "query", str(run)], capture_output=True, timeout=60
    )
    assert no_sql.returncode == 2
    assert query(tmp_path / "nothing", "SELECT 1").returncode == 2
    text = tmp_path / "text"
    text.write_text("not a database")
    assert "no SQLite database" in query(text, "SELECT 1").stderr


def test_damage_makes_the_answer_partial(run, tmp_path):
    import shutil

    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    segment = sorted((copy / "rank_00000" / "restart_0000").glob("*.tmlog"))[0]
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    done = query(copy, "SELECT count(*) FROM stats")
    assert done.returncode == 3 and "not used" in done.stderr
