"""Orders and groups that the reader itself gives, against sqlite3 over what trainmon.read gives."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

import trainmon
from sqlite_oracle import database_of
from written_run import WrittenRank

OF_SERIES = ["kind", "chunk", "name", "element", "optimizer", "dtype", "replication"]
OF_ROWS = ["restart", "rank", "step", "attempt", "micro_step", "call", "seq", "flags", "accum"]
OF_ROWS += ["fate", "loss_scale", "shape", "window"]
STATS = ["norm", "mean", "nans", "max", "zeros", "count", "std", "absmax", "infs", "min"]
WHERE = ["", "WHERE step > 3", "WHERE kind = 'actv' OR step = 2", "WHERE norm < 2 AND rank = 1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Names that sort otherwise than letters do, series that are equal in some columns."""
    out = tmp_path_factory.mktemp("order") / "run"
    rng = np.random.default_rng(5)
    for number in range(3):
        rank = WrittenRank(out, number, 3, segment_mb=0.01)
        for window in range(8):
            for name, kind in itertools.product(
                ["b", "a", "B", "a.b", "Ä", "ümlaut, x"], ["actv", "grad_reduced", "exp_avg"]
            ):
                size = 1 + (window + len(name)) % 4
                values = rng.normal(size=size).astype(rng.choice([np.float32, np.float64]))
                rank.observe(values, kind, name, window, element=f"output.{size % 2}")
            rank.observe(np.array([np.nan, 1.0]), "grad_reduced", "a", window)
            rank.end_step("skipped" if window == 4 else "taken")
        rank.stop()
    return out


@pytest.fixture(scope="module")
def oracle(run):
    return database_of(run)


def statements():
    chosen = random.Random(7)
    for _ in range(80):
        keys = chosen.sample(OF_SERIES, chosen.randint(1, 3))
        read = chosen.sample(OF_ROWS + STATS, chosen.randint(0, 4))
        where = chosen.choice(WHERE)
        order = ", ".join(f"{key} {chosen.choice(['', 'ASC', 'DESC'])}" for key in keys)
        listed = ", ".join(keys)
        found = "".join(f", {chosen.choice(['max', 'min', 'count'])}({column})" for column in read)
        yield chosen.choice(
            [
                f"SELECT {listed}, count(*){found} FROM stats {where} GROUP BY {listed}",
                f"SELECT {listed}, count(*){found} FROM stats {where} GROUP BY {listed} "
                f"ORDER BY {order}",
                f"SELECT DISTINCT {listed} FROM stats {where}",
                f"SELECT DISTINCT {listed} FROM stats {where} ORDER BY {order}",
                f"SELECT {', '.join([*keys, *read])} FROM stats {where} ORDER BY {order}",
            ]
        )


def same(found, wanted):
    if isinstance(found, float) and isinstance(wanted, (int, float)):
        return found == pytest.approx(wanted, rel=1e-15)
    return found == wanted


def sorted_rows(rows):
    return sorted(rows, key=lambda row: [str(cell) for cell in row])


@pytest.mark.parametrize("sql", [*statements()])
def test_the_order_is_sqlites_own(run, oracle, sql):
    wanted = oracle.execute(sql).fetchall()
    found = trainmon.query(run, sql).rows
    if "ORDER BY" in sql:  # equal rows may come in any order
        keys = len(sql.split("ORDER BY")[1].split(","))
        assert [row[:keys] for row in found] == [row[:keys] for row in wanted]
    assert len(found) == len(wanted) > 0
    for one, other in zip(sorted_rows(found), sorted_rows(wanted), strict=True):
        assert all(map(same, one, other)), (one, other)


@pytest.mark.parametrize("column", [*OF_SERIES, *OF_ROWS, *STATS])
def test_a_column_alone(run, oracle, column):
    """Of a row no more is read than the statement asks for; the rest must not be needed."""
    for sql in (f"SELECT {column} FROM stats", f"SELECT {column} FROM stats WHERE step = 3"):
        wanted, found = oracle.execute(sql).fetchall(), trainmon.query(run, sql).rows
        assert len(found) == len(wanted)
        assert all(map(same, *zip(*zip(sorted_rows(found), sorted_rows(wanted), strict=True)))), sql


def test_numbers_of_rows_are_the_same_in_every_scan(run):
    found = trainmon.query(run, "SELECT rowid, rank, seq FROM stats").rows
    assert len({row[0] for row in found}) == len(found)
    of_kind = trainmon.query(run, "SELECT rowid, kind FROM stats ORDER BY kind").rows
    assert {row[0] for row in of_kind} == {row[0] for row in found}
    sql = "SELECT count(*) FROM stats WHERE rowid IN (SELECT rowid FROM stats WHERE kind = 'actv')"
    assert trainmon.query(run, sql).rows == [(sum(kind == "actv" for _, kind in of_kind),)]
