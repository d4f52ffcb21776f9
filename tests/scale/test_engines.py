"""docs/scale.md as it stands, in DuckDB, Spark (local mode) and Ray Data: the same answers."""

from __future__ import annotations

import os

import pytest

import scale_case
import trainmon.parquet


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scale")
    scale_case.write_run(folder / "run")
    trainmon.parquet.write_dataset(str(folder / "run"), folder / "set")
    return str(folder / "set"), scale_case.expected(folder / "run")


@pytest.fixture(scope="module")
def spark():
    os.environ["PYSPARK_SUBMIT_ARGS"] = (
        "--master local[2] --conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=4 "
        "--conf spark.driver.bindAddress=127.0.0.1 --conf spark.driver.host=127.0.0.1 pyspark-shell"
    )
    yield
    from pyspark.sql import SparkSession

    SparkSession.builder.getOrCreate().stop()


@pytest.fixture(scope="module")
def ray_here():
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.parametrize("query", scale_case.NAMES)
def test_duckdb(case, query):
    dataset, expected = case
    names = {"DATASET": dataset, "QUERY": scale_case.blocks(query)[0]}
    exec(scale_case.setup("duckdb"), names)
    scale_case.assert_same(names["answer"], expected[query])


@pytest.mark.parametrize("query", scale_case.NAMES)
def test_spark(case, spark, query):
    dataset, expected = case
    names = {"DATASET": dataset, "QUERY": scale_case.blocks(query)[0]}
    exec(scale_case.setup("spark"), names)
    scale_case.assert_same(names["answer"], expected[query])


@pytest.mark.parametrize("query", scale_case.NAMES)
def test_ray(case, ray_here, query):
    dataset, expected = case
    names = {"DATASET": dataset}
    exec(scale_case.setup("ray"), names)
    exec(scale_case.blocks(query)[1], names)
    scale_case.assert_same(names["answer"], expected[query])
