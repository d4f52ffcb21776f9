"""trainmon convert: values of every target against the log's table, pandas, json, sqlite3 and TensorBoard;
the account of rows; all or nothing."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import pathlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import launch
import trainmon
from written_run import WrittenRank

RANKS = 2
ALL_STATS = [
    *("norm", "min", "max", "absmax", "mean", "std"),
    *("zeros", "nans", "infs", "subnormals", "count"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two ranks, accumulation, a skipped step, NaN and Inf, odd names; rank 1 started again from 0."""
    out = tmp_path_factory.mktemp("runs") / "run"
    for rank, arguments in ((0, [5]), (1, [5]), (1, [3])):
        process = launch.start("convert_run.py", out, *arguments, rank=rank, ranks=RANKS)
        ended = launch.finish(process, 100, rank)
        assert ended.code == 0, ended.err
    return out


@pytest.fixture(scope="module")
def table(run):
    return trainmon.read_table(run)


def cli(*arguments, **keys):
    return subprocess.run(
        [launch.command_line(), *map(str, arguments)], capture_output=True, text=True, **keys
    )


def parse(value, like):
    if like.dtype.kind in "iu":
        return int(value)
    return float(value) if like.dtype.kind == "f" else value


def same(found, wanted):
    if isinstance(wanted, float) and math.isnan(wanted):
        return found is None or math.isnan(found)
    return found == wanted


def assert_is_table(rows, table):
    """rows: dicts with the columns of the table, in any order."""
    by_key = {(r["rank"], r["restart"], r["seq"]): r for r in rows}
    assert len(by_key) == len(rows) == table.num_rows > 300
    for column in table:
        values = table[column]
        for rank, restart, seq, value in zip(
            table["rank"], table["restart"], table["seq"], values, strict=True
        ):
            found = by_key[rank, restart, seq][column]
            value = value.item() if hasattr(value, "item") else value
            assert same(found, value), (column, rank, seq, found, value)


def csv_rows(directory, table):
    text = (directory / "rows.csv").read_bytes().decode()
    head, *lines = csv.reader(io.StringIO(text, newline=""))
    return [{n: parse(v, table[n]) for n, v in zip(head, line, strict=True)} for line in lines]


def json_rows(directory, table):
    lines = [json.loads(line) for line in (directory / "rows.jsonl").read_text().splitlines()]
    return [{n: parse(v, table[n]) for n, v in line.items()} for line in lines]


def sqlite_rows(path, table):
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    cursor = database.execute("SELECT * FROM stats")
    names = [c[0] for c in cursor.description]
    return [dict(zip(names, line)) for line in cursor]


READERS = {"csv": csv_rows, "jsonl": json_rows, "sqlite": sqlite_rows}


def convert(source, out, to, **keys):
    report = trainmon.convert(source, out, to, **keys)
    assert report.rows == report.written + report.rejected + report.superseded + report.left_out
    return report


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("to", READERS)
@pytest.mark.parametrize("source", ["log", "csv", "sqlite"])
def test_every_value(run, table, tmp_path, source, to, threads):
    report = convert(run, tmp_path / "out", to, format=source, threads=threads)
    assert report.written == table.num_rows and report.rejected == 0
    assert_is_table(READERS[to](tmp_path / "out", table), table)
    assert os.listdir(tmp_path) == ["out"]


def test_the_run_has_what_it_should(table):
    assert set(table["rank"]) == {0, 1} and set(table["restart"]) == {0, 1}
    assert {"taken", "skipped"} <= set(table["fate"]) and any("\n" in n for n in table["name"])
    assert {p["kind"] for p in table.payloads} == {"stack", "update_ratio"}
    assert len(table.scalars["value"]) > 0
    assert np.isnan(table["norm"]).any() and np.isinf(table["norm"]).any()
    assert {"grad_unreduced", "actv", "exp_avg"} <= set(table["kind"])


@pytest.mark.parametrize("first", ["csv", "sqlite"])
def test_round_trip(run, table, tmp_path, first):
    second = {"csv": "sqlite", "sqlite": "csv"}[first]
    convert(run, tmp_path / "a", first)
    convert(tmp_path / "a", tmp_path / "b", second)
    convert(tmp_path / "b", tmp_path / "c", first)
    assert_is_table(READERS[second](tmp_path / "b", table), table)
    assert_is_table(READERS[first](tmp_path / "c", table), table)
    if first == "csv":
        assert (tmp_path / "a/rows.csv").read_bytes() == (tmp_path / "c/rows.csv").read_bytes()


@pytest.mark.parametrize("to", ["csv", "jsonl"])
def test_threads_change_nothing(run, tmp_path, to):
    for threads in (1, 8):
        convert(run, tmp_path / str(threads), to, threads=threads)
    for file in (tmp_path / "1").iterdir():
        assert file.read_bytes() == (tmp_path / "8" / file.name).read_bytes()


@pytest.mark.parametrize("stats", [["norm", "mean"], None])
def test_tensorboard(run, tmp_path, stats):
    convert(run, tmp_path / "tb", "tensorboard", kinds="weights", stats=stats)
    weights = trainmon.read_table(run, kinds="weights", stats=stats)
    for rank in range(RANKS):
        reader = EventAccumulator(str(tmp_path / "tb" / f"rank_{rank}"), {"scalars": 0})
        reader.Reload()
        found = {
            (tag, event.step, "nan" if math.isnan(event.value) else event.value)
            for tag in reader.Tags()["scalars"]
            if not tag.startswith(("run/", "declared/"))
            for event in reader.Scalars(tag)
        }
        wanted = set()
        for i in np.flatnonzero(weights["rank"] == rank):
            for stat in stats or ALL_STATS:
                value = float(np.float32(weights[stat][i]))
                tag = f"{stat}/{weights['kind'][i]}/{weights['name'][i]}"
                if weights["micro_step"][i]:
                    tag += f":micro{weights['micro_step'][i]}"
                wanted.add((tag, weights["step"][i], "nan" if math.isnan(value) else value))
        assert found == wanted and found


@pytest.mark.parametrize("source", ["log", "csv", "converted"])
def test_msprobe_db_of_a_run(run, tmp_path, source):
    """Weights have one row for each name and step: their values, by name."""
    place = run
    if source == "converted":  # both ranks in one file
        convert(run, tmp_path / "rows", "csv")
        place = tmp_path / "rows"
    convert(place, tmp_path / "a.db", "msprobe_db", format="csv" if source != "log" else "log")
    weights = trainmon.read_table(run, kinds="param_updated", stats=["norm"])
    wanted = {}
    for i in range(weights.num_rows):
        if weights["fate"][i] != "skipped":
            key = (weights["rank"][i], weights["step"][i], weights["name"][i])
            wanted[key] = None if math.isnan(weights["norm"][i]) else weights["norm"][i]
    database = sqlite3.connect(tmp_path / "a.db")
    ((number,),) = database.execute(
        "SELECT metric_id FROM monitoring_metrics WHERE metric_name = 'param_updated'"
    ).fetchall()
    found = {
        tuple(key): norm
        for *key, norm in database.execute(
            f"SELECT rank, step, target_name, norm FROM metric_{number}_step_0_499"
            " JOIN monitoring_targets USING (target_id)"
        )
    }
    assert found == wanted and wanted


def test_selection(run, tmp_path):
    keys = {"kinds": "grads", "ranks": 1, "steps": (1, 3), "exclude": "*bias"}
    convert(run, tmp_path / "out", "csv", **keys, stats=["norm"])
    table = trainmon.read_table(run, **keys, stats=["norm"])
    rows = csv_rows(tmp_path / "out", table)
    key = lambda r: (r["restart"], r["seq"])  # noqa: E731
    wanted = sorted(zip(table["restart"], table["seq"], table["name"]))
    assert sorted((*key(r), r["name"]) for r in rows) == wanted and wanted


@pytest.mark.parametrize("to", READERS)
def test_merged(run, tmp_path, to):
    convert(run, tmp_path / "out", to, merged=True, format="log")
    table = trainmon.read_table(run, merged=True)
    assert len(READERS[to](tmp_path / "out", table)) == table.num_rows > 0


def test_rejected_rows_are_listed_by_line(run, table, tmp_path):
    convert(run, tmp_path / "a", "csv")
    path = tmp_path / "a" / "rows.csv"
    before = path.read_bytes().count(b"\n")
    with path.open("a") as file:
        file.write("0,0,short\n")
        file.write('0,0,"never closed,0\n')
        file.write("0,0,cut")
    done = cli("convert", tmp_path / "a", "--to", "jsonl", "-o", tmp_path / "b", "--json")
    assert done.returncode == 3, done.stderr
    report = json.loads(done.stdout)
    assert [(r["file"], r["line"]) for r in report["rejections"]] == [
        (str(path), before + i) for i in (1, 2, 3)
    ]
    assert report["rows"] == report["written"] + report["rejected"] + report["superseded"]
    assert (report["written"], report["rejected"]) == (table.num_rows, 3)
    assert f"{path} line {before + 1}" in done.stderr
    assert_is_table(json_rows(tmp_path / "b", table), table)


def test_existing_output(run, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "rows.csv").write_text("kept")
    done = cli("convert", run, "--to", "csv", "-o", out)
    assert done.returncode != 0 and "exists already" in done.stderr
    assert (out / "rows.csv").read_text() == "kept"
    assert cli("convert", run, "--to", "csv", "-o", out, "--overwrite").returncode == 0
    assert len((out / "rows.csv").read_text()) > 1000
    assert os.listdir(tmp_path) == ["out"]


def test_the_source_is_never_replaced(run, tmp_path):
    for out in (run, run.parent):
        done = cli("convert", run, "--to", "csv", "-o", out, "--overwrite")
        assert done.returncode != 0 and "take the place" in done.stderr
    assert trainmon.read_table(run).num_rows


@pytest.mark.parametrize("to", ["csv", "jsonl", "tensorboard"])
def test_another_run_is_never_replaced_nor_what_only_looks_like_an_output(run, tmp_path, to):
    shutil.copytree(run, tmp_path / "other run")
    mine = ["rank_notes/thesis.txt", "ranking.md", "rows.mine.csv", "rank_00000/log.txt"]
    for number, name in enumerate(mine):
        file = tmp_path / f"mine {number}" / name
        file.parent.mkdir(parents=True)
        file.write_text("precious")
    for out in sorted(tmp_path.iterdir()):
        before = sorted(out.rglob("*"))
        done = cli("convert", run, "--to", to, "-o", out, "--overwrite")
        assert done.returncode == 2 and "which no conversion wrote" in done.stderr, out
        assert sorted(out.rglob("*")) == before


def test_databases_of_others_are_never_replaced(run, tmp_path):
    mine = tmp_path / "mlflow.db"
    with sqlite3.connect(mine) as database:
        database.execute("create table runs (a)")
    before = mine.read_bytes()
    for to in ("sqlite", "msprobe_db", "msprobe_trend"):
        done = cli("convert", run, "--to", to, "-o", mine, "--overwrite")
        assert done.returncode == 2 and "no database of a conversion" in done.stderr
        assert mine.read_bytes() == before


@pytest.mark.parametrize(
    "to", ["csv", "jsonl", "tensorboard", "sqlite", "msprobe_db", "msprobe_trend"]
)
def test_every_output_may_be_replaced(run, tmp_path, to):
    for again in ([], ["--overwrite"], ["--overwrite"]):
        done = cli("convert", run, "--to", to, "-o", tmp_path / "out", *again)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def large(run, tmp_path_factory):
    """rows.csv of some 40 MB."""
    folder = tmp_path_factory.mktemp("large")
    trainmon.convert(run, folder / "rows", "csv")
    path = folder / "rows" / "rows.csv"
    text = path.read_bytes()
    head = text.index(b"\n") + 1
    with path.open("ab") as file:
        for _ in range(40_000_000 // len(text)):
            file.write(text[head:])
    return folder / "rows"


def test_interrupt_leaves_nothing(large, tmp_path):
    command = [launch.command_line(), "convert", large, "--to", "sqlite", "-o", tmp_path / "a.db"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 20
    while not list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130 and not list(tmp_path.iterdir())


@pytest.mark.parametrize("to", ["csv", "sqlite"])
def test_kill_leaves_no_output_or_a_whole_one(run, table, tmp_path, to):
    """Killed at moments spread over what a conversion takes."""
    command = [launch.command_line(), "convert", run, "--quiet", "--to", to, "-o", tmp_path / "o"]
    begin = time.monotonic()
    subprocess.run(command, check=True)
    whole = time.monotonic() - begin
    for i in range(15):
        subprocess.run(["rm", "-rf", tmp_path / "o"], check=True)
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        time.sleep(whole * i / 12)
        process.kill()
        process.wait()
        if (tmp_path / "o").exists():
            assert len(READERS[to](tmp_path / "o", table)) == table.num_rows
    subprocess.run([*command, "--overwrite"], check=True)
    assert os.listdir(tmp_path) == ["o"]  # what the killed ones left is gone


def test_memory_is_bounded(large, tmp_path):
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stderr=-3);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)"
    )
    command = [launch.command_line(), "convert", large, "--to", "jsonl", "-o", tmp_path / "o"]
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    megabytes = pathlib.Path(large / "rows.csv").stat().st_size / 1e6
    assert int(done.stdout) < megabytes  # it never holds the file


def test_a_limit_of_file_size_is_an_error(large, tmp_path):
    command = f"ulimit -f 100; {launch.command_line()} convert {large} --to jsonl -o {tmp_path}/o"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode in (1, 2, 3) and "File too large" in done.stderr, done
    assert os.listdir(tmp_path) == []


def test_json_keeps_the_sign_of_zero(tmp_path):
    rank = WrittenRank(tmp_path / "run")
    for step, value in enumerate((-0.0, 0.0, -1.0)):
        rank.observe(np.zeros(1), "grad_reduced", "a", step)
        rank.monitor.add_scalar("loss", value)
        rank.end_step()
    rank.stop()
    convert(tmp_path / "run", tmp_path / "out", "jsonl")
    lines = (tmp_path / "out" / "scalars.jsonl").read_text().splitlines()
    values = [json.loads(line)["value"] for line in lines]
    assert [str(float(one)) for one in values] == ["-0.0", "0.0", "-1.0"]


@pytest.mark.parametrize("to", ["msprobe_db", "msprobe_trend"])
def test_tables_of_one_value_a_step(run, tmp_path, to):
    with pytest.raises(
        ValueError, match=f"all_restarts is not for {to}: its tables have one value"
    ):
        convert(run, tmp_path / "a.db", to, all_restarts=True)
    twice = tmp_path / "run"
    shutil.copytree(run, twice)
    for log in twice.rglob("*.tmlog"):  # frames again behind themselves: a damaged log
        content = log.read_bytes()
        log.write_bytes(content + content[content.index(b"tmFR") :])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert convert(twice, tmp_path / "b.db", to).rows > 0


def test_a_name_of_a_file_that_claims_any_steps_makes_no_tables_without_end(tmp_path):
    folder = tmp_path / "dump" / "Dec03_21-34-40-rank0-abc"
    folder.mkdir(parents=True)
    last = 2**63 - 1
    rows = "".join(f"0,w,{step},0.5\n" for step in (0, 700, last))
    text = "vpp_stage,name,step,norm\n" + rows
    (folder / f"grad_reduced_0-{last}.csv").write_text(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        done = convert(tmp_path / "dump", tmp_path / "a.db", "msprobe_db")
    assert done.rows == 3 and any("too many" in remark for remark in done.remarks), done
    database = sqlite3.connect(tmp_path / "a.db")
    names = {
        name
        for (name,) in database.execute(
            "SELECT name FROM sqlite_master WHERE name LIKE 'metric_1%'"
        )
    }
    assert names == {
        "metric_1_step_0_499",
        "metric_1_step_500_999",
        f"metric_1_step_{last // 500 * 500}_{last}",
    }
