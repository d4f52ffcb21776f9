"""Arrow for others: what a table gives by the PyCapsule interface is what its arrays hold, shares
their memory, lives as long as somebody needs it, and is let go once."""

from __future__ import annotations

import gc
import os
import warnings

import duckdb
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest

import trainmon
from written_run import WrittenRank

ORDER = ["restart", "step", "attempt", "rank", "seq"]
NAMES = ["weight", "größe.权重", 'quo"te', ""]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two ranks with non-finite values, names of many sorts and tensors of several shapes."""
    out = tmp_path_factory.mktemp("runs") / "run"
    rng = np.random.default_rng(0)
    for rank in range(2):
        written = WrittenRank(out, rank, 2)
        for window in range(30):
            for name in NAMES:
                array = rng.normal(size=(2, 3)).astype(np.float32)
                if window % 7 == 3:
                    array[0, 0] = [np.nan, np.inf][window % 2]
                written.observe(array, "grad_reduced", name, window)
                size = (window % 5 + 1, 4)
                written.observe(rng.normal(size=size), "actv", name, window, element="output")
            written.end_step("skipped" if window % 10 == 9 else "taken", 2.0**window)
        written.stop()
    return out


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def assert_same(arrow: pa.Table, table) -> None:
    """Each column of `arrow` against the NumPy array of the same name, to the bit."""
    arrow.validate(full=True)
    assert arrow.column_names == list(table)
    for name in arrow.column_names:
        want = table[name]
        got = arrow[name].to_numpy(zero_copy_only=False)
        if want.dtype == object:
            assert got.tolist() == want.tolist(), name
            assert arrow.schema.field(name).type == pa.dictionary(pa.int32(), pa.string())
        else:
            assert got.dtype == want.dtype and got.tobytes() == want.tobytes(), name


def test_pyarrow(run):
    table = trainmon.read_table(run)
    assert_same(pa.table(table), table)
    assert pa.schema(table) == pa.table(table).schema


def test_no_row(run):
    table = trainmon.read_table(run, steps=10_000)
    assert pa.table(table).num_rows == 0
    assert_same(pa.table(table), table)


def test_numbers_are_not_copied(run):
    table = trainmon.read_table(run)
    arrow = pa.table(table)
    for name in ("rank", "step", "seq", "flags", "loss_scale", "norm", "nans"):
        chunk = arrow[name].chunk(0)
        assert chunk.buffers()[1].address == table[name].ctypes.data, name


def test_pandas(run):
    table = trainmon.read_table(run)
    frame = pa.table(table).to_pandas()
    pd.testing.assert_frame_equal(frame, table.to_pandas())


def test_duckdb(run):
    table = trainmon.read_table(run, stats=["norm", "nans"])
    frame = table.to_pandas()
    asked = "SELECT kind, name, count(*), max(step), sum(nans)::BIGINT FROM table GROUP BY ALL"
    got = duckdb.sql(asked.replace("table", '"table"') + " ORDER BY ALL").fetchall()
    by = frame.groupby(["kind", "name"], observed=True)
    want = by.agg(n=("step", "size"), step=("step", "max"), nans=("nans", "sum"))
    assert got == sorted((*key, *map(int, row)) for key, row in zip(want.index, want.values))
    norms = duckdb.sql('SELECT norm FROM "table"').fetchnumpy()["norm"]
    np.testing.assert_array_equal(np.ma.filled(norms, np.nan), table["norm"])


def test_polars(run):
    table = trainmon.read_table(run)
    frame = polars.DataFrame(table)
    for name in frame.columns:
        want = table[name]
        got = frame[name].to_numpy()
        if want.dtype == object:
            assert got.tolist() == want.tolist()
        else:
            assert got.tobytes() == want.tobytes()


def test_arrow_outlives_the_table(run):
    table = trainmon.read_table(run)
    want = {name: table[name].tolist() for name in ("norm", "step", "name", "shape")}
    arrow = pa.table(table)
    column = arrow["norm"].chunk(0)
    names = arrow["name"].chunk(0).dictionary
    del table
    gc.collect()
    for name, values in want.items():
        np.testing.assert_array_equal(arrow[name].to_pylist(), values)
    del arrow
    gc.collect()
    np.testing.assert_array_equal(column.to_numpy(), want["norm"])
    assert names.to_pylist() == NAMES


def test_numpy_outlives_the_table(run):
    table = trainmon.read_table(run)
    norm = table["norm"]
    want = norm.copy()
    pa.table(table)
    del table
    gc.collect()
    np.testing.assert_array_equal(norm, want)


def test_capsules_nobody_takes(run):
    """A capsule frees what nobody imported; one that was imported is empty."""
    table = trainmon.read_table(run)
    table.__arrow_c_schema__()
    capsule = table.__arrow_c_stream__()
    taken = pa.RecordBatchReader._import_from_c_capsule(capsule)
    assert taken.read_all().num_rows == table.num_rows
    with pytest.raises(pa.ArrowInvalid):
        pa.RecordBatchReader._import_from_c_capsule(capsule)


def tables_of(scan) -> pa.Table:
    """Each table of a scan by Arrow, in the order of read()."""
    return pa.concat_tables(pa.table(table) for table in scan).sort_by(
        [(o, "ascending") for o in ORDER]
    )


@pytest.mark.parametrize("rows", [1, 7, 100, 65_536])
@pytest.mark.parametrize(
    "which",
    [
        {},
        {"kinds": "actv", "stats": "norm"},
        {"ranks": 1, "steps": (5, 11), "stats": ["mean", "std"]},
        {"include": "größe.*", "exclude": "none"},
        {"steps": 10_000},
    ],
)
def test_scan_gives_what_read_gives(run, which, rows):
    if rows == 1:
        which = {"include": "weight", **which, "steps": (3, 4)}
    table = trainmon.read_table(run, **which)
    scan = trainmon.scan(run, rows=rows, **which)
    sizes = [piece.num_rows for piece in scan]
    assert sum(sizes) == table.num_rows
    assert all(size == rows for size in sizes[:-1]) and all(0 < size <= rows for size in sizes)
    if table.num_rows:
        assert_same(tables_of(scan), table)
    streamed = pa.table(scan)
    assert streamed.column_names == list(table) and streamed.schema == pa.schema(scan)
    assert_same(streamed.sort_by([(o, "ascending") for o in ORDER]), table)


def test_scan_has_the_same_dictionaries_in_all_tables(run):
    for name in ("kind", "name", "element", "fate", "dtype", "replication"):
        chunks = pa.table(trainmon.scan(run, rows=50))[name].chunks
        assert len(chunks) > 5 and all(c.dictionary == chunks[0].dictionary for c in chunks)


def test_scan_in_pandas_duckdb_and_polars(run):
    table = trainmon.read_table(run)
    scan = trainmon.scan(run, rows=64)
    frame = pa.table(scan).sort_by([(o, "ascending") for o in ORDER]).to_pandas()
    for name, column in table.to_pandas().items():
        assert frame[name].tolist() == pytest.approx(column.tolist(), nan_ok=True, abs=0)
    asked = "SELECT rank, name, shape, count(*), max(norm) FROM {} GROUP BY ALL ORDER BY ALL"
    want = duckdb.sql(asked.format('"table"')).fetchall()
    for _ in range(2):  # a scan is read anew each time
        got = duckdb.sql(asked.format("scan")).fetchall()
        assert [str(row) for row in got] == [str(row) for row in want]
    assert polars.DataFrame(scan).height == table.num_rows


def test_scan_that_is_left_early(run):
    before = open_files()
    scan = trainmon.scan(run, rows=8)
    pieces = iter(scan)
    first = next(pieces)
    want = first["seq"].tolist()
    reader = pa.RecordBatchReader.from_stream(scan)
    batch = reader.read_next_batch()
    del pieces, reader, scan
    gc.collect()
    assert batch["seq"].to_pylist() == want == first["seq"].tolist()
    assert duckdb.sql("SELECT seq FROM batch LIMIT 1").fetchall() == [(want[0],)]
    assert open_files() == before


def test_stream_outlives_its_scan(run):
    table = trainmon.read_table(run)
    reader = pa.RecordBatchReader.from_stream(trainmon.scan(run, rows=16))
    gc.collect()
    assert reader.read_all().num_rows == table.num_rows


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"rows": 0}, ValueError, "rows must be from 1 to 2147483647, not 0"),
        ({"rows": 1.5}, TypeError, "rows must be an int, not float"),
        ({"stats": "nrom"}, ValueError, "stats: .*did you mean 'norm'"),
        ({"kinds": "gradz"}, ValueError, "kinds: "),
        ({"steps": "x"}, TypeError, "steps must be"),
        ({"all_restarts": 1}, TypeError, "all_restarts must be True or False"),
    ],
)
def test_scan_says_what_is_wrong(run, wrong, error, text):
    with pytest.raises(error, match=text):
        trainmon.scan(run, **wrong)


def test_scan_of_no_run(tmp_path):
    with pytest.raises(FileNotFoundError):
        trainmon.scan(tmp_path / "none")


def test_file_that_changes_during_a_scan_is_said(tmp_path):
    """In the tables and in the stream; where warnings are errors, the consumer gets the error."""
    written = WrittenRank(tmp_path / "run")
    for window in range(2000):
        for name in ("a", "b", "c"):
            written.observe(np.ones(3, np.float32) * window, "grad_reduced", name, window)
        written.end_step()
    written.stop()
    scan = trainmon.scan(tmp_path / "run", rows=100)
    (log,) = tmp_path.glob("run/rank_*/*/log-*.tmlog")
    content = log.read_bytes()
    log.write_bytes(content[: len(content) // 2])
    with pytest.warns(RuntimeWarning, match="parts of the run could not be used: .*tmlog at byte"):
        few = sum(table.num_rows for table in scan)
    assert 0 < few < 6000
    with pytest.warns(RuntimeWarning, match="parts of the run could not be used"):
        assert pa.table(scan).num_rows == few
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="could not be used"):
            list(scan)
        with pytest.raises(Exception, match="could not be used"):
            pa.table(scan)
