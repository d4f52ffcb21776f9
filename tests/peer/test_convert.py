"""Our converters beside the peer's on the same files: mindstudio-probe 8.3.3 (csv2db,
csv2tensorboard_by_step) and 26.2.0 (data2db)."""

import math
import pathlib
import sqlite3
import subprocess

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import trainmon
from trainmon.compat.msprobe.core.monitor.csv2db import CSV2DBConfig, csv2db
from trainmon.compat.msprobe.pytorch.monitor.csv2tb import csv2tensorboard_by_step

HERE = pathlib.Path(__file__).resolve().parent
MICRO = {"actv", "actv_grad"}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Two ranks, steps in several files, micro steps, NaN and infinities, two chunks."""
    out = tmp_path_factory.mktemp("monitor_output")
    for rank in range(2):
        folder = out / f"Dec03_21-34-4{rank}-rank{rank}-0123abcd"
        folder.mkdir()
        for kind in ("actv", "actv_grad", "grad_reduced", "exp_avg", "param_origin", "other"):
            for first in range(0, 8, 2):
                write(folder / f"{kind}_{first}-{first + 1}.csv", kind, rank, first)
    return out


def write(path, kind, rank, first):
    micro_steps = range(3) if kind in MICRO else [None]
    head = ["vpp_stage", "name", "step", "micro_step", "norm", "min", "mean", "nans", "shape"]
    if kind not in MICRO:
        head.remove("micro_step")
    lines = [",".join(head)]
    for step in (first, first + 1):
        for chunk in range(2):
            for number, name in enumerate(
                ["layers.0.fc.weight", "layers.1.fc.weight", "head.bias"]
            ):
                for micro in micro_steps:
                    value = (step + 1) * (number + 0.25) + rank * 100 + len(kind)
                    odd = {(3, 0): "nan", (4, 1): "inf", (5, 1): "-inf"}.get((step, number))
                    cells = [
                        chunk,
                        name,
                        step,
                        micro,
                        odd or value,
                        -value * 1e9,
                        1e-7 * value,
                        step,
                    ]
                    cells = [str(c) for c in cells if c is not None]
                    lines.append(",".join([*cells, '"[2, 3]"']))
    path.write_text("\n".join(lines) + "\n")


def peer(python, what, source, out, processes=2):
    command = [python, HERE / "peer_convert.py", what, source, out, str(processes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]


def tables(path):
    """Rows by names instead of numbers: {(metric, rank, step, name, stage, micro): {stat: value}}."""
    connection = sqlite3.connect(path)
    names = [r[0] for r in connection.execute("SELECT name FROM sqlite_schema WHERE type='table'")]
    metrics = dict(connection.execute("SELECT metric_id, metric_name FROM monitoring_metrics"))
    found, shapes = {}, set()
    for table in names:
        if not table.startswith(("metric_", "trend_data")) or table == "metric_stats":
            continue
        cursor = connection.execute(
            f"SELECT * FROM {table} JOIN monitoring_targets USING (target_id)"
        )
        columns = [c[0] for c in cursor.description]
        for line in cursor:
            cells = dict(zip(columns, line))
            number = cells.pop("metric_id", None) or int(table.split("_")[1])
            cells.pop("target_id")
            key = (metrics[number], *(cells.pop(k) for k in
                   ("rank", "step", "target_name", "vpp_stage", "micro_step")))  # fmt: skip
            assert key not in found
            found[key] = cells
            shapes.add((metrics[number], *table.split("_")[2:], *cells))
    return found, shapes, connection


def test_csv2db(source, tmp_path, peer833_python):
    peer(peer833_python, "csv2db", source, tmp_path / "theirs")
    csv2db(CSV2DBConfig(str(source), process_num=2, output_dirpath=str(tmp_path / "ours")))
    theirs, their_shapes, old = tables(tmp_path / "theirs" / "monitor_metrics.db")
    ours, our_shapes, new = tables(tmp_path / "ours" / "monitor_metrics.db")
    assert_equal(ours, theirs)
    assert len(ours) == 2 * 8 * 6 * (2 * 3 + 4)
    assert our_shapes == their_shapes
    for query in (
        "SELECT * FROM global_stats ORDER BY 1",
        "SELECT metric_name, stat_name FROM metric_stats JOIN monitoring_metrics USING (metric_id)"
        " ORDER BY 1, 2",
        "SELECT target_name, vpp_stage, micro_step FROM monitoring_targets ORDER BY 1, 2, 3",
    ):
        assert new.execute(query).fetchall() == old.execute(query).fetchall()


def assert_equal(ours, theirs):
    """pandas, which the peer reads with, takes the last bit of some numbers wrong."""
    assert ours.keys() == theirs.keys()
    for key, cells in theirs.items():
        assert ours[key].keys() == cells.keys()
        for stat, value in cells.items():
            found = ours[key][stat]
            close = None not in (found, value) and math.isclose(found, value, rel_tol=1e-15)
            assert close or found == value, (key, stat, found, value)


def columns(connection, table):
    found = connection.execute(f"PRAGMA table_info({table})").fetchall()
    return [(name, kind, not_null, bool(key)) for _, name, kind, not_null, _, key in found]


def test_the_tables_of_csv2db_have_the_same_columns(source, tmp_path, peer833_python):
    peer(peer833_python, "csv2db", source, tmp_path / "theirs")
    csv2db(CSV2DBConfig(str(source), output_dirpath=str(tmp_path / "ours")))
    old = sqlite3.connect(tmp_path / "theirs" / "monitor_metrics.db")
    new = sqlite3.connect(tmp_path / "ours" / "monitor_metrics.db")
    for table in ("monitoring_targets", "monitoring_metrics", "metric_stats", "global_stats"):
        assert columns(new, table) == columns(old, table)


def events(out):
    found = {}
    for folder in sorted(p for p in out.glob("rank*/*") if p.is_dir()):
        reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        reader.Reload()
        for tag in reader.Tags()["scalars"]:
            for event in reader.Scalars(tag):
                value = "nan" if math.isnan(event.value) else event.value
                found[str(folder.relative_to(out)), tag, event.step] = value
    return found


def test_csv2tensorboard(source, tmp_path, peer833_python):
    peer(peer833_python, "csv2tb", source, tmp_path / "theirs")
    csv2tensorboard_by_step(str(source), process_num=2, output_dirpath=str(tmp_path / "ours"))
    theirs, ours = events(tmp_path / "theirs"), events(tmp_path / "ours")
    assert ours == theirs and len(ours) == 4 * 2 * 8 * 6 * (2 * 3 + 3)


def test_data2db(source, tmp_path, peer_python):
    peer(peer_python, "data2db", source, tmp_path / "theirs")
    (path,) = (tmp_path / "theirs").glob("*.db")
    trainmon.convert(source, tmp_path / "ours.db", "msprobe_trend", threads=2)
    theirs, their_shapes, old = tables(path)
    ours, our_shapes, new = tables(tmp_path / "ours.db")
    assert_equal(ours, theirs)
    assert len(ours) == 2 * 8 * 6 * (2 * 3 + 4)
    assert our_shapes == their_shapes
    for query in (
        "SELECT tag_name, category, metric_name FROM monitoring_tags JOIN monitoring_metrics"
        " USING (metric_id) ORDER BY 1, 2, 3",
        "SELECT tag_name, category, metric_name, target_name, vpp_stage FROM tag_target_mapping"
        " JOIN monitoring_tags USING (tag_id) JOIN monitoring_metrics USING (metric_id)"
        " JOIN monitoring_targets USING (target_id) ORDER BY 1, 2, 3, 4, 5",
        "SELECT min_step, max_step, max_rank FROM global_stats",
    ):
        assert new.execute(query).fetchall() == old.execute(query).fetchall()
    old.row_factory = new.row_factory = sqlite3.Row
    facts = [dict(c.execute("SELECT * FROM global_stats").fetchone()) for c in (old, new)]
    lists = [{k: set(v.split(",")) for k, v in f.items() if isinstance(v, str)} for f in facts]
    assert lists[0] == lists[1]
