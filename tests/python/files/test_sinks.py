"""The files of the sinks csv and sqlite, read by csv, pandas and sqlite3, against the log of the
same run, value by value, and against NumPy."""

from __future__ import annotations

import csv
import io
import json
import math
import sqlite3

import numpy as np
import pandas as pd
import pytest

import trainmon
from written_run import WrittenRank

KEYS = [
    "restart",
    "rank",
    "kind",
    "chunk",
    "name",
    "element",
    "optimizer",
    "step",
    "attempt",
    "micro_step",
    "call",
    "seq",
    "flags",
    "window",
    "accum",
    "fate",
    "loss_scale",
    "dtype",
    "replication",
    "shape",
]
STATS = [line["name"] for line in trainmon._core.stat_table()]
TEXTS = {"kind", "name", "element", "fate", "dtype", "replication", "shape"}
ODD_NAMES = ["plain", 'a,"b"\nc', "", "tab\there", "\N{SNOWMAN}.weight", "nan", " spaces "]


@pytest.fixture(scope="module", params=[None, 2], ids=["accum", "micro_steps"])
def rank(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("sinks") / "run"
    keys = {} if request.param is None else {"grad_acc_steps": request.param}
    rank = WrittenRank(out, sinks=["log", "csv", "sqlite"], segment_mb=0.01, **keys)
    rng = np.random.default_rng(5)
    special = np.array([1.0, np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40], np.float32)
    fates = ["taken", "skipped", "taken", "unknown", "taken"] * 3
    for window, fate in enumerate(fates):
        for accum in range(4):
            for name in ODD_NAMES:
                rank.observe(rng.normal(size=9), "actv", name, window, accum, element="output")
        rank.observe(rng.normal(size=64) * 1e300, "grad_reduced", "large", window)
        rank.observe(np.array([np.inf, -2.0]), "grad_reduced", "infinite", window)
        rank.observe(np.zeros((0, 3), np.float32), "grad_reduced", "empty", window)
        if window % 4 == 1:
            rank.observe(special, "grad_reduced", "special", window)
        rank.monitor.add_scalar("loss", math.inf if window == 3 else window * 0.1)
        rank.end_step(fate, 1024.0 if fate == "skipped" else 1.0)
    rank.observe(rng.normal(size=9), "actv", "unfinished", len(fates))
    rank.stop()
    return rank


def lines_of(path):
    """The whole lines of a file as docs/formats.md says to read them."""
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    head, *lines = csv.reader(io.StringIO(text[: text.rfind("\n") + 1], newline=""))
    return [dict(zip(head, line, strict=True)) for line in lines if len(line) == len(head)]


def csv_table(directory):
    rows = [row for path in sorted(directory.glob("rows-*.csv")) for row in lines_of(path)]
    outcomes = {(o["optimizer"], o["window"]): o for o in lines_of(directory / "outcomes.csv")}
    for row in rows:
        outcome = outcomes.get((row["optimizer"], row["window"]))
        if outcome is not None:
            row.update({name: outcome[name] for name in ("step", "attempt", "fate", "loss_scale")})
    return rows


def same(found, wanted):
    if isinstance(wanted, float) and math.isnan(wanted):
        return found is None or math.isnan(found)
    return found == wanted


def test_the_log_and_numpy_agree_on_what_was_seen(rank):
    table = trainmon.read_table(rank.directory.parent.parent)
    assert table.num_rows == len(rank.seen)
    assert set(STATS) <= set(table) and list(table)[: len(KEYS)] == KEYS


def test_csv_holds_what_the_log_holds(rank):
    table = trainmon.read_table(rank.directory.parent.parent)
    rows = {int(row["seq"]): row for row in csv_table(rank.directory)}
    assert len(list(rank.directory.glob("rows-*.csv"))) > 2
    assert list(next(iter(rows.values()))) == KEYS + STATS
    assert sorted(rows) == sorted(table["seq"])
    for column in KEYS + STATS:
        values = table[column]
        for seq, value in zip(table["seq"], values, strict=True):
            text = rows[seq][column]
            if column in TEXTS:
                assert text == value
            elif values.dtype.kind in "iu":
                assert int(text) == value, column
            else:
                assert same(float(text), float(value)), column
    # Shortest exact: no number is longer than Python's own text of it.
    for row in rows.values():
        assert len(row["norm"]) <= len(repr(float(row["norm"])))


def test_pandas_reads_the_csv(rank):
    files = sorted(rank.directory.glob("rows-*.csv"))
    frame = pd.concat(
        [
            pd.read_csv(
                f,
                keep_default_na=False,
                float_precision="round_trip",
                na_values={s: ["nan"] for s in STATS},
            )
            for f in files
        ]
    )
    table = trainmon.read_table(rank.directory.parent.parent)
    frame = frame.sort_values("seq")
    order = np.argsort(table["seq"])
    np.testing.assert_array_equal(frame["name"].to_numpy(object), table["name"][order])
    for stat in STATS:
        np.testing.assert_array_equal(frame[stat].to_numpy(float), table[stat][order].astype(float))


def test_sqlite_holds_what_the_log_holds(rank):
    table = trainmon.read_table(rank.directory.parent.parent)
    path = rank.directory / "stats.db"
    assert not path.with_name("stats.db-wal").exists()
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    cursor = database.execute("SELECT * FROM stats ORDER BY seq")
    assert [column[0] for column in cursor.description] == KEYS + STATS
    order = np.argsort(table["seq"])
    columns = [table[name][order] for name in KEYS + STATS]
    rows = cursor.fetchall()
    assert len(rows) == table.num_rows
    for row, *wanted in zip(rows, *columns, strict=True):
        for name, found, value in zip(KEYS + STATS, row, wanted, strict=True):
            assert same(found, value if isinstance(value, str) else value.item()), name
    logged = database.execute("SELECT restart, rank, step, name, value FROM logged").fetchall()
    scalars = table.scalars
    wanted = list(
        zip(*(scalars[c] for c in ("restart", "rank", "step", "name", "value")), strict=True)
    )
    assert sorted(logged) == sorted(wanted)
    facts = dict(database.execute("SELECT name, value FROM meta"))
    assert facts["run_id"] == "test" and facts["rank"] == 0 and facts["restart"] == 0
    types = {row[1]: row[2] for row in database.execute("PRAGMA table_info(rows)")}
    assert types["norm"] == "REAL" and types["nans"] == "INTEGER"


def test_scalars_and_alerts(rank):
    table = trainmon.read_table(rank.directory.parent.parent)
    scalars = lines_of(rank.directory / "scalars.csv")
    assert [float(s["value"]) for s in scalars] == list(table.scalars["value"])
    alerts = {(a["name"], a["rule"]): a for a in lines_of(rank.directory / "alerts.csv")}
    assert {name for name, _ in alerts} == {a["name"] for a in table.alerts} != set()
    database = sqlite3.connect(rank.directory / "stats.db")
    found = database.execute(
        "SELECT s.name, a.rule, a.count FROM alerts a JOIN series s ON s.id = a.series"
    ).fetchall()
    assert sorted(found) == sorted((a["name"], a["rule"], a["count"]) for a in table.alerts)


def test_the_account_of_each_sink_closes(rank):
    health = json.loads((rank.directory / "health.json").read_text())
    assert [sink["name"] for sink in health["sinks"]] == ["log", "csv", "sqlite"]
    for sink in health["sinks"]:
        assert sink["rows_written"] == len(rank.seen) and not sink["rows_dropped"]


def test_a_torn_last_line_is_no_row(rank, tmp_path):
    whole = sorted(rank.directory.glob("rows-*.csv"))[0]
    content = whole.read_bytes()
    rows = lines_of(whole)
    torn = tmp_path / "torn.csv"
    rng = np.random.default_rng(2)
    for cut in rng.integers(content.index(b"\n") + 1, len(content), size=300):
        torn.write_bytes(content[:cut])
        found = lines_of(torn)
        assert found == rows[: len(found)]
        assert len(found) <= len(rows)
