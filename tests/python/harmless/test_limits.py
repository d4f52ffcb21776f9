"""Names without end: memory and files stay bounded, what is left out is counted, training goes on.
The files are read by csv, sqlite3 and TensorBoard."""

import csv
import json
import sqlite3
import subprocess

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import launch
import trainmon

INNER = "rank_00000/restart_0000"
MOST = 500
NAMES = 100_000


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    out = tmp_path_factory.mktemp("endless") / "run"
    process = launch.start("endless_names.py", out, MOST, NAMES)
    told, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return out, json.loads(told), said


def test_memory_is_flat_and_every_row_is_accounted_for(endless):
    _, told, said = endless
    assert told["grown"] < 8 << 20
    health = told["health"]
    for sink in health["sinks"]:
        assert list(sink["rows_dropped"]) == ["max_series"]
        dropped = sink["rows_dropped"]["max_series"]
        assert health["rows_produced"] == sink["rows_written"] + dropped
    assert health["scalars_dropped"] == {"max_scalars": NAMES - (MOST - 1)}
    assert health["parts_off"] == {} and health["errors"] == 0
    assert said.count("max_series = 500 allows") == said.count("max_scalars = 500 allows") == 1
    assert f"{NAMES - (MOST - 1)} logged values dropped (max_scalars)" in said


def test_every_sink_has_what_was_within_the_limits(endless):
    run, told, _ = endless
    wanted = {"loss"} | {f"loss_{i}" for i in range(MOST - 1)}
    written = told["health"]["sinks"][0]["rows_written"]
    with pytest.warns(RuntimeWarning, match="max_series"):
        table = trainmon.read_table(run)
    assert set(table.scalars["name"]) == wanted
    assert len(table["step"]) == written
    inner = run / INNER
    with (inner / "rows-000000.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == written
    assert len({(row["kind"], row["name"]) for row in rows}) <= MOST
    with (inner / "scalars.csv").open(newline="") as file:
        assert {row["name"] for row in csv.DictReader(file)} == wanted
    with sqlite3.connect(f"file:{inner / 'stats.db'}?mode=ro", uri=True) as database:
        assert database.execute("SELECT count(*) FROM stats").fetchone() == (written,)
        names = database.execute("SELECT DISTINCT name FROM scalars").fetchall()
    assert {name for (name,) in names} == wanted
    events = EventAccumulator(str(run / "tensorboard" / "rank_0"))
    events.Reload()
    assert len(events.Tags()["scalars"]) <= 2000


def test_doctor_names_the_limits(endless):
    run, *_ = endless
    done = subprocess.run(
        [launch.command_line(), "doctor", str(run)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 3
    assert "99,501 logged values dropped (max_scalars)" in done.stdout
    assert "rows dropped (max_series)" in done.stdout


def test_long_names_stay_different(tmp_path, capfd):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mon = trainmon.watch(model, optimizer, out=tmp_path / "run")
    model(torch.ones(1, 3)).sum().backward()
    mon.log(**{"x" * 1_000_000 + end: float(end) for end in "123"})
    optimizer.step()
    mon.stop()
    scalars = trainmon.read_table(tmp_path / "run").scalars
    assert sorted(scalars["value"]) == [1.0, 2.0, 3.0]
    assert len(set(scalars["name"])) == 3
    assert {len(name) for name in scalars["name"]} == {8192}
    said = capfd.readouterr().err
    assert said.count("is cut: names have at most 8,192 bytes") == 1
