"""trainmon convert, further: DuckDB and pandas on what it writes, scalars and payloads by value, msprobe's
layout to our formats, rows merged over ranks, the bar on a terminal, memory on a long log."""

from __future__ import annotations

import json
import math
import os
import pty
import select
import sqlite3
import subprocess
import sys

import duckdb
import numpy as np
import pandas as pd
import pytest

import launch
import trainmon
from test_convert import run  # noqa: F401  (a fixture)
from written_run import WrittenRank

ALERT = ["restart", "rank", "kind", "name", "element", "step", "rule", "count", "message"]


@pytest.mark.parametrize("to", ["msprobe_db", "msprobe_trend"])
def test_rows_without_a_place_are_not_counted_as_written(run, tmp_path, to):  # noqa: F811
    report = trainmon.convert(run, tmp_path / "a.db", to)
    database = sqlite3.connect(tmp_path / "a.db")
    tables = [
        name
        for (name,) in database.execute(
            "SELECT name FROM sqlite_master"
            " WHERE name GLOB 'metric_[0-9]*_step_*' OR name = 'trend_data'"
        )
    ]
    rows = sum(database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables)
    assert report.rows == trainmon.read_table(run).num_rows + report.superseded
    assert 0 < report.written == rows < report.rows - report.superseded
    assert report.left_out == report.rows - report.superseded - rows
    assert any(f"{report.left_out} rows have no place" in remark for remark in report.remarks)


def test_duckdb_and_pandas_read_the_csv(run, tmp_path):  # noqa: F811
    trainmon.convert(run, tmp_path / "out", "csv", kinds=["grad_reduced"], stats=["norm", "count"])
    file = str(tmp_path / "out/rows.csv")
    found = duckdb.sql(
        f"SELECT rank, step, name, norm, count FROM read_csv('{file}', nullstr='') "
        "WHERE restart = 0 ORDER BY rank, step, seq"
    ).fetchall()
    frame = pd.read_csv(
        file, keep_default_na=False, na_values=["nan"], float_precision="round_trip"
    )
    frame = frame[frame.restart == 0].sort_values(["rank", "step", "seq"])
    table = trainmon.read_table(run, kinds=["grad_reduced"])
    wanted = sorted(
        (r, st, seq, name, norm, count)
        for r, st, seq, name, norm, count, restart in zip(
            *(table[c] for c in ("rank", "step", "seq", "name", "norm", "count", "restart"))
        )
        if restart == 0
    )
    assert len(found) == len(frame) == len(wanted) > 20
    for (rank, step, name, norm, count), line, want in zip(found, frame.itertuples(), wanted):
        assert (rank, step, name, count) == (want[0], want[1], want[3], want[5])
        assert (line.rank, line.step, line.name, line.count) == (rank, step, name, count)
        for value in (norm, line.norm):
            assert value == want[4] or (math.isnan(value) and math.isnan(want[4]))


@pytest.fixture(scope="module", params=["log", "csv", "sqlite", "csv twice", "sqlite twice"])
def source(request, run, tmp_path_factory):  # noqa: F811
    """The run as this format, as its sink or as a conversion wrote it."""
    form, _, twice = request.param.partition(" ")
    if not twice:
        return run, form
    made = tmp_path_factory.mktemp("made") / "out"
    trainmon.convert(run, made, form, format="log")
    return made, form


@pytest.mark.parametrize("to", ["csv", "jsonl", "sqlite"])
def test_what_stands_beside_the_rows(run, source, tmp_path, to):  # noqa: F811
    table = trainmon.read_table(run)
    out = tmp_path / "out"
    report = trainmon.convert(source[0], out, to, format=source[1])
    assert report.rejected == 0
    assert report.remarks == []
    series = ["kind", "chunk", "name", "element"]
    if to == "csv":
        text = {"keep_default_na": False, "na_values": ["nan"], "float_precision": "round_trip"}
        scalars, payloads, alerts = (
            pd.read_csv(out / f"{name}.csv", **text) for name in ("scalars", "payloads", "alerts")
        )
    elif to == "jsonl":
        scalars, payloads, alerts = (
            pd.DataFrame([json.loads(line) for line in file.read_text().splitlines()])
            for file in (out / f"{name}.jsonl" for name in ("scalars", "payloads", "alerts"))
        )
    else:
        database = sqlite3.connect(out)
        scalars = pd.read_sql("SELECT * FROM logged", database)
        payloads, alerts = (
            pd.read_sql(f"SELECT p.*, s.* FROM {name} p JOIN series s ON s.id = p.series", database)
            for name in ("payloads", "alerts")
        )
    assert sorted(zip(*(alerts[c].tolist() for c in ALERT))) == sorted(
        tuple(alert[c] for c in ALERT) for alert in table.alerts
    )
    assert len(table.alerts) >= 2
    wanted = sorted(
        zip(*(table.scalars[c].tolist() for c in ("restart", "rank", "step", "name", "value")))
    )
    found = sorted(
        zip(
            scalars.restart.tolist(),
            scalars["rank"].tolist(),
            scalars.step.tolist(),
            scalars.name.tolist(),
            (float(v) for v in scalars.value),
        )
    )
    assert found == wanted and len(found) >= 5
    key = ["restart", "rank", "step", "seq", *series]
    known = {tuple(p[c] for c in key): p for p in table.payloads}
    assert len(payloads) == len(known) > 10
    for line in payloads.to_dict("records"):
        value = known[tuple(line[c] for c in key)]["value"]
        if line["kind"] == "stack":
            assert line["value"] == value
        else:
            assert json.loads(line["value"])["bins"] == value.counts.tolist()
    assert set(payloads.kind) == {"stack", "update_ratio"}


GAPS = [(0, 0, "queue_full", 7, 3, 9), (1, 1, 'odd, "reason"', 2, 5, 6)]


@pytest.mark.parametrize("start", ["csv", "sqlite"])
@pytest.mark.parametrize("to", ["csv", "sqlite"])
def test_gaps(run, tmp_path, start, to):  # noqa: F811
    trainmon.convert(run, tmp_path / "start", start)
    if start == "csv":
        columns = ["restart", "rank", "reason", "rows", "first_seq", "last_seq"]
        pd.DataFrame(GAPS, columns=columns).to_csv(tmp_path / "start/gaps.csv", index=False)
    else:
        with sqlite3.connect(tmp_path / "start") as database:
            database.executemany("INSERT INTO gaps VALUES (?,?,?,?,?,?)", GAPS)
    trainmon.convert(tmp_path / "start", tmp_path / "end", to)
    if to == "csv":
        frame = pd.read_csv(tmp_path / "end/gaps.csv")
        assert [tuple(line) for line in frame.itertuples(index=False)] == GAPS
    else:
        assert sqlite3.connect(tmp_path / "end").execute("SELECT * FROM gaps").fetchall() == GAPS


@pytest.mark.parametrize("start", ["csv", "sqlite"])
def test_damaged_payloads_and_alerts_are_told(run, tmp_path, start):  # noqa: F811
    trainmon.convert(run, tmp_path / "start", start)
    if start == "csv":
        file = tmp_path / "start/payloads.csv"
        file.write_text(file.read_text().replace('""bins"":[', '""bins"":[""a"",', 1))
        file = tmp_path / "start/alerts.csv"
        file.write_text(file.read_text().replace(",non_finite,", ",non_finite,x,", 1))
    else:
        with sqlite3.connect(tmp_path / "start") as database:
            database.execute(
                "UPDATE payloads SET value = '{' WHERE rowid = "
                "(SELECT min(rowid) FROM payloads WHERE type = 'histogram')"
            )
    report = trainmon.convert(tmp_path / "start", tmp_path / "end", "jsonl")
    assert report.rejected == 0  # they are no rows
    told = [str(rejection) for rejection in report.rejections]
    assert sum("its value is no histogram" in text for text in told) == 1, told
    assert len(told) == (2 if start == "csv" else 1)


MSPROBE = """vpp_stage,name,step,micro_step,norm,nans,shape,dtype
0,fc.input,4,0,3.5,0,"[5, 4]",torch.float32
0,"a,b.output",4,1,nan,2,[3],torch.bfloat16
1,fc.input,5,0,inf,0,"[5, 4]",torch.float32
1,dist.sum,5,0,0.5,0,nan,nan
"""


@pytest.mark.parametrize("to", ["csv", "jsonl", "sqlite"])
def test_msprobe_to_ours(tmp_path, to):
    directory = tmp_path / "in/Dec03_21-34-40-rank3-5f3a9c01"
    directory.mkdir(parents=True)
    (directory / "actv_0-9.csv").write_text(MSPROBE)
    out = tmp_path / "out"
    report = trainmon.convert(tmp_path / "in", out, to)
    assert (report.rows, report.written, report.kinds) == (4, 4, ["actv"])
    if to == "csv":
        frame = pd.read_csv(out / "rows.csv", float_precision="round_trip")
    elif to == "jsonl":
        frame = pd.DataFrame(
            [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
        )
        frame["norm"] = frame["norm"].astype(float)
    else:
        frame = pd.read_sql("SELECT * FROM stats", sqlite3.connect(out))
    assert frame["rank"].tolist() == [3] * 4 and frame["kind"].tolist() == ["actv"] * 4
    assert frame["name"].tolist() == ["fc.input", "a,b.output", "fc.input", "dist.sum"]
    assert frame["chunk"].tolist() == [0, 0, 1, 1] and frame["step"].tolist() == [4, 4, 5, 5]
    assert frame["micro_step"].tolist() == [0, 1, 0, 0] and frame["nans"].tolist() == [0, 2, 0, 0]
    assert frame["dtype"].tolist()[:3] == ["float32", "bfloat16", "float32"]
    shapes = frame["shape"].where(frame["shape"].notna(), "").tolist()
    assert shapes == ["[5,4]", "[3]", "[5,4]", ""]
    np.testing.assert_equal(frame["norm"].to_numpy(float), [3.5, math.nan, math.inf, 0.5])


def test_merged_values(run, tmp_path):  # noqa: F811
    wanted = trainmon.read_table(run, merged=True)
    trainmon.convert(run, tmp_path / "out", "csv", merged=True)
    frame = pd.read_csv(
        tmp_path / "out/rows.csv",
        keep_default_na=False,
        na_values=["nan"],
        float_precision="round_trip",
    )
    assert len(frame) == wanted.num_rows > 100
    for column in ("rank", "step", "name", "seq", "norm", "mean", "std", "count"):
        values = wanted[column]
        if values.dtype.kind == "f":
            np.testing.assert_array_equal(frame[column].to_numpy(float), values)
        else:
            assert frame[column].tolist() == values.tolist()


def write_log(out, tensors, steps):
    """A long log of tiny tensors, written by the monitor itself."""
    code = """
import sys, torch, trainmon
out, tensors, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(2)) for _ in range(tensors)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for p in model: p.grad = torch.randn(2)
mon = trainmon.watch(model, optimizer, kinds=["grad_reduced"], out=out, every=1,
                     overflow="block", allow_volume=True)
for step in range(steps): optimizer.step()
mon.stop()
"""
    subprocess.run(
        [sys.executable, "-c", code, out, str(tensors), str(steps)], check=True, capture_output=True
    )


def test_a_long_log_in_bounded_memory_with_a_bar(tmp_path):
    write_log(tmp_path / "run", 2000, 300)
    primary, secondary = pty.openpty()
    process = subprocess.Popen(
        [launch.command_line(), "convert", tmp_path / "run", "--to", "csv", "-o", tmp_path / "out"],
        stderr=secondary,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(secondary)
    shown, peak = b"", 0
    while True:
        ready, _, _ = select.select([primary], [], [], 0.005)
        peak = max(peak, peak_kb(process.pid))
        try:
            chunk = os.read(primary, 65536) if ready else None
        except OSError:  # nobody holds the other end any more
            break
        if chunk == b"":
            break
        shown += chunk or b""
    os.close(primary)
    assert process.wait() == 0
    with open(tmp_path / "out/rows.csv", "rb") as rows:
        assert sum(1 for _ in rows) == 600_001
    # The text alone is 0.12 GB; one segment and one batch of it are less than 80 MB.
    assert (tmp_path / "out/rows.csv").stat().st_size > 100e6
    assert 0 < peak / 1024 < 80, "MB"
    assert b"600,000 rows written" in shown
    if b"[" in shown.replace(b"\x1b[K", b""):  # a fast machine is done before there is a bar
        assert b"\r" in shown and b"%" in shown


def peak_kb(pid):
    """What /proc says of the program itself, not of the process it was forked from."""
    try:
        with open(f"/proc/{pid}/status") as status:
            lines = dict(line.split(":", 1) for line in status)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    is_it = lines["Name"].strip() == "trainmon"
    return int(lines["VmHWM"].split()[0]) if is_it and "VmHWM" in lines else 0


def test_no_bar_where_nobody_looks(run, tmp_path):  # noqa: F811
    done = subprocess.run(
        [launch.command_line(), "convert", run, "--to", "csv", "-o", tmp_path / "out"],
        capture_output=True,
    )
    assert done.returncode == 0 and b"\r" not in done.stderr and b"\x1b" not in done.stderr
    assert done.stdout == b"" and b"rows written" in done.stderr


@pytest.mark.parametrize("opens", [False, True])
@pytest.mark.parametrize("format", ["log", "csv", "sqlite"])
def test_a_rank_alone_is_as_it_is_among_all(tmp_path, format, opens):
    """Ranks 0 and 1 go through step 2 again, and begin step 3 if `opens`: it takes those of rank 2 out,
    asked for alone or not."""
    out = tmp_path / "run"
    sinks = ["log", "csv", "sqlite"]
    for ranks, first, steps in ((3, 0, 5), (2, 2, 1)):
        for number in range(ranks):
            rank = WrittenRank(out, number, ranks, sinks=sinks)
            rank.monitor.set_start_step(0, first)
            for window in range(steps):
                rank.observe(np.ones(3, np.float32), "grad_reduced", "w", window)
                rank.end_step()
            if first and opens:
                rank.observe(np.ones(3, np.float32), "grad_reduced", "w", steps)
            rank.stop()
    frames = []
    for name, keys in (("alone", {"ranks": 2}), ("among", {}), ("all", {"all_restarts": True})):
        trainmon.convert(out, tmp_path / name, "csv", format=format, **keys)
        frame = pd.read_csv(tmp_path / name / "rows.csv")
        frame = frame[frame["rank"] == 2]
        frames.append(list(zip(frame.restart, frame.step)))
    alone, among, all_of_them = frames
    open_step = [] if opens else [(0, 3)]
    assert alone == among == [(0, 0), (0, 1), *open_step, (0, 4)]
    assert all_of_them == [(0, step) for step in range(5)]
