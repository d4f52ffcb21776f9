"""Parquet: the values, where they lie, how they are stored; all or nothing. Read with pyarrow and DuckDB."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import launch
import trainmon
from trainmon import parquet
from trainmon.arguments import UsageError
from written_run import WrittenRank

STEPS = 6
NAMES = ("layers.10.weight", "layers.2.weight", "odd, \"name'=%\n", "a/b=c ü")


def values(rank, kind, name, step):
    rng = np.random.default_rng([rank, len(kind), NAMES.index(name), step])
    array = rng.normal(size=23).astype(np.float32)
    if (rank, kind, name, step) == (1, "grad_reduced", NAMES[0], 3):
        array[:3] = np.nan, np.inf, -np.inf
    return array


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    for rank in range(2):
        writer = WrittenRank(out, rank, 2)
        for step in range(STEPS):
            for name in NAMES:  # by step, so that order by tensor is the converter's work
                for kind in ("grad_reduced", "exp_avg"):
                    writer.observe(values(rank, kind, name, step), kind, name, step)
            writer.end_step()
        writer.stop()
    return out


@pytest.fixture(scope="module")
def dataset(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("parquet") / "set"
    assert convert(run, "-o", out).returncode == 0
    return out


def convert(*arguments, code=None):
    command = ["-m", "trainmon.parquet"] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, *command, *map(str, arguments)], capture_output=True, text=True
    )


def test_the_command_takes_every_option_and_any_name(run, tmp_path):
    (tmp_path / "-run").symlink_to(run)
    options = (
        "--kind grads --name layers* --exclude *.2.* --rank 1 --steps 2:4 --stat norm --stat min "
        "--threads 1 --quiet --to parquet -o -out -- -run"
    )
    for overwrite in ([], ["--overwrite"]):
        command = [launch.command_line(), "convert", *overwrite, *options.split()]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    rows = duckdb.sql(
        f"SELECT name, step, norm FROM read_parquet('{tmp_path}/-out/**/*.parquet') ORDER BY step"
    ).fetchall()
    expected = [values(1, "grad_reduced", NAMES[0], step) for step in (2, 3, 4)]
    with np.errstate(invalid="ignore"):
        norms = [float(np.linalg.norm(array.astype(np.float64))) for array in expected]
    assert [(name, step) for name, step, _ in rows] == [(NAMES[0], step) for step in (2, 3, 4)]
    np.testing.assert_allclose([norm for _, _, norm in rows], norms)
    (file,) = (tmp_path / "-out").rglob("*.parquet")
    stats = {"nans", "infs", "max", "absmax", "mean"} & set(pq.read_schema(file).names)
    assert not stats


def test_a_place_whose_name_is_not_utf8_is_refused_by_name(run, tmp_path):
    done = subprocess.run(
        [launch.command_line(), "convert", run, "--to", "parquet", "-o", b"o\xff"],
        cwd=tmp_path,
        capture_output=True,
    )
    assert done.returncode == 2 and os.listdir(tmp_path) == []
    assert b"out must be a path in UTF-8, not" in done.stderr


def test_files(dataset):
    files = sorted(str(file.relative_to(dataset)) for file in dataset.rglob("*.*"))
    assert files == [
        f"kind={kind}/rank={rank}/part-0.parquet"
        for kind in ("exp_avg", "grad_reduced")
        for rank in (0, 1)
    ]
    assert os.listdir(dataset.parent) == [dataset.name]


def test_values_are_those_of_numpy(dataset):
    """Read with DuckDB; what the arrays hold is known here."""
    found = duckdb.sql(
        "SELECT kind, rank, name, step, nans, infs, min, max, absmax, norm "
        f"FROM read_parquet('{dataset}/**/*.parquet', hive_partitioning=true)"
    ).fetchall()
    assert len(found) == 2 * 2 * STEPS * len(NAMES)
    for kind, rank, name, step, *got in found:
        array = values(rank, kind, name, step).astype(np.float64)
        with np.errstate(invalid="ignore"):
            norm = np.sqrt((array**2).sum())
        bad = np.isnan(array).any()
        expected = [np.isnan(array).sum(), np.isinf(array).sum(), array.min(), array.max()]
        expected += [np.abs(array).max(), np.nan if bad else norm]
        np.testing.assert_allclose(got, expected, rtol=1e-15)


@pytest.mark.parametrize("engine", ["pyarrow", "duckdb"])
def test_every_column_of_every_row(run, dataset, engine):
    if engine == "pyarrow":
        back = ds.dataset(dataset, partitioning="hive").to_table().to_pandas()
    else:
        files = f"read_parquet('{dataset}/**/*.parquet', hive_partitioning=true)"
        back = duckdb.sql(f"FROM {files}").df()
    table = trainmon.read_table(run)
    assert set(back.columns) == set(table)
    order = np.lexsort([back[k].astype(str) for k in ("seq", "rank", "kind")])
    wanted = np.lexsort([table[k].astype(str) for k in ("seq", "rank", "kind")])
    for column in table:
        got, expected = back[column].to_numpy()[order], table[column][wanted]
        np.testing.assert_array_equal(got, expected, err_msg=column)
        if expected.dtype.kind == "f":  # to the bit
            np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))


def test_rows_of_a_tensor_lie_together_in_order_of_steps(dataset):
    for file in dataset.rglob("*.parquet"):
        rows = pq.ParquetFile(file).read(["name", "step"])
        got = list(zip(rows["name"].to_pylist(), rows["step"].to_pylist()))
        assert got == [(name, step) for name in sorted(NAMES) for step in range(STEPS)]
        (first, *_) = pq.ParquetFile(file).metadata.row_group(0).sorting_columns
        assert first == pq.SortingColumn(list(pq.read_schema(file).names).index("name"))


def test_encodings_and_compression(dataset):
    for file in dataset.rglob("*.parquet"):
        group = pq.ParquetFile(file).metadata.row_group(0)
        for number in range(group.num_columns):
            column = group.column(number)
            assert column.compression == "ZSTD", column.path_in_schema
            wanted = {"DOUBLE": "BYTE_STREAM_SPLIT", "BYTE_ARRAY": "RLE_DICTIONARY"}
            wanted = wanted.get(column.physical_type, "DELTA_BINARY_PACKED")
            assert wanted in column.encodings, (column.path_in_schema, column.encodings)
            assert column.is_stats_set


def test_row_groups(tmp_path):
    rows = 300_000
    table = pa.table(
        {
            **{key: pa.array(np.zeros(rows, np.int64)) for key in parquet.ORDER[1:]},
            "name": pa.array(["n"] * rows).dictionary_encode(),
        }
    )
    parquet.write_file([table], tmp_path / "f.parquet")
    metadata = pq.ParquetFile(tmp_path / "f.parquet").metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [
        122_880, 122_880, 54_240,
    ]  # fmt: skip


def test_other_partitions_are_not_opened(run, tmp_path):
    """Two other files are made unreadable: who opens them fails. (DuckDB takes the columns from the
    first of all files.)"""
    out = tmp_path / "set"
    assert convert(run, "-o", out).returncode == 0
    for file in out.rglob("*.parquet"):
        if "exp_avg/rank=1" in str(file) or "grad_reduced/rank=0" in str(file):
            file.write_bytes(b"no Parquet at all")
    files = f"read_parquet('{out}/**/*.parquet', hive_partitioning=true)"
    query = f"SELECT count(*) FROM {files} WHERE kind = 'grad_reduced' AND rank = 1"
    assert duckdb.sql(query).fetchall() == [(STEPS * len(NAMES),)]
    with pytest.raises(duckdb.Error):
        duckdb.sql(f"SELECT count(*) FROM {files} WHERE kind = 'grad_reduced'").fetchall()


def test_selection(run, tmp_path):
    done = convert(
        run, "-o", tmp_path / "o", "--kind", "grads", "--rank", 1, "--name", "layers.2",
        "--steps", "2:4", "--stat", "max", "--stat", "nans",
    )  # fmt: skip
    assert done.returncode == 0 and "3 rows" in done.stderr
    back = ds.dataset(tmp_path / "o", partitioning="hive").to_table().to_pandas()
    assert list(back["step"]) == [2, 3, 4] and set(back["rank"]) == {1}
    assert list(back["max"]) == [
        values(1, "grad_reduced", "layers.2.weight", step).max() for step in (2, 3, 4)
    ]
    assert "nans" in back and "min" not in back


def test_merged_rows_are_of_rank_minus_1(tmp_path):
    for rank in range(2):
        writer = WrittenRank(tmp_path / "run", rank, 2)
        array = np.arange(4, dtype=np.float32)
        writer.observe(array, "grad_reduced", "w", 0, replication="identical")
        writer.observe(array + 10 * rank, "grad_reduced", "own", 0, replication="independent")
        writer.end_step()
        writer.stop()
    assert convert(tmp_path / "run", "-o", tmp_path / "o", "--merged").returncode == 0
    back = ds.dataset(tmp_path / "o", partitioning="hive").to_table(columns=["rank", "name", "max"])
    rows = sorted(zip(*(back[c].to_pylist() for c in ("rank", "name", "max"))))
    assert rows == [(-1, "w", 3.0), (0, "own", 3.0), (1, "own", 13.0)]


def test_float32(run, tmp_path):
    assert convert(run, "-o", tmp_path / "o", "--float32").returncode == 0
    back = ds.dataset(tmp_path / "o", partitioning="hive").to_table()
    assert back.schema.field("norm").type == pa.float32()
    assert back.schema.field("loss_scale").type == pa.float64()
    for kind, rank, name, step, mean in zip(
        *(back[c].to_pylist() for c in ("kind", "rank", "name", "step", "mean"))
    ):
        exact = values(rank, kind, name, step).astype(np.float64).mean()
        assert np.isnan(exact) == np.isnan(mean)
        assert np.isnan(exact) or mean == np.float32(mean)
        assert np.isnan(exact) or abs(mean - exact) <= 6e-8 * abs(exact)


def test_float32_refuses_what_it_cannot_hold(tmp_path):
    writer = WrittenRank(tmp_path / "run")
    writer.observe(np.array([1e300]), "grad_reduced", "w", 0)
    writer.end_step()
    writer.stop()
    done = convert(tmp_path / "run", "-o", tmp_path / "o", "--float32")
    assert done.returncode == 2 and "1e+300" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["run"]


def test_names_that_are_no_text():
    """Only a program in C++ can make such names; Parquet holds valid text, each once."""
    codes = np.array([2, 0, 1, 2], np.int32)
    codes, texts = parquet._ranked((codes, ["bad\udcff", "bad\\xff", "a"]))
    assert texts == ["a", "bad\\xff"] and codes.tolist() == [0, 1, 1, 0]


def test_what_is_left_out_is_said(tmp_path):
    import torch

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    kinds = ["grad_reduced", "update_ratio"]
    with trainmon.watch(model, optimizer, kinds=kinds, every=1, out=tmp_path / "run") as mon:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        mon.log(loss=1.0)
    done = convert(tmp_path / "run", "-o", tmp_path / "o")
    assert done.returncode == 0 and "2 rows" in done.stderr
    assert done.stderr.count("left out") == 2
    assert sorted(os.listdir(tmp_path / "o")) == ["_declared.pq", "kind=grad_reduced"]


def test_groups_of_kinds(tmp_path):
    import torch

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    kinds = ["grads", "moments"]
    with trainmon.watch(model, optimizer, kinds=kinds, every=1, out=tmp_path / "run"):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    states = ["kind=exp_avg", "kind=exp_avg_sq"]
    for asked, found in (("moments", states), ("all", [*states, "kind=grad_reduced"])):
        out = tmp_path / asked
        assert convert(tmp_path / "run", "-o", out, "--kind", asked).returncode == 0
        assert sorted(f for f in os.listdir(out) if f.startswith("kind=")) == found


def test_an_existing_output(run, dataset, tmp_path):
    before = sorted(file.read_bytes() for file in dataset.rglob("*.parquet"))
    done = convert(run, "-o", dataset)
    assert done.returncode == 2 and "--overwrite" in done.stderr
    assert sorted(file.read_bytes() for file in dataset.rglob("*.parquet")) == before

    assert convert(run, "-o", tmp_path / "o").returncode == 0
    assert convert(run, "-o", tmp_path / "o", "--overwrite", "--kind", "exp_avg").returncode == 0
    assert os.listdir(tmp_path / "o") == ["kind=exp_avg"] and os.listdir(tmp_path) == ["o"]

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    done = convert(run, "-o", tmp_path / "mine", "--overwrite")
    assert done.returncode == 2 and (tmp_path / "mine" / "thesis.tex").exists()

    done = convert(run, "-o", pathlib.Path(run) / "inside")
    assert done.returncode == 2 and "lies inside of what is converted" in done.stderr
    assert not (pathlib.Path(run) / "inside").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_somebody_puts_there_meanwhile_stays(run, tmp_path, monkeypatch, overwrite):
    out = tmp_path / "o"
    write_file = parquet.write_file

    def write(*arguments):
        out.mkdir(exist_ok=True)
        (out / "thesis.tex").write_text("years of work")
        return write_file(*arguments)

    monkeypatch.setattr(parquet, "write_file", write)
    with pytest.raises(UsageError, match="not replaced"):
        parquet.write_dataset(str(run), out, overwrite=overwrite)
    assert os.listdir(out) == ["thesis.tex"] and os.listdir(tmp_path) == ["o"]


SLOW = (
    "import sys, time, trainmon.parquet as p\n"
    "write, files = p.write_file, []\n"
    "def slow(*arguments):\n"
    "    rows = write(*arguments)\n"
    "    files.append(1)\n"
    "    if len(files) == 2: print('half', flush=True); time.sleep(60)\n"
    "    return rows\n"
    "p.write_file = slow\n"
    "sys.exit(p.main(sys.argv[1:]))\n"
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_killed_half_way_nothing_is_there(run, tmp_path, number):
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, run, "-o", tmp_path / "o"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "half\n"
    process.send_signal(number)
    process.communicate()
    assert process.returncode != 0
    left = os.listdir(tmp_path)
    assert "o" not in left
    if number != signal.SIGKILL:
        assert left == []
    assert convert(run, "-o", tmp_path / "o").returncode == 0


def test_what_cannot_be_done(run, tmp_path):
    def refused(*arguments):
        done = convert(*arguments)
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert os.listdir(tmp_path) == []
        return done.stderr

    out = ("-o", tmp_path / "o")
    assert "exp_avg, grad_reduced" in refused(run, *out, "--kind", "actv")
    assert "layers.2.weight" in refused(run, *out, "--name", "nothing")
    assert "norm" in refused(run, *out, "--stat", "nrom")
    assert "A:B" in refused(run, *out, "--steps", "x")
    assert "ends before" in refused(run, *out, "--steps", "3:1")
    assert "run" in refused(tmp_path / "nowhere", *out)
    assert "no directory" in refused(run, "-o", tmp_path / "not" / "there")
    without = "import sys; sys.modules['pyarrow'] = None; import trainmon.parquet as p; sys.exit(p.main(sys.argv[1:]))"
    done = convert(run, *out, code=without)
    assert done.returncode == 2 and "pip install 'trainmon[parquet]'" in done.stderr


def test_a_missing_rank_is_said(tmp_path):
    writer = WrittenRank(tmp_path / "run", 0, 2)
    writer.observe(np.ones(3, np.float32), "grad_reduced", "w", 0)
    writer.end_step()
    writer.stop()
    done = convert(tmp_path / "run", "-o", tmp_path / "o")
    assert "left out" not in done.stderr
    assert done.returncode == 3 and done.stderr.count("rank 1") == 1
    assert (tmp_path / "o" / "kind=grad_reduced" / "rank=0" / "part-0.parquet").exists()
