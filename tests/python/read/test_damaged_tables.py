"""Tables of a run changed by hand, as somebody with an editor or a broken tool leaves them: what is lost
or cannot be what it says is named, counted once, and makes `convert` exit with 3."""

import json
import os
import sqlite3
import subprocess

import numpy as np
import pytest

from launch import command_line as program
from written_run import WrittenRank

ROWS = 8


@pytest.fixture
def rank(tmp_path):
    rank = WrittenRank(tmp_path / "run", sinks=["log", "csv", "sqlite"])
    for step in range(4):
        rank.observe(np.arange(4, dtype=np.float32), "grad_reduced", "w", step)
        rank.observe(np.array([1.0, np.nan], np.float32), "grad_reduced", "b", step)
        rank.monitor.add_scalar("loss", 0.5)
        rank.end_step()
    rank.stop()
    return rank


def change(rank, *statements):
    with sqlite3.connect(rank.directory / "stats.db") as database:
        for statement in statements:
            assert database.execute(statement).rowcount > 0
    database.close()


def convert(rank, source):
    run = rank.directory.parents[1]
    out = run.with_name("out")
    done = subprocess.run(
        [program(), "convert", run, "--from", source, "--to", "csv", "-o", out, "--json"],
        capture_output=True, text=True, timeout=60, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["rows"] == report["written"] + report["rejected"] + report["superseded"]
    return done.returncode, report, [one["what"] for one in report["rejections"]]


@pytest.mark.parametrize("source", ["log", "csv", "sqlite"])
def test_the_sound_run(rank, source):
    code, report, said = convert(rank, source)
    assert (code, report["written"], report["rejected"], said) == (0, ROWS, 0, [])


def test_rows_that_were_deleted_from_a_database_are_missed(rank):
    change(rank, "DELETE FROM rows WHERE seq > 7")
    code, report, said = convert(rank, "sqlite")
    assert (code, report["written"], report["rejected"]) == (3, 5, 3)
    assert said == ["health.json says 8 rows were written, stats.db holds 5"]


DAMAGE = {
    "a row without a series": (
        "UPDATE rows SET series = NULL WHERE seq = 4",
        "rows whose series is not in the table series",
        1,
    ),
    "an alert of an unknown series": (
        "UPDATE alerts SET series = 77 WHERE seq = 2",
        "alert non_finite with seq 2: its series is not in the table series",
        0,
    ),
    "a scalar that is text": (
        "UPDATE scalars SET value = 'abc' WHERE window = 2",
        "scalar loss of step 2: column value is no number",
        0,
    ),
    "a scalar whose rank is text": (
        "UPDATE scalars SET rank = 'x' WHERE window = 2",
        "scalar loss of step 2: column rank is no whole number",
        0,
    ),
    "a dtype that is none": (
        "UPDATE series SET dtype = 'flnat32' WHERE name = 'w'",
        "row with seq 1: dtype 'flnat32' is none",
        4,
    ),
    "an outcome that is none": (
        "UPDATE outcomes SET fate = 'tuken' WHERE window = 1",
        "outcome of window 1: fate 'tuken' is none",
        2,
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_what_a_database_cannot_mean_is_named(rank, what):
    statement, says, rejected = DAMAGE[what]
    change(rank, statement)
    code, report, said = convert(rank, "sqlite")
    assert code == 3 and said[0] == says
    assert (report["rejected"], report["written"]) == (rejected, ROWS - rejected)


COUNTS = {
    "1.5": "is no whole number",
    "-3": "is negative",
    "9007199254740993": "is too large",  # 2^53 + 1, which no float64 holds
    "9223372036854775808": "is too large",
    "1e300": "is too large",
}


@pytest.mark.parametrize("source", ["csv", "sqlite"])
@pytest.mark.parametrize("count", COUNTS)
def test_a_count_is_a_whole_number(rank, source, count):
    if source == "sqlite":
        change(rank, f"UPDATE rows SET subnormals = {count} WHERE seq = 4")
    else:
        change_cell(rank, 3, "subnormals", count)
    code, report, said = convert(rank, source)
    assert (code, report["written"], report["rejected"]) == (3, ROWS - 1, 1)
    assert "subnormals " in said[0] and said[0].endswith(COUNTS[count])


@pytest.mark.parametrize("source", ["csv", "sqlite"])
@pytest.mark.parametrize("count", ["9007199254740992", "2.0", "1e3"])
def test_a_count_keeps_its_digits(rank, source, count):
    if source == "sqlite":
        change(rank, f"UPDATE rows SET subnormals = {count} WHERE seq = 4")
    else:
        change_cell(rank, 3, "subnormals", count)
    assert convert(rank, source)[0] == 0
    head, *lines = read_lines(rank.directory.parents[2] / "out" / "rows.csv")
    (found,) = [line for line in lines if line[head.index("seq")] == "4"]
    assert found[head.index("subnormals")] == str(int(float(count)))


def read_lines(file):
    return [line.split(",") for line in file.read_text().splitlines()]


def change_cell(rank, line, column, text):
    (file,) = rank.directory.glob("rows-*.csv")
    lines = read_lines(file)
    lines[line][lines[0].index(column)] = text
    file.write_text("".join(",".join(line) + "\n" for line in lines))


def test_a_rejected_line_counts_once(rank):
    (file,) = rank.directory.glob("rows-*.csv")
    lines = file.read_text().splitlines(keepends=True)
    lines[4] = "0,0,short\n"
    del lines[7]
    file.write_text("".join(lines))
    code, report, said = convert(rank, "csv")
    assert (code, report["written"], report["rejected"]) == (3, ROWS - 2, 2)
    assert [text for text in said if "health.json" in text] == [
        "health.json says 8 rows were written, the files hold 7"
    ]


def test_rows_that_a_queue_dropped_excuse_no_others(rank):
    (file,) = rank.directory.glob("rows-*.csv")
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    with open(rank.directory / "gaps.csv", "a") as gaps:
        gaps.write("queue_full,5,20,24\n")
    code, report, said = convert(rank, "csv")
    assert (code, report["rejected"]) == (3, 1)
    assert said == ["health.json says 8 rows were written, the files hold 7"]
