"""Shapes of rows: what hooks of the test's own saw, from the log, from the live sinks, and from what is
converted, whichever of these is converted."""

from __future__ import annotations

import csv
import io
import json
import pathlib
import shutil
import sqlite3
import subprocess

import pytest
import torch
from torch import nn

import launch
import trainmon

BATCHES = [(4, 3), (2, 3), (4, 3), (0, 3), (1, 5, 3), (3,), (7, 3), (2, 3)]
MODULES = ("", "linear", "mean", "head")


class Varying(nn.Module):
    """A module called twice in a forward, one whose output is 0-d, one whose output is empty."""

    def __init__(self):
        super().__init__()
        self.linear, self.mean, self.head = nn.Linear(3, 3), Mean(), Head()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        wide = self.linear(self.linear(x).tanh())
        return self.mean(wide) * self.scale + self.head(wide).sum()


class Mean(nn.Module):
    def forward(self, x):
        return x.sum() / max(x.numel(), 1)


class Head(nn.Module):
    def forward(self, x):
        return x.reshape(-1)[:0].reshape(0, 2)


def text(shape):
    return json.dumps(list(shape), separators=(",", ":"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The run directory, and the shape of each activation and parameter as hooks here saw it."""
    out = tmp_path_factory.mktemp("shapes") / "run"
    torch.manual_seed(1)
    model = Varying()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = trainmon.watch(
        model,
        optimizer,
        out=out,
        every=1,
        sinks=["log", "csv", "sqlite"],
        segment_mb=0.005,
        kinds=["activations", "grad_reduced", "param_origin", "actv_grad"],
    )
    seen, calls, step = {}, {}, 0

    def looked_at(name):
        def hook(module, arguments, output):
            call = calls[name] = calls.get(name, -1) + 1
            seen["actv", name, "output", step, call] = text(output.shape)

        return hook

    for name in MODULES:
        model.get_submodule(name).register_forward_hook(looked_at(name))
    for step, batch in enumerate(BATCHES):
        calls.clear()
        optimizer.zero_grad()
        model(torch.randn(batch)).backward()
        for name, parameter in model.named_parameters():
            seen["param_origin", name, "", step, 0] = text(parameter.shape)
            seen["grad_reduced", name, "", step, 0] = text(parameter.grad.shape)
        optimizer.step()
    monitor.stop()
    assert len(list(out.glob("rank_*/restart_*/*.tmlog"))) > 1
    return out, seen


def rows_of(columns):
    names = ("kind", "name", "element", "step", "call", "shape")
    return {row[:5]: row[5] for row in zip(*(columns[name] for name in names), strict=True)}


def compared(found, seen):
    assert found.keys() >= seen.keys()
    assert {key: found[key] for key in seen} == seen


def test_rows_have_the_shapes_that_hooks_saw(run):
    out, seen = run
    assert {"[]", "[0,2]", "[0,3]", "[1,5,3]", "[3]"} <= set(seen.values())
    found = rows_of(trainmon.read_table(out))
    compared(found, seen)
    # A gradient has the shape of what it is one of.
    gradients = {key: shape for key, shape in found.items() if key[0] == "actv_grad"}
    assert len(gradients) > len(BATCHES)
    for (_, name, element, step, call), shape in gradients.items():
        if element == "output":
            assert shape == seen["actv", name, element, step, call]


def test_a_query_tells_shapes(run):
    out, seen = run
    sql = "SELECT kind, name, element, step, call, shape FROM stats"
    done = subprocess.run(
        [launch.command_line(), "query", str(out), sql, "--csv"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    _, *lines = csv.reader(io.StringIO(done.stdout, newline=""))
    compared({(k, n, e, int(s), int(c)): shape for k, n, e, s, c, shape in lines}, seen)


def live_csv(out):
    rows = {}
    for path in sorted(out.glob("rank_00000/restart_0000/rows-*.csv")):
        for row in csv.DictReader(path.open(newline="")):
            rows[int(row["seq"])] = row["shape"]
    return rows


def sqlite_rows(path):
    return dict(sqlite3.connect(path).execute("SELECT seq, shape FROM stats"))


def csv_rows(path):
    return {int(r["seq"]): r["shape"] for r in csv.DictReader((path / "rows.csv").open(newline=""))}


def json_rows(path):
    lines = map(json.loads, (path / "rows.jsonl").read_text().splitlines())
    return {row["seq"]: row["shape"] for row in lines}


def parquet_rows(path):
    import pyarrow.dataset

    table = pyarrow.dataset.dataset(path, partitioning="hive").to_table(columns=["seq", "shape"])
    return dict(zip(table["seq"].to_pylist(), table["shape"].to_pylist(), strict=True))


READERS = {"csv": csv_rows, "jsonl": json_rows, "sqlite": sqlite_rows}


def test_the_live_sinks_agree(run):
    out, _ = run
    table = trainmon.read_table(out)
    wanted = dict(zip(table["seq"].tolist(), table["shape"].tolist(), strict=True))
    assert live_csv(out) == wanted
    assert sqlite_rows(out / "rank_00000/restart_0000/stats.db") == wanted


@pytest.mark.parametrize("to", READERS)
@pytest.mark.parametrize("source", ["log", "csv", "sqlite"])
def test_a_conversion_is_equal_to_the_live_sink(run, tmp_path, source, to):
    out, _ = run
    trainmon.convert(out, tmp_path / "out", to, format=source)
    assert READERS[to](tmp_path / "out") == live_csv(out)


def test_parquet_is_equal_to_the_live_sink(run, tmp_path):
    pytest.importorskip("pyarrow")
    out, _ = run
    subprocess.run(
        [launch.command_line(), "convert", str(out), "--to", "parquet", "-o", tmp_path / "out"],
        check=True,
        capture_output=True,
    )
    assert parquet_rows(tmp_path / "out") == live_csv(out)


def test_shapes_that_are_none_are_rejected(run, tmp_path):
    out, _ = run
    shutil.copytree(out, tmp_path / "run")
    rank = tmp_path / "run/rank_00000/restart_0000"
    bad = ["[", "[1,]", "[-1]", "2,3", "[1,2", "[a]", "[,1]", "[1,,2]", "[" + "1," * 64 + "1]"]
    database = sqlite3.connect(rank / "stats.db")
    seqs = [seq for (seq,) in database.execute("SELECT seq FROM rows ORDER BY seq")][: len(bad)]
    for seq, cell in zip(seqs, bad, strict=True):
        database.execute("UPDATE rows SET shape = ? WHERE seq = ?", (cell, seq))
    database.commit()
    database.close()
    rows = sorted(rank.glob("rows-*.csv"))[0]
    head, *lines = csv.reader(rows.open(newline=""))
    for cell, line in zip(bad, lines):
        line[head.index("shape")] = cell
    with rows.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *lines])
    for source in ("csv", "sqlite"):
        with pytest.warns(RuntimeWarning, match="is none and 8 more"):
            report = trainmon.convert(tmp_path / "run", tmp_path / source, "csv", format=source)
        assert report.rejected == len(bad)


def test_runs_of_before_have_no_shapes(tmp_path):
    """tests/data/damaged/base was written before there were shapes, in logs and in tables."""
    run = tmp_path / "run"
    base = pathlib.Path(__file__).parents[2] / "data/damaged/base"
    shutil.copytree(base, run / "rank_00000/restart_0000")
    for source in ("log", "csv", "sqlite"):
        report = trainmon.convert(run, tmp_path / source, "csv", format=source)
        assert report.written == 24 and report.rejected == 0
        assert set(csv_rows(tmp_path / source).values()) == {""}
    assert set(trainmon.read_table(run)["shape"]) == {""}
