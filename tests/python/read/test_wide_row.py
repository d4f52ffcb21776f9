"""A fingerprint has 64 bits; NumPy, pandas and Parquet keep every one of them. No column of trainmon
is a fingerprint yet, so the rows are the test's own, through the templates of the bindings."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
from pathlib import Path

import duckdb
import nanobind
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainmon import parquet
from trainmon.table import RunTable

ROOT = Path(__file__).parents[3]
PRINTS = [2**64 - 1, 2**53 + 1, 2**63, 0, None, 1, 0x12E4567890123456]


class Rows:
    """What RunTable asks of the rows that were read."""

    def __init__(self, module):
        self.module = module

    def columns(self, stats: list):
        return self

    def arrays(self) -> dict:
        return self.module.arrays(PRINTS)

    def __arrow_c_stream__(self, requested_schema=None):
        return self.module.stream(PRINTS)

    def __len__(self) -> int:
        return len(PRINTS)

    def __getattr__(self, name: str):
        return list


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> RunTable:
    """The columns of PRINTS as the bindings make them."""
    folder = tmp_path_factory.mktemp("module")
    built = folder / ("wide_row_module" + sysconfig.get_config_var("EXT_SUFFIX"))
    nanobind_files = Path(nanobind.__file__).parent
    command = ["c++", "-std=c++20", "-O0", "-fPIC", "-shared", "-fvisibility=hidden", "-DNDEBUG"]
    for included in (
        *(ROOT / place for place in ("include", "src", "python/bindings")),
        sysconfig.get_path("include"),
        nanobind_files / "include",
        nanobind_files / "ext" / "robin_map" / "include",
    ):
        command.append(f"-I{included}")
    command += [
        nanobind_files / "src" / "nb_combined.cpp",
        Path(__file__).with_name("wide_row_module.cpp"),
        ROOT / "python/bindings/arrow_export.cpp",
        ROOT / "src/base/text.cpp",
        "-o",
        built,
    ]
    assert shutil.which("c++"), "trainmon is built with a C++ compiler, as this test is"
    subprocess.run(command, check=True)
    spec = importlib.util.spec_from_file_location("wide_row_module", built)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return RunTable(Rows(module), ())


def test_numpy(table):
    column = table["print"]
    assert column.dtype == np.uint64
    assert column.tolist() == PRINTS
    assert column.mask.tolist() == [print is None for print in PRINTS]
    assert table.distinct("print") == sorted(print for print in PRINTS if print is not None)


def test_other_columns_have_no_mask(table):
    for name, dtype in [
        ("rank", "int32"),
        ("step", "int64"),
        ("seq", "int64"),
        ("flags", "uint32"),
    ]:
        assert type(table[name]) is np.ndarray and table[name].dtype == dtype


def test_pandas(table):
    column = table.to_pandas()["print"]
    assert column.dtype == pd.UInt64Dtype()
    assert [None if pd.isna(value) else int(value) for value in column] == PRINTS


def test_arrow(table):
    column = pa.table(table)["print"]
    assert column.type == pa.uint64() and column.null_count == 1
    assert column.to_pylist() == PRINTS
    column.validate(full=True)


def test_names_that_are_no_utf8(table):
    """Arrow has such bytes escaped; two names that look the same then are one."""
    names = ["w\\xff", "w\udcff"] * len(PRINTS)
    assert table["name"].tolist() == names[: len(PRINTS)]
    arrow = pa.table(table)
    arrow.validate(full=True)
    assert set(arrow["name"].to_pylist()) == {"w\\xff"}
    assert arrow["name"].chunk(0).dictionary.to_pylist() == ["w\\xff"]


def test_parquet(table, tmp_path):
    rows = parquet.columns(table)
    parquet.write_file([rows], tmp_path / "part.parquet")
    read = pq.read_table(tmp_path / "part.parquet")
    assert str(read.schema.field("print").type) == "uint64"
    assert read["print"].to_pylist() == PRINTS
    (values,) = zip(
        *duckdb.sql(f"SELECT print FROM '{tmp_path}/part.parquet' ORDER BY step").fetchall(),
        strict=True,
    )
    assert list(values) == PRINTS
