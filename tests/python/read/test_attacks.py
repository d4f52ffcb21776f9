"""What an attack on conversions and readers found: each once lost data or gave a false all-clear."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys

import numpy
import pytest
import torch

import launch
import trainmon
from trainmon import conversion


@pytest.fixture
def run(tmp_path):
    write(tmp_path / "run", sinks=["log", "csv", "sqlite"])
    return tmp_path / "run"


def write(out, **keys):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.watch(model, optimizer, out=str(out), **keys) as monitor:
        for step in range(4):
            optimizer.zero_grad()
            model(torch.full((2, 3), float("nan") if step == 2 else 1.0)).sum().backward()
            optimizer.step()
            monitor.log(**{"a\0b": step}, loss=2.0 / 3.0, accuracy=1.0 / 3.0)


def cli(*arguments, **keys):
    return subprocess.run(
        [launch.command_line(), *map(str, arguments)], capture_output=True, text=True, **keys
    )


def everything(directory):
    return sorted((p, p.read_bytes()) for p in directory.rglob("*") if p.is_file())


@pytest.mark.parametrize(
    "inside", ["new", "rank_00000", "rank_00000/restart_0000", "rank_00000/restart_0000/stats.db"]
)
@pytest.mark.parametrize("to", ["csv", "sqlite"])
def test_nothing_is_written_into_the_source(run, inside, to):
    before = everything(run)
    done = cli("convert", run, "--to", to, "-o", run / inside, "--overwrite")
    assert done.returncode == 2 and "lies inside of what is converted" in done.stderr
    assert everything(run) == before


def test_only_outputs_are_replaced(run, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("hi")
    for to, out, why in (
        ("csv", precious, "it holds thesis.txt"),
        ("csv", precious / "thesis.txt", "it is no directory"),
        ("sqlite", precious / "thesis.txt", "it is no database of a conversion"),
        ("sqlite", precious, "it is no file"),
        ("sqlite", "/dev/null", "it is no file"),
    ):
        done = cli("convert", run, "--to", to, "-o", out, "--overwrite")
        assert done.returncode == 2 and why in done.stderr, (to, out, done.stderr)
    assert (precious / "thesis.txt").read_text() == "hi" and os.listdir(precious) == ["thesis.txt"]
    for to in ("csv", "sqlite"):
        for keys in ([], ["--overwrite"]):
            assert cli("convert", run, "--to", to, "-o", tmp_path / to, *keys).returncode == 0


@pytest.mark.parametrize("sinks", [["sqlite"], ["csv"], []])
def test_a_run_without_a_log_is_no_all_clear(tmp_path, sinks):
    write(tmp_path / "run", sinks=sinks)
    for command in ("first-bad", "top", "show"):
        done = cli(command, tmp_path / "run")
        assert done.returncode == 3 and "there is no log here" in done.stderr, command
    with pytest.warns(RuntimeWarning, match="there is no log here"):
        assert trainmon.first_bad(tmp_path / "run") is None


def test_tail_of_a_run_without_a_log(tmp_path):
    write(tmp_path / "run", sinks=["csv"])
    done = cli("tail", tmp_path / "run")
    assert done.returncode == 3 and "there is no log here; the CSV files are read" in done.stderr


def test_tail_leaves_out_whole_numbers(run):
    done = cli("tail", run, "-n", "1", env={**os.environ, "COLUMNS": "80"})
    title, line = done.stdout.splitlines()
    logged = line[title.index("logged") :].split()
    whole = {"accuracy=0.33333", "loss=0.66667"}
    assert len(line) <= 80 and logged[-1] == "\N{HORIZONTAL ELLIPSIS}"
    assert len(logged) > 1 and set(logged[:-1]) < whole | {"a\\x00b=3", "(non_finite)"}


def test_collations_are_left_to_sqlite(run):
    for where in ("kind COLLATE NOCASE = 'GRAD_reduced'", "'grad_reduced' = kind"):
        done = cli("query", run, "--csv", f"SELECT count(*) FROM stats WHERE {where}")
        assert done.stdout.split() == ["count(*)", "8"], done


def test_a_name_with_a_nul_byte(run, tmp_path):
    assert (
        cli("convert", run, "--from", "csv", "--to", "sqlite", "-o", tmp_path / "a.db").returncode
        == 0
    )
    names = (
        sqlite3.connect(tmp_path / "a.db").execute("SELECT DISTINCT name FROM logged").fetchall()
    )
    assert {("a\0b",), (b"a\0b",)} & set(names)


def test_a_statistic_named_twice_counts_once(run, tmp_path):
    done = cli(
        "convert", run, "--to", "csv", "-o", tmp_path / "o", "--stat", "norm", "--stat", "norm"
    )
    assert done.returncode == 0
    assert (tmp_path / "o/rows.csv").read_text().splitlines()[0].split(",").count("norm") == 1


@pytest.mark.parametrize("command", [["show"], ["plot", "-o", "out.png"]])
def test_a_full_stdout_is_said(run, tmp_path, command):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [launch.command_line(), command[0], run, *command[1:]],
            stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        )  # fmt: skip
    assert done.returncode == 3 and "could not be written to stdout" in done.stderr
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_a_pipe_in_place_of_a_file_of_rows(run, tmp_path):
    os.mkfifo(run / "rank_00000" / "restart_0000" / "rows-000001.csv")
    done = cli("convert", run, "--from", "csv", "--to", "jsonl", "-o", tmp_path / "o", timeout=60)
    assert done.returncode == 3 and "rows-000001.csv: " in done.stderr


@pytest.mark.parametrize(
    "option",
    [
        ("--step-partition", "100"),
        ("--keep-micro-steps",),
        ("--time-start", "Dec03_21-34-40"),
        ("--time-end", "Dec03_21-34-40"),
    ],
)
@pytest.mark.parametrize("to", ["csv", "parquet"])
def test_options_of_other_formats_are_refused(run, tmp_path, option, to):
    done = cli("convert", run, "--to", to, "-o", tmp_path / "out", *option)
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    assert option[0].split("-")[3] in done.stderr


@pytest.mark.parametrize(
    "command", [("plot", "-o"), ("convert", "--to", "parquet", "-o"), ("merge", "-o")]
)
def test_missing_ranks_make_every_output_partial(tmp_path, monkeypatch, command):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    write(tmp_path / "run")
    out = tmp_path / ("out.png" if command[0] == "plot" else "out")
    environment = {**os.environ, "TRAINMON_PYTHON": sys.executable}
    done = cli(command[0], tmp_path / "run", *command[1:], out, env=environment)
    assert done.returncode == 3 and "rank 1" in done.stderr and out.exists()


def test_a_pipe_in_place_of_a_segment(run):
    os.mkfifo(run / "rank_00000/restart_0000/log-000001.tmlog")
    done = cli("first-bad", run, timeout=30)
    assert done.returncode == 1 and "is no file" in done.stderr and "step 2" in done.stdout


@pytest.mark.parametrize("to", ["csv", "jsonl", "sqlite", "tensorboard", "msprobe_db"])
@pytest.mark.parametrize("out", ["\0", b"\0", "new\0x"])
def test_a_nul_in_the_name_of_an_output_deletes_nothing(run, tmp_path, monkeypatch, out, to):
    """For the system the name ends there, and what was left was the working directory."""
    (tmp_path / "thesis.txt").write_text("hi")
    monkeypatch.chdir(tmp_path)
    before = everything(tmp_path)
    with pytest.raises(ValueError, match="out must be a path without NUL"):
        trainmon.convert(run, out, to)
    monkeypatch.setattr(conversion.checks, "path", lambda name, value: value)
    with pytest.raises(ValueError, match="no name for an output"):
        trainmon.convert(run, out, to)
    assert everything(tmp_path) == before


def test_a_working_directory_that_was_deleted_is_said(run, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    program = [
        sys.executable,
        "-c",
        "import os, sys; os.rmdir(os.getcwd()); os.execv(sys.argv[1], sys.argv[1:])",
    ]
    arguments = [launch.command_line(), "convert", run, "--to", "csv", "-o", "new"]
    done = subprocess.run(
        [*program, *map(str, arguments)], cwd=gone, capture_output=True, text=True
    )
    assert done.returncode != 0 and "the working directory is gone" in done.stderr


@pytest.mark.parametrize("command", ["first-bad", "tail", "show", "doctor", "top"])
def test_a_directory_in_place_of_a_segment(run, command):
    segment = run / "rank_00000" / "restart_0000" / "log-000000.tmlog"
    segment.unlink()
    segment.mkdir()
    done = cli(command, run)
    said = done.stdout + done.stderr
    assert done.returncode == 3 and "log-000000.tmlog" in said and "directory" in said.lower()


@pytest.mark.parametrize("name", ["with space", "x$(touch pwned)", "it's", "back\\slash\x1b[31m'"])
def test_the_next_command_can_be_pasted(name, tmp_path, capfd):
    write(tmp_path / name)
    live = capfd.readouterr().err.splitlines()[-1]
    said = cli("first-bad", tmp_path / name).stderr.splitlines()[-1]
    for line in (live, said):
        command = line.partition("next: trainmon ")[2]
        assert command and "\x1b" not in line
        echoed = subprocess.run(
            ["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, cwd=tmp_path
        ).stdout.split(b"\0")
        assert os.fsencode(tmp_path / name) in echoed
    assert not (tmp_path / "pwned").exists()


def test_arguments_are_named(run, tmp_path):
    for call, error, named in (
        (lambda: trainmon.read(run, all_restarts="x"), TypeError, "all_restarts"),
        (lambda: trainmon.read(run, merged="x"), TypeError, "merged"),
        (lambda: trainmon.read(run, ranks={1: 2}), TypeError, "ranks"),
        (lambda: trainmon.read(run, ranks=numpy.array([[1, 2]])), TypeError, "ranks"),
        (lambda: trainmon.read(run, steps=numpy.array([1, 2])), TypeError, "steps"),
        (lambda: trainmon.read("a\0b"), ValueError, "run"),
        (lambda: trainmon.compare(run, run, tolerance=10**400), ValueError, "tolerance"),
        (lambda: trainmon.convert(run, tmp_path / "o", "csv", overwrite=1), TypeError, "overwrite"),
        (
            lambda: trainmon.convert(run, tmp_path / "o", "csv", progress=True),
            TypeError,
            "progress",
        ),
        (lambda: trainmon.watch(torch.nn.Linear(1, 1), every=10**400), ValueError, "every"),
        (lambda: trainmon.watch(torch.nn.Linear(1, 1), config="a\0b"), ValueError, "config"),
    ):
        with pytest.raises(error, match=named):
            call()


def test_the_largest_tensor_is_no_list_of_tokens(tmp_path):
    model = torch.nn.Sequential(torch.nn.Embedding(9999, 2), torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = tmp_path / "run"
    with trainmon.watch(model, optimizer, kinds=["activations"], out=out):
        model(torch.full((4,), 9998)).sum().backward()
        optimizer.step()
    ranked = trainmon.top(out, count=100, by="size")
    assert "input" in ranked[-1].element and ranked[-1].value > 9998 > ranked[0].value
