# A record that is not complete is no all-clear: every reader says why and exits with 3.
import json
import math
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
import torch

import launch
import trainmon
from launch import command_line as program
from written_run import WrittenRank

GOOD = np.ones(2, np.float32)
BAD = np.array([1.0, math.nan], np.float32)


def call(*arguments):
    done = subprocess.run(
        [program(), *map(os.fspath, arguments)], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def every_reader_says(run, what):
    for command in (["first-bad", run], ["top", run], ["show", run], ["tail", run],
                    ["query", run, "SELECT 1"], ["compare", run, run], ["anomalies", run]):  # fmt: skip
        code, out, err = call(*command)
        if command[0] == "compare" and code == 2:
            continue  # nothing to compare
        assert code == 3 and what in err, (command, code, err)
    for command in ("convert", "merge"):
        out = run.with_name(command)
        code, _, err = call(command, run, "--to", "csv", "-o", out)
        assert code == 3 and what in err and out.is_dir(), (command, code, err)
    code, _, err = call("convert", run, "--to", "parquet", "-o", run.with_name("parquet"))
    assert what in err and (code == 3 or "no row matches" in err)
    code, out, _ = call("doctor", run)
    assert code == 3 and what in out and "\nin order:" not in out
    with pytest.warns(RuntimeWarning, match="incomplete"):
        report = trainmon.convert(run, run.with_name("jsonl"), "jsonl")
    assert what in report.incomplete[0]
    with pytest.warns(RuntimeWarning, match="incomplete"):
        assert trainmon.first_bad(run) is None
    with pytest.warns(RuntimeWarning, match="incomplete"):
        assert what in trainmon.read_table(run).incomplete[0]


def test_a_second_folder_of_a_rank_is_not_read(tmp_path):
    run = tmp_path / "run"
    rank = WrittenRank(run)
    rank.observe(GOOD, "grad_reduced", "w", 0)
    rank.end_step()
    rank.stop()
    shutil.copytree(run / "rank_00000", run / "rank_0")
    for command in ("first-bad", "show", "diagnose", "doctor"):
        code, out, err = call(command, run)
        assert code == 3 and re.search("rank_0:? at byte 0: File exists", out + err), command
    with pytest.warns(RuntimeWarning, match="File exists"):
        assert len(trainmon.read(run)) == 1
    shutil.rmtree(run / "rank_00000")
    assert len(trainmon.read(run)) == 1


def test_an_empty_run(tmp_path, capfd):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainmon.watch(model, optimizer, out=tmp_path / "run").stop()
    end = capfd.readouterr().err.splitlines()[-1]
    assert "nothing found" not in end and "; nothing was recorded; next: trainmon doctor " in end
    every_reader_says(tmp_path / "run", "nothing was recorded")


KILLED = """
import sys, os, signal, numpy as np
from written_run import WrittenRank
rank = WrittenRank(sys.argv[1], *map(int, sys.argv[3:]), sinks=["log", "csv", "sqlite"])
for step in range(8):
    rank.observe(np.array([1.0, float("nan") if step == int(sys.argv[2]) else 1.0], np.float32),
                 "grad_reduced", "w", step)
    rank.end_step()
assert rank.monitor.settle(30)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(run, bad_at=-1, rank=0, world_size=1):
    here = os.fspath(launch.SHARED)
    words = map(str, (bad_at, rank, world_size))
    done = subprocess.run(
        [sys.executable, "-c", KILLED, run, *words], env={**os.environ, "PYTHONPATH": here}
    )
    assert done.returncode == -signal.SIGKILL


def start_again(run, step, **config):
    """Another start, of one step."""
    rank = WrittenRank(run, **config)
    rank.observe(GOOD, "grad_reduced", "w", step)
    rank.end_step()
    rank.stop()


def test_a_killed_rank(tmp_path):
    run = tmp_path / "run"
    killed(run)
    every_reader_says(run, "its process is gone and did not stop in order")
    _, out, _ = call("doctor", run)
    assert "its last record is of step 7, 20" in out
    (rank,) = json.loads(call("doctor", run, "--json")[1])["ranks"]
    assert (rank["state"], rank["last_step"]) == ("killed", 7) and rank["last_time_ns"] > 0


@pytest.mark.parametrize("source", ["csv", "sqlite"])
def test_files_of_other_sinks_tell_of_the_kill_too(source, tmp_path):
    run = tmp_path / "run"
    killed(run)
    code, _, err = call("convert", run, "--from", source, "--to", "jsonl", "-o", tmp_path / "out")
    assert code == 3 and "rank 0: its process is gone and did not stop in order" in err
    start_again(run, 8, sinks=["log", "csv", "sqlite"])
    code, _, err = call("convert", run, "--from", source, "--to", "jsonl", "-o", tmp_path / "new")
    assert code == 0 and "did not stop" not in err, "a kill that another start followed is no news"


def test_gaps_of_a_database_that_stands_alone_are_said(tmp_path):
    rank = WrittenRank(tmp_path / "run", sinks=["sqlite"])
    rank.observe(GOOD, "grad_reduced", "w", 0)
    rank.end_step()
    rank.stop()
    file = tmp_path / "alone.db"
    shutil.copy(next((tmp_path / "run").rglob("stats.db")), file)
    with sqlite3.connect(file) as database:
        database.execute("INSERT INTO gaps VALUES (0, 0, 'no_space', 5, 1, 3)")
    database.close()
    code, _, err = call("convert", file, "--to", "jsonl", "-o", tmp_path / "out")
    assert code == 3 and "rank 0: 5 rows were dropped (no_space)" in err


def test_a_finding_stands_whatever_is_missing(tmp_path):
    killed(tmp_path / "run", bad_at=3)
    code, out, err = call("first-bad", tmp_path / "run")
    assert code == 1 and "step 3" in out and "incomplete" in err


def test_a_killed_start_that_another_followed_is_no_news(tmp_path):
    run = tmp_path / "run"
    killed(run)
    start_again(run, 0)
    assert call("first-bad", run)[::2] == (0, "")


@pytest.mark.parametrize("change", ["delete", "empty"])
def test_the_log_of_a_killed_start_that_is_gone_is_said(change, tmp_path):
    run = tmp_path / "run"
    killed(run, bad_at=3)
    start_again(run, 8)
    assert call("first-bad", run)[0] == 1
    (log,) = (run / "rank_00000" / "restart_0000").glob("*.tmlog")
    log.unlink() if change == "delete" else log.write_bytes(b"")
    for words in (["first-bad"], ["top"], ["show"], ["query"]):
        more = ["SELECT count(*) FROM stats"] if words == ["query"] else []
        code, _, err = call(*words, run, *more)
        # The finding had health.json written, with the rows until then.
        assert code == 3 and "rows were written, the log holds 0" in err, (words, code, err)


def test_a_killed_start_that_another_followed_is_named(tmp_path):
    run = tmp_path / "run"
    killed(run)
    start_again(run, 8)
    what = "restart 0 was killed (rank 0), and a newer one followed"
    code, out, err = call("first-bad", run)
    assert (code, err) == (0, "")
    assert out == f"no NaN and no infinity in 9 rows of restarts 0 to 1\n  {what}\n"
    code, out, _ = call("doctor", run)
    assert code == 0 and f"\n{what}\n" in out and "did not stop in order" not in out
    assert json.loads(call("doctor", run, "--json")[1])["killed"] == [what]
    killed(run)  # the newest one: now it is news
    code, out, _ = call("doctor", run)
    assert code == 3 and f"\n{what}\n" in out and "2 of 3 did not stop in order" in out


def test_a_rank_that_a_smaller_start_does_not_have_is_no_news(tmp_path):
    """Rank 1 was killed, and rank 0 goes on alone. With two ranks, rank 1 is missed."""
    run = tmp_path / "run"
    for size, code in ((1, 0), (2, 3)):
        killed(run, rank=0, world_size=2)
        killed(run, rank=1, world_size=2)
        start_again(run, 8, rank=0, world_size=size)
        for words in (["first-bad"], ["doctor"], ["tail"], ["show"]):
            assert call(*words, run)[0] == code, (words, size)
        shutil.rmtree(run)


def test_dropped_rows_and_why(tmp_path):
    rank = WrittenRank(tmp_path / "run")
    rank.observe(GOOD, "grad_reduced", "w", 0)
    rank.end_step()
    rank.stop()
    health = json.loads((rank.directory / "health.json").read_text())
    health["rows_produced"] += 1200
    health["sinks"][0]["rows_dropped"] = {"no_space": 1000, "stop_timeout": 200}
    (rank.directory / "health.json").write_text(json.dumps(health))
    every_reader_says(
        tmp_path / "run", "1,200 rows were dropped (no_space 1,000, stop_timeout 200)"
    )


@pytest.mark.parametrize("within_a_frame", [True, False])
def test_the_cut_end_of_a_closed_run(tmp_path, within_a_frame):
    rank = WrittenRank(tmp_path / "run")
    rank.observe(GOOD, "grad_reduced", "w", 0)
    rank.end_step()
    assert rank.monitor.settle(30)
    (segment,) = rank.directory.glob("*.tmlog")
    before = segment.stat().st_size
    rank.monitor.add_scalar("loss", 2.0)  # a frame without rows
    rank.stop()
    assert segment.stat().st_size > before
    assert call("first-bad", tmp_path / "run")[::2] == (0, "")
    os.truncate(segment, segment.stat().st_size - 3 if within_a_frame else before)
    what = "the end of its log is cut" if within_a_frame else "batches were written, the log holds"
    for command in ("first-bad", "top", "show"):
        code, _, err = call(command, tmp_path / "run")
        assert code == 3 and what in err
    code, out, _ = call("doctor", tmp_path / "run")
    assert code == 3 and what in out and "\nin order:" not in out
    code, _, err = call("tail", tmp_path / "run")
    assert code == 3 and "batches were written, the log ends with batch" in err


@pytest.mark.parametrize("is_gone", [False, True])
def test_tail_says_that_an_early_part_of_the_log_is_missing(tmp_path, is_gone):
    rank = WrittenRank(tmp_path / "run", segment_mb=0.001)
    for window in range(30):
        rank.observe(GOOD, "grad_reduced", "w", window)
        rank.end_step()
        assert rank.monitor.settle(30)
    rank.stop()
    segments = sorted(rank.directory.glob("*.tmlog"))
    assert len(segments) > 3
    assert call("tail", tmp_path / "run", "-n", "2")[::2] == (0, "")
    if is_gone:
        segments[1].unlink()
    else:
        os.truncate(segments[1], segments[1].stat().st_size - 3)
    code, out, err = call("tail", tmp_path / "run", "-n", "2")
    assert code == 3 and out != ""
    assert ("segment 1 is missing" if is_gone else "3 bytes are missing at the end") in err


def test_tail_says_a_missing_rank(tmp_path):
    rank = WrittenRank(tmp_path / "run", world_size=2)
    rank.observe(np.ones(2, np.float32), "grad_reduced", "w", 0)
    rank.end_step()
    rank.stop()
    code, _, err = call("tail", tmp_path / "run")
    assert code == 3 and "rank 1" in err
    assert call("tail", tmp_path / "run", "--rank", "0")[0] == 0


def test_without_a_log_the_stop_line_names_no_command_that_reads_one(tmp_path, capfd):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.watch(model, optimizer, out=tmp_path / "run", sinks=["csv"]):
        model(torch.full((1, 2), float("nan"))).sum().backward()
        optimizer.step()
    assert "; next: trainmon doctor " in capfd.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("kinds", [["grads"], ["grads", "grad_unreduced"]])
def test_a_scaler_that_skips_every_step_is_no_all_clear(tmp_path, kinds):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    out = tmp_path / "run"
    with trainmon.watch(model, optimizer, kinds=kinds, scaler=scaler, out=out):
        for step in range(30):
            x = torch.full((1, 2), float("nan") if step >= 5 else 1.0)
            scaler.scale(model(x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    code, _, err = call("first-bad", out)
    if len(kinds) == 1:
        assert code == 3 and "the loss scaler skipped 2" in err and "grad_unreduced" in err
    else:
        assert code == 1


def test_a_clock_that_is_set_forward_ends_no_run(tmp_path):
    """What the run said of its start is then long before the process seems to have begun."""
    rank = WrittenRank(tmp_path / "run")
    rank.observe(np.ones(4, np.float32), "grad_reduced", "w", 0)
    rank.end_step()
    assert rank.monitor.flush(30.0)
    # The writer thread may write run.json again at any time, so the words are changed in a copy.
    unready = shutil.ignore_patterns("*.tmp")
    copy = shutil.copytree(tmp_path / "run", tmp_path / "copy", ignore=unready)
    (file,) = copy.rglob("run.json")
    said = json.loads(file.read_text())
    file.write_text(json.dumps({**said, "started": "2001-01-01T00:00:00Z"}))
    command = [launch.command_line(), "doctor", copy, "--json"]
    (of_rank,) = json.loads(subprocess.run(command, capture_output=True).stdout)["ranks"]
    assert of_rank["state"] == "running"
    file.write_text(json.dumps({**said, "ticks": "1"}))
    (of_rank,) = json.loads(subprocess.run(command, capture_output=True).stdout)["ranks"]
    assert of_rank["state"] == "killed"
    rank.stop()
