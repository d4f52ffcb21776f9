"""flush(): the files hold what was handed over when it says so. They are read by sqlite3, csv,
TensorBoard and a decoder of the log that shares no code with trainmon."""

import csv
import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import log_decoder
import trainmon

SINKS = ["log", "csv", "sqlite", "tensorboard"]
INNER = "rank_00000/restart_0000"


def watched(out, **options):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"flush_seconds": 3600.0, **options}
    return model, optimizer, trainmon.watch(model, optimizer, out=out, **options)


def step(model, optimizer):
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def rows_in(run):
    """Of each sink, without settling the monitor at work."""
    inner = run / INNER
    log = 0
    for path in sorted(inner.glob("*.tmlog")):
        log += sum(len(batch["rows"]) for batch in log_decoder.decode(path.read_bytes()).batches)
    with (inner / "rows-000000.csv").open(newline="") as file:
        of_csv = len(list(csv.DictReader(file)))
    with sqlite3.connect(f"file:{inner / 'stats.db'}?mode=ro", uri=True) as database:
        (of_sqlite,) = database.execute("SELECT count(*) FROM stats").fetchone()
    events = EventAccumulator(str(next((run / "tensorboard").glob("rank_*"))))
    events.Reload()
    (tag,) = [t for t in events.Tags()["scalars"] if t.startswith("norm/") and "weight" in t]
    return log, of_csv, of_sqlite, len(events.Scalars(tag))


def test_after_a_flush_every_file_has_every_step(tmp_path):
    model, optimizer, mon = watched(tmp_path / "run", sinks=SINKS)
    for steps in range(1, 4):
        step(model, optimizer)
        mon.log(loss=1.0)
        assert mon.flush(60)
        rows = 2 * steps
        # A step is a point of a curve when the next one has begun.
        assert rows_in(tmp_path / "run")[:3] == (rows, rows, rows)
    mon.pause()
    step(model, optimizer)
    assert mon.flush()  # while paused
    assert rows_in(tmp_path / "run")[0] == 6
    mon.stop()
    assert mon.flush(0) and mon.flush()
    assert rows_in(tmp_path / "run") == (6, 6, 6, 3)


def test_values_of_a_device_are_fetched(tmp_path):
    model, optimizer, mon = watched(tmp_path / "run", backend="ops")
    step(model, optimizer)
    assert mon.flush(60)
    (path,) = (tmp_path / "run" / INNER).glob("*.tmlog")
    rows = [row for batch in log_decoder.decode(path.read_bytes()).batches for row in batch["rows"]]
    assert sorted(row["count"] for row in rows) == [2, 6]
    mon.stop()


@pytest.mark.parametrize("timeout", ["x", None, -1, math.nan, 1e300])
def test_what_is_no_time_raises_nothing(tmp_path, timeout, caplog):
    model, optimizer, mon = watched(tmp_path / "run")
    step(model, optimizer)
    told = mon.flush(timeout)
    assert told is (timeout == 1e300)
    assert ("timeout must be a number" in caplog.text) == (not told)
    mon.stop()


def test_a_sink_that_cannot_write_is_told(tmp_path):
    """The database is locked by another program."""
    model, optimizer, mon = watched(tmp_path / "run", sinks=["sqlite"])
    step(model, optimizer)
    assert mon.flush(60)
    other = sqlite3.connect(tmp_path / "run" / INNER / "stats.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    step(model, optimizer)
    assert not mon.flush(1.0)
    other.execute("ROLLBACK")
    step(model, optimizer)
    assert mon.flush(60)
    (rows,) = other.execute("SELECT count(*) FROM stats").fetchone()
    other.close()
    health = mon.stop()
    assert rows == health["sinks"][0]["rows_written"]


def test_several_threads_and_a_forked_child(tmp_path):
    model, optimizer, mon = watched(tmp_path / "run")
    told = []
    threads = [threading.Thread(target=lambda: told.append(mon.flush(60))) for _ in range(8)]
    for thread in threads:
        step(model, optimizer)
        thread.start()
    for thread in threads:
        thread.join()
    assert told == [True] * 8
    child = os.fork()
    if child == 0:
        os._exit(0 if mon.flush(5) is False else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    mon.stop()


INTERRUPTED = """
import sys, torch, trainmon
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mon = trainmon.watch(model, optimizer, out=sys.argv[1])
print("ready", flush=True)
try:
    while True:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        mon.flush(60.0)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(mon.stop()["sinks"][0]["rows_dropped"], flush=True)
"""


def test_ctrl_c_ends_the_wait_and_reaches_the_caller(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path / "run")],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert out.splitlines() == ["interrupted", "{}"] and process.returncode == 0
