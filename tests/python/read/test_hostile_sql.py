"""SQL and databases of somebody else: what they may do, how long, and how much memory they take."""

from __future__ import annotations

import csv
import io
import sqlite3
import subprocess

import numpy as np
import pytest

import launch
from written_run import WrittenRank

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
# Functions of SQLite's library or its shell that do more than compute.
REFUSED = (
    "fts3_tokenizer('simple')",
    "load_extension('x')",
    "sqlite_compileoption_get(1)",
    "sqlite_log(1, 'x')",
)
# As https://sqlite.org/lang_corefunc.html and its neighbours list them.
COMPUTED = (
    "abs(-1)",
    "max(1, 2)",
    "coalesce(NULL, 'a')",
    "iif(1, 2, 3)",
    "instr('ab', 'b')",
    "substr('abc', 2)",
    "printf('%d', 3)",
    "round(1.5)",
    "typeof(1)",
    "hex('a')",
    "'a' LIKE 'A'",
    "'a' GLOB 'a'",
    "date('2026-01-31')",
    "strftime('%Y', '2026-01-31')",
    "julianday('2026-01-31')",
    "sqrt(2.0)",
    "ln(2.0)",
    "pow(2, 10)",
    "json_extract('{\"a\":1}', '$.a')",
    "'[1,2]' ->> 1",
    "row_number() OVER ()",
    "lag(1) OVER ()",
    "group_concat('x')",
    "total(1)",
    "avg(1)",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("sql") / "run"
    rank = WrittenRank(out, sinks=["log", "sqlite"])
    for window in range(3):
        rank.observe(np.ones(4, np.float32), "grad_reduced", "w", window)
        rank.end_step()
    rank.stop()
    return out


def called(*arguments):
    return subprocess.run(
        [launch.command_line(), *map(str, arguments)], capture_output=True, text=True, timeout=100
    )


def places(run):
    return run, run / "rank_00000" / "restart_0000" / "stats.db"


@pytest.mark.parametrize("function", REFUSED)
def test_a_function_that_does_more_than_compute_is_refused(run, function):
    for place in places(run):
        done = called("query", place, f"SELECT {function}")
        name = function[: function.index("(")]
        assert done.returncode == 2 and name in done.stderr and done.stdout == "", done.stderr
        assert "no such function" in done.stderr or "only compute" in done.stderr


def test_functions_that_compute_give_what_sqlite_gives(run):
    oracle = sqlite3.connect(":memory:")
    for expression in COMPUTED:
        try:
            (wanted,) = oracle.execute(f"SELECT {expression}").fetchone()
        except sqlite3.OperationalError:
            continue  # this Python's SQLite is older, or was built without it
        done = called("query", run, f"SELECT {expression} AS a", "--csv")
        assert done.returncode == 0, expression + done.stderr
        _, (found,) = csv.reader(io.StringIO(done.stdout))  # a lone NULL is a quoted empty cell
        same = found == ("" if wanted is None else str(wanted)) or float(found) == float(wanted)
        assert same, expression


@pytest.mark.parametrize("place", [0, 1])
def test_a_query_without_end_is_ended(run, place):
    done = called("query", places(run)[place], ENDLESS, "--timeout", 1)
    assert done.returncode == 2 and "--timeout" in done.stderr


def test_what_is_made_out_of_nothing_has_a_limit(run):
    done = called("query", run, "SELECT length(zeroblob(2000000))")
    assert done.returncode == 2 and "too big" in done.stderr


def altered(run, tmp_path, *statements):
    """A copy of the run's database, changed by Python's own sqlite3."""
    path = tmp_path / "stats.db"
    path.write_bytes(places(run)[1].read_bytes())
    database = sqlite3.connect(path)
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()
    return path


@pytest.mark.parametrize(
    "view",
    [
        "SELECT fts3_tokenizer('simple') AS name",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS name FROM n",
    ],
    ids=["function", "endless"],
)
def test_views_of_a_foreign_database_only_compute(run, tmp_path, view):
    columns = "0 AS restart, 0 AS rank, 0 AS step, name, 1.0 AS value"
    path = altered(
        run, tmp_path, "DROP VIEW logged", f"CREATE VIEW logged AS SELECT {columns} FROM ({view})"
    )
    done = called("convert", path, "--to", "csv", "-o", tmp_path / "out")
    assert done.returncode in (2, 3) and "stats.db" in done.stderr, done.stderr
    assert "not authorized" in done.stderr or "unsafe use" in done.stderr


# --- cells of CSV ----------------------------------------------------------------------------------
FORMULA = "=HYPERLINK(A1)"


@pytest.fixture(scope="module")
def formulas(tmp_path_factory):
    out = tmp_path_factory.mktemp("cells") / "run"
    rank = WrittenRank(out)
    for name in (FORMULA, "+1", "-1.5", "@SUM", "\tx", "plain-name"):
        rank.observe(np.full(2, -1.5, np.float32), "grad_reduced", name, 0)
    rank.monitor.add_scalar("=loss", -2.5)
    rank.end_step()
    rank.stop()
    return out


def cells_of(path):
    import csv

    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("command", ["convert", "merge"])
def test_cells_are_exact_unless_safe_ones_are_asked_for(formulas, tmp_path, command):
    exact = called(command, formulas, "--to", "csv", "-o", tmp_path / "exact")
    safe = called(command, formulas, "--to", "csv", "--safe-cells", "-o", tmp_path / "safe")
    assert exact.returncode == safe.returncode == 0, safe.stderr
    names = {row["name"] for row in cells_of(tmp_path / "exact" / "rows.csv")}
    assert names == {FORMULA, "+1", "-1.5", "@SUM", "\tx", "plain-name"}
    rows = cells_of(tmp_path / "safe" / "rows.csv")
    assert {row["name"] for row in rows} == {
        "'" + FORMULA,
        "'+1",
        "'-1.5",
        "'@SUM",
        "'\tx",
        "plain-name",
    }
    assert {row["mean"] for row in rows} == {"-1.5"}  # numbers stay numbers
    (scalar,) = cells_of(tmp_path / "safe" / "scalars.csv")
    assert scalar["name"] == "'=loss" and scalar["value"] == "-2.5"


def test_cells_of_a_query(formulas):
    sql = f"SELECT name, mean FROM stats WHERE name = '{FORMULA}'"
    exact = called("query", formulas, sql, "--csv").stdout.splitlines()
    safe = called("query", formulas, sql, "--csv", "--safe-cells").stdout.splitlines()
    assert exact == ["name,mean", f"{FORMULA},-1.5"]
    assert safe == ["name,mean", f"'{FORMULA},-1.5"]


def test_safe_cells_are_of_csv_only(formulas, tmp_path):
    done = called("convert", formulas, "--to", "jsonl", "--safe-cells", "-o", tmp_path / "out")
    assert done.returncode == 2 and "safe" in done.stderr and not (tmp_path / "out").exists()
