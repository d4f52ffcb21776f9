"""Arrow for others: what a table gives by the PyCapsule interface is what its arrays hold, shares
their memory, lives as long as somebody needs it, and is let go once."""

from __future__ import annotations

import gc

import duckdb
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest

import trainmon
from written_run import WrittenRank

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
