"""What optimizers' groups say in every file but the log: live sinks, conversions, and read back from
them. Read by csv, sqlite3, TensorBoard and pandas; the oracle is what the training itself used."""

from __future__ import annotations

import csv
import json
import math
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys

import duckdb
import pandas as pd
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import trainmon
from test_declared import changes, program, train

SINKS = ["log", "csv", "sqlite", "tensorboard"]
INNER = "rank_00000/restart_0000"
COLUMNS = ["restart", "rank", "step", "optimizer", "param_group", "name", "value", "type", "window"]
FILES = {"csv": "*.csv", "sqlite": "stats.db", "log": "*.tmlog"}


def lr_at_2_decay_at_4(step, groups):
    if step == 2:
        groups[1]["lr"] /= 3.0
    if step == 4:
        groups[0]["weight_decay"] = 0.125
    if step == 5:
        groups[1].update(note="1", rate=math.nan, limit=-math.inf, text='a "b",\nc')


def two_optimizers(out, sinks):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    pair = [
        torch.optim.SGD(model[0].parameters(), lr=0.5),
        torch.optim.SGD(model[1].parameters(), lr=0.25),
    ]
    with trainmon.watch(model, pair, out=out, sinks=sinks):
        for step in range(4):
            pair[1].param_groups[0]["lr"] = 0.25 / (step + 1)
            model(torch.ones(2, 3)).pow(2).mean().backward()
            for optimizer in pair:
                optimizer.step()
                optimizer.zero_grad()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with all sinks, and the value of each step."""
    run = tmp_path_factory.mktemp("declared") / "run"
    used = train(run, change=lr_at_2_decay_at_4, monitor_options={"sinks": SINKS})
    return run, used


@pytest.fixture(scope="module")
def run(trained):
    return trained[0]


def lines_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def history(lines, group, name):
    return [
        (int(line["step"]), float(line["value"]))
        for line in lines
        if (int(line["param_group"]), line["name"]) == (group, name)
    ]


def convert(source, out, to, *more, code=0):
    program("convert", source, "--to", to, "-o", out, *more, code=code)
    return out


def told(source, to_directory, *more, code=0):
    """The lines of declared.jsonl that a conversion of this source gives; none where there is none."""
    out = convert(source, to_directory, "jsonl", *more, code=code)
    file = out / "declared.jsonl"
    return [json.loads(line) for line in file.open()] if file.exists() else []


def only(run, format, place):
    """A copy in which the log and all sinks but one are not there."""
    kept = shutil.copytree(run, place)
    for other, pattern in FILES.items():
        if other != format:
            for file in kept.glob(f"rank_*/restart_*/{pattern}"):
                file.unlink()
    return kept


def points(directory):
    events = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(p.step, p.value) for p in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
        if tag.startswith("declared/")
    }


def as_text(found):
    return {tag: [(step, str(value)) for step, value in list_] for tag, list_ in found.items()}


def shown(source, *more):
    return json.loads(program("--json", "show", source, "--declared", "--count", "0", *more))


def test_the_live_csv_is_what_the_training_used(trained, tmp_path):
    run, used = trained
    live = run / INNER / "declared.csv"
    lines = lines_of(live)
    assert list(lines[0]) == COLUMNS
    for (group, name), values in used.items():
        assert history(lines, group, name) == changes(values)
    late = {line["name"]: (line["value"], line["type"]) for line in lines if line["step"] == "5"}
    assert late == {
        "note": ("1", "text"), "rate": ("nan", "number"), "limit": ("-inf", "number"),
        "text": ('a "b",\nc', "text"),
    }  # fmt: skip
    converted = convert(run, tmp_path / "csv", "csv") / "declared.csv"
    assert live.read_text() == converted.read_text()


def test_the_live_database_is_what_the_training_used(trained, tmp_path):
    run, used = trained

    def ask(file, sql):
        with sqlite3.connect(file) as database:
            return database.execute(sql).fetchall()

    live = run / INNER / "stats.db"
    for (group, name), values in used.items():
        asked = f"SELECT step, value FROM declared WHERE param_group = {group} AND name = '{name}'"
        assert ask(live, asked) == changes(values)
    asked = "SELECT name, value, type FROM declared WHERE step = 5 ORDER BY name"
    assert ask(live, asked) == [
        ("limit", -math.inf, "number"), ("note", "1", "text"), ("rate", None, "number"),
        ("text", 'a "b",\nc', "text"),
    ]  # fmt: skip
    converted = convert(run, tmp_path / "run.db", "sqlite")
    for table in ("declared_values", "declared"):
        asked = f"SELECT * FROM {table}"
        assert ask(live, asked) == ask(converted, asked)
        assert ask(live, asked)
    schema = "SELECT sql FROM sqlite_master WHERE name LIKE 'declared%' ORDER BY name"
    assert ask(live, schema) == ask(converted, schema)
    # As `trainmon query` has it of the log.
    asked = "SELECT * FROM declared"
    of_log = json.loads(program("--json", "query", run, asked))
    of_database = json.loads(program("--json", "query", live, asked))
    assert of_log == of_database and list(of_log[0]) == COLUMNS


def test_the_live_curves_are_what_the_training_used(trained, tmp_path):
    run, used = trained
    live = points(run / "tensorboard/rank_0")
    for (group, name), values in used.items():
        wanted = [(step, struct.unpack("f", struct.pack("f", v))[0]) for step, v in changes(values)]
        assert live[f"declared/group_{group}/{name}"] == wanted
    assert not [tag for tag in live if tag.endswith(("foreach", "note", "text"))]
    converted = convert(run, tmp_path / "events", "tensorboard")
    assert as_text(live) == as_text(points(converted / "rank_0"))


def test_parquet_has_them_beside_the_rows(trained, tmp_path):
    run, used = trained
    out = convert(run, tmp_path / "set", "parquet")
    table = pd.read_parquet(out / "_declared.pq")
    for (group, name), values in used.items():
        chosen = table[(table.param_group == group) & (table.name == name)]
        assert list(zip(chosen.step, chosen.value, strict=True)) == changes(values)
    foreach = table[(table.name == "foreach") & (table.param_group == 0)]
    assert foreach.text.tolist() == ["None"] and foreach.value.isna().all()
    assert foreach.type.tolist() == ["text"]
    # Who reads the dataset does not meet it.
    rows = trainmon.read_table(run).num_rows
    assert len(pd.read_parquet(out)) == rows
    pattern = f"read_parquet('{out}/**/*.parquet', hive_partitioning=true)"
    assert duckdb.sql(f"SELECT count(*) FROM {pattern}").fetchall() == [(rows,)]
    late = pd.read_parquet(
        convert(run, tmp_path / "late", "parquet", "--steps", "3:") / "_declared.pq"
    )
    assert set(late[(late.name == "lr") & (late.param_group == 1)].step) == {2}
    convert(run, out, "parquet", "--overwrite")


@pytest.mark.parametrize("source", ["csv", "sqlite"])
@pytest.mark.parametrize("steps", [None, "3:", "1:2", "4:4"])
def test_sources_give_what_the_log_gives(run, tmp_path, source, steps):
    more = [] if steps is None else ["--steps", steps]
    wanted = told(run, tmp_path / "log", *more)
    assert wanted and told(run, tmp_path / "live", "--from", source, *more) == wanted
    alone = only(run, source, tmp_path / "alone")
    assert shown(alone, *more) == shown(run, *more)
    converted = convert(run, tmp_path / "converted", source)
    again = told(converted, tmp_path / "again", *more)
    assert again == wanted
    assert shown(converted, *more) == shown(run, *more)


@pytest.mark.parametrize("source", ["csv", "sqlite"])
def test_two_starts_and_two_optimizers(tmp_path, source):
    run = tmp_path / "run"
    train(run, steps=3, monitor_options={"sinks": SINKS})
    train(run, steps=2, lr=0.7, monitor_options={"sinks": SINKS})
    for more in ([], ["--all-restarts"]):
        wanted = told(run, tmp_path / f"a{len(more)}", *more)
        found = told(run, tmp_path / f"b{len(more)}", "--from", source, *more)
        assert found == wanted
    both = {line["value"] for line in wanted if line["name"] == "lr"}
    assert both == {0.1, 0.7}
    pair = tmp_path / "pair"
    two_optimizers(pair, SINKS)
    wanted = told(pair, tmp_path / "c")
    assert told(pair, tmp_path / "d", "--from", source) == wanted
    lrs = [(w["step"], w["value"]) for w in wanted if (w["optimizer"], w["name"]) == (1, "lr")]
    assert lrs == [(step, 0.25 / (step + 1)) for step in range(4)]
    tag = "declared/optimizer_1/group_0/lr"
    assert [step for step, _ in points(pair / "tensorboard/rank_0")[tag]] == [0, 1, 2, 3]


@pytest.mark.parametrize("source", ["csv", "sqlite", "converted csv", "converted sqlite"])
def test_compare_tells_from_which_step_on(trained, tmp_path, source):
    run, used = trained
    train(tmp_path / "plain", monitor_options={"sinks": SINKS})
    pair = []
    for name, one in (("a", tmp_path / "plain"), ("b", run)):
        place = tmp_path / name
        is_live = not source.startswith("converted")
        pair.append(
            only(one, source, place) if is_live else convert(one, place, source.split()[-1])
        )
    report = trainmon.compare(*pair)
    found = {(d["step"], d["param_group"], d["name"]): (d["a"], d["b"]) for d in report["declared"]}
    assert found[2, 1, "lr"] == ("0.1", repr(used[1, "lr"][2]))
    assert found[4, 0, "weight_decay"] == ("0.5", "0.125")
    assert {key for key in found if key[0] < 5} == {(2, 1, "lr"), (4, 0, "weight_decay")}
    out = program("compare", *pair, code=1)
    assert out.startswith(f"lr of group 1 differs from step 2 on: 0.1 in A, {used[1, 'lr'][2]!r}")
    # The log and what was made of it hold the same values, NaN included.
    assert trainmon.compare(run, pair[1])["declared"] == []


def test_a_run_without_them_reads_well(run, tmp_path):
    """Files of a version that had none, and a monitor without an optimizer."""
    old_csv = only(run, "csv", tmp_path / "old_csv")
    (old_csv / INNER / "declared.csv").unlink()
    old_database = only(run, "sqlite", tmp_path / "old_database")
    with sqlite3.connect(old_database / INNER / "stats.db") as database:
        database.execute("DROP VIEW declared")
        database.execute("DROP TABLE declared_values")
    bare = tmp_path / "bare"
    model = nn.Linear(3, 2)
    with trainmon.watch(model, None, out=bare, sinks=SINKS) as watch:
        for _ in range(3):
            model(torch.ones(2, 3)).pow(2).mean().backward()
            watch.step()
            model.zero_grad()
    assert not (bare / INNER / "declared.csv").exists()
    for number, source in enumerate((old_csv, old_database, bare)):
        assert told(source, tmp_path / f"out{number}") == []
        assert shown(source) == []
        assert trainmon.compare(source, source)["declared"] == []
    assert not (convert(bare, tmp_path / "set", "parquet") / "_declared.pq").exists()
    # A directory that a conversion wrote before values had a type.
    older = convert(run, tmp_path / "older", "csv")
    lines = lines_of(older / "declared.csv")
    with (older / "declared.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS[:-2], extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    found = {line["name"]: line["value"] for line in shown(older) if line["step"] == 0}
    assert (found["lr"], found["foreach"]) == (0.1, "None")


def test_lines_that_are_none_are_said(run, tmp_path):
    broken = only(run, "csv", tmp_path / "broken")
    file = broken / INNER / "declared.csv"
    lines = len(lines_of(file))
    with file.open("a") as out:
        out.write("0,0,x,0,0,lr,0.5,number,3\n0,0,3,0,0,lr,fast,number,3\n0,0,3,0,0,lr,1,big,3\n")
    out = program("show", broken, "--declared", "--count", "0", code=3)
    assert len(out.splitlines()) >= lines
    with pytest.warns(RuntimeWarning, match="declared.csv line"):
        report = trainmon.convert(broken, tmp_path / "out", "jsonl")
    assert [what for *_, what in report.rejections] == [
        "step 'x' is no whole number", "value 'fast' is no number", "type 'big' is none"
    ]  # fmt: skip


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_a_scaler_skips(tmp_path, fused):
    """A window is not a step; of a fused optimizer a skipped one has values, too."""
    run = tmp_path / "run"
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with trainmon.watch(model, optimizer, out=run, sinks=SINKS, scaler=scaler):
        for attempt in range(8):
            optimizer.param_groups[0]["lr"] = 0.5**attempt
            loss = model(torch.ones(2, 3)).pow(2).mean()
            scaler.scale(loss * (math.inf if attempt in (2, 5) else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    steps = [0, 1, 2, 2, 3, 4, 4, 5]
    used = [a for a in range(8) if fused or a not in (2, 5)]
    wanted = [(steps[a], 0.5**a) for a in used]
    of_log = told(run, tmp_path / "log")
    assert history(of_log, 0, "lr") == wanted
    assert points(run / "tensorboard/rank_0")["declared/group_0/lr"] == wanted
    for source in ("csv", "sqlite"):
        assert told(run, tmp_path / source, "--from", source) == of_log
    # A database without the rows of all windows, or with merged ones, knows the steps all the same.
    for name, more in (("part", ["--steps", "3:4"]), ("merged", ["--merged"])):
        found = told(convert(run, tmp_path / name, "sqlite", *more), tmp_path / f"{name}_again")
        wanted = told(run, tmp_path / f"{name}_log", *more)
        assert [{**d, "window": -1} for d in found] == [{**d, "window": -1} for d in wanted]


def test_a_kill_leaves_them(tmp_path):
    """A flush interval after a step its values are in every file."""
    run = tmp_path / "run"
    script = f"""
import os, signal, time, torch, trainmon
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
trainmon.watch(model, optimizer, out={str(run)!r}, sinks={SINKS!r}, flush_seconds=0.1)
for step in range(5):
    optimizer.param_groups[0]["lr"] = 0.5 ** step
    model(torch.ones(2, 3)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
time.sleep(3)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=120)
    assert done.returncode == -signal.SIGKILL
    wanted = [(step, 0.5**step) for step in range(5)]
    for source in ("csv", "sqlite"):
        lines = told(run, tmp_path / source, "--from", source, code=3)  # for it was killed
        assert history(lines, 0, "lr") == wanted
    assert points(run / "tensorboard/rank_0")["declared/group_0/lr"] == wanted
