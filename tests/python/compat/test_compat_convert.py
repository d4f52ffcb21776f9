"""csv2tensorboard_by_step and csv2db: the manual's examples, arguments, names of outputs, values, faults."""

import logging
import math
import os
import pathlib
import re
import sqlite3

import numpy as np
import pandas
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import compat_case
from trainmon.compat.msprobe import conversion
from trainmon.compat.msprobe.core.monitor.csv2db import CSV2DBConfig, csv2db
from trainmon.compat.msprobe.pytorch.monitor.csv2tb import csv2tensorboard_by_step

TYPES = ["actv", "actv_grad", "exp_avg", "exp_avg_sq", "grad_unreduced", "grad_reduced",
         "param_origin", "param_updated"]  # fmt: skip
CONFIG = {
    "targets": {},
    "xy_distribution": True,
    "all_xy": True,
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "monitor_mbs_grad": True,
    "format": "csv",
    "ops": ["norm", "min", "max", "mean", "zeros", "nans"],
    "step_count_per_record": 2,
}


def write(folder, name, lines):
    path = pathlib.Path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def small(tmp_path):
    """Two ranks; rank 0 was started three times, the third time outside the times asked for."""
    tmp_path = tmp_path / "monitor_output"
    head = "vpp_stage,name,step,norm,min,shape,dtype"
    micro = "vpp_stage,name,step,micro_step,norm,nans"

    def row(step, norm):
        return f'0,fc.weight,{step},{norm},-1.5,"[2, 3]",torch.float32'

    write(tmp_path, "Dec03_21-34-40-rank0-aaaaaaaa/grad_reduced_0-1.csv",
          [head, row(0, 1.0), row(1, 2.0), "1,fc.bias,1,inf,nan,[2],torch.float32"])  # fmt: skip
    write(tmp_path, "Dec03_21-34-42-rank0-bbbbbbbb/grad_reduced_0-1.csv", [head, row(1, 20.0)])
    write(tmp_path, "Dec03_21-34-42-rank0-bbbbbbbb/grad_reduced_2-3.csv", [head, row(2, 30.0)])
    write(tmp_path, "Dec03_21-34-43-rank0-cccccccc/grad_reduced_0-1.csv", [head, row(0, 99.0)])
    write(tmp_path, "Dec03_21-34-41-rank1-dddddddd/actv_0-0.csv",
          [micro, "0,fc.input,0,0,0.25,0", "0,fc.input,0,1,0.5,3"])  # fmt: skip
    write(tmp_path, "Dec03_21-34-41-rank1-dddddddd/other_0-0.csv",
          ["vpp_stage,name,step,mean", "0,fc.weight,0,0.125"])  # fmt: skip
    write(tmp_path, "notes/readme.txt", ["nothing"])
    return tmp_path


TIMES = {"time_start": "Dec03_21-34-40", "time_end": "Dec03_21-34-42"}


def events(folder):
    """{tag: {step: value}} of one folder of event files, as TensorBoard reads it."""
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    found = {}
    for tag in reader.Tags()["scalars"]:
        found[tag] = {event.step: event.value for event in reader.Scalars(tag)}
        assert len(found[tag]) == len(reader.Scalars(tag)), f"{tag}: a step twice"
    return found


def all_events(out):
    return {
        f"{rank.name}/{kind.name}": events(kind)
        for rank in out.iterdir()
        for kind in rank.iterdir()
    }


def same(found, wanted):
    return (math.isnan(found) and math.isnan(wanted)) or found == wanted


def database(path):
    """{metric: {(rank, step, name, stage, micro): {stat: value}}} of a monitor_metrics.db."""
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    names = {r[0] for r in connection.execute("SELECT name FROM sqlite_schema WHERE type='table'")}
    found = {}
    for number, metric in connection.execute("SELECT * FROM monitoring_metrics").fetchall():
        rows = found.setdefault(metric, {})
        for table in sorted(n for n in names if n.startswith(f"metric_{number}_step_")):
            first, last = map(int, table.split("_")[-2:])
            cursor = connection.execute(
                f"SELECT d.*, target_name, vpp_stage, micro_step FROM {table} d "
                "JOIN monitoring_targets USING (target_id)"
            )
            columns = [c[0] for c in cursor.description]
            for line in cursor:
                cells = dict(zip(columns, line))
                key = [cells.pop(c) for c in
                       ("rank", "step", "target_name", "vpp_stage", "micro_step")]  # fmt: skip
                assert first <= key[1] <= last
                cells.pop("target_id")
                rows[tuple(key)] = cells
    facts = dict(connection.execute("SELECT * FROM global_stats"))
    return found, facts, names


def test_the_manuals_example_of_csv2tensorboard(small, monkeypatch):
    monkeypatch.setenv("HOME", str(small.parent))
    csv2tensorboard_by_step(
        monitor_path="~/monitor_output",
        time_start="Dec03_21-34-40",
        time_end="Dec03_21-34-42",
        process_num=8,
        data_type_list=["grad_reduced"],
    )
    (out,) = small.glob("*csv2tensorboard*")
    assert re.fullmatch(r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_csv2tensorboard_by_step", out.name)
    found = all_events(out)
    assert list(found) == ["rank0/grad_reduced"]
    tags = found["rank0/grad_reduced"]
    assert set(tags) == {"vp0:fc.weight/norm", "vp0:fc.weight/min"}  # fc.bias: step 1 was redone
    assert tags["vp0:fc.weight/norm"] == {0: 1.0, 1: 20.0, 2: 30.0}  # the later start wins
    assert tags["vp0:fc.weight/min"] == {0: -1.5, 1: -1.5, 2: -1.5}


def test_the_manuals_example_of_csv2db(small, monkeypatch):
    monkeypatch.setenv("HOME", str(small.parent))
    config = CSV2DBConfig(
        monitor_path="~/monitor_output",
        time_start="Dec03_21-34-40",
        time_end="Dec03_21-34-42",
        process_num=8,
        data_type_list=["grad_reduced"],
        step_partition=500,
        output_dirpath="~/monitor_output",
    )
    csv2db(config)
    found, facts, names = database(small / "monitor_metrics.db")
    assert found == {
        "grad_reduced": {
            (0, 0, "fc.weight", 0, 0): {"norm": 1.0, "min": -1.5},
            (0, 1, "fc.weight", 0, 0): {"norm": 20.0, "min": -1.5},
            (0, 2, "fc.weight", 0, 0): {"norm": 30.0, "min": -1.5},
        }
    }
    # Steps by the names of files, as msprobe counts them.
    assert facts == {"max_rank": 0, "min_step": 0, "max_step": 3, "step_partition_size": 500}
    assert "metric_1_step_0_499" in names


def test_csv2db_without_times_and_all_types(small):
    csv2db(CSV2DBConfig(str(small), step_partition=10))
    (out,) = small.glob("*_csv2db")
    assert re.fullmatch(r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_csv2db", out.name)
    assert [p.name for p in out.iterdir()] == ["monitor_metrics.db"]
    found, facts, _ = database(out / "monitor_metrics.db")
    assert set(found) == {"grad_reduced", "actv", "other"}
    assert found["actv"] == {
        (1, 0, "fc.input", 0, 0): {"norm": 0.25, "nans": 0.0},
        (1, 0, "fc.input", 0, 1): {"norm": 0.5, "nans": 3.0},
    }
    assert found["other"] == {(1, 0, "fc.weight", 0, 0): {"mean": 0.125}}
    assert found["grad_reduced"][0, 0, "fc.weight", 0, 0]["norm"] == 99.0
    assert facts["max_rank"] == 1 and facts["step_partition_size"] == 10


def test_csv2tensorboard_without_times_takes_its_eight_types(small):
    csv2tensorboard_by_step(str(small), output_dirpath=str(small / "tb"))
    found = all_events(small / "tb")
    assert set(found) == {"rank0/grad_reduced", "rank1/actv"}
    assert found["rank1/actv"] == {
        "vp0:fc.input:micro0/norm": {0: 0.25},
        "vp0:fc.input:micro0/nans": {0: 0.0},
        "vp0:fc.input:micro1/norm": {0: 0.5},
        "vp0:fc.input:micro1/nans": {0: 3.0},
    }


def test_positional_arguments(small):
    csv2tensorboard_by_step(
        str(small), "Dec03_21-34-41", "Dec03_21-34-41", 2, ["actv"], str(small / "tb")
    )
    assert set(all_events(small / "tb")) == {"rank1/actv"}
    config = CSV2DBConfig(
        str(small), "Dec03_21-34-41", "Dec03_21-34-41", 2, ["actv"], str(small / "db"), 10
    )
    csv2db(config)
    assert set(database(small / "db" / "monitor_metrics.db")[0]) == {"actv"}
    assert CSV2DBConfig("x") == CSV2DBConfig("x", None, None, 1, None, None, 500)


@pytest.mark.parametrize(
    "given, expected",
    [
        (("Dec03_21-34-40", "Dec03_21-34-40"), {0: 1.0, 1: 2.0}),
        (("Dec03_21-34-42", "Dec03_21-34-43"), {0: 99.0, 1: 20.0, 2: 30.0}),
        ((None, "Dec03_21-34-42"), {0: 1.0, 1: 20.0, 2: 30.0}),
        (("Dec03_21-34-43", None), {0: 99.0}),
    ],
)
def test_times_are_closed(small, given, expected):
    csv2tensorboard_by_step(str(small), *given, output_dirpath=str(small / "tb"))
    assert events(small / "tb" / "rank0" / "grad_reduced")["vp0:fc.weight/norm"] == expected


CONVERTERS = {
    "tb": lambda path, **keys: csv2tensorboard_by_step(path, **keys),
    "db": lambda path, **keys: csv2db(CSV2DBConfig(path, **keys)),
}


@pytest.mark.parametrize("converter", CONVERTERS)
@pytest.mark.parametrize(
    "keys, error, says",
    [
        ({"process_num": 0}, ValueError, "process_num"),
        ({"process_num": 129}, ValueError, "128"),
        ({"process_num": True}, ValueError, "process_num"),
        ({"process_num": "8"}, ValueError, "process_num"),
        ({"data_type_list": "actv"}, ValueError, "data_type_list"),
        ({"data_type_list": ["param"]}, ValueError, "'param'"),
        ({"time_start": "2024-12-03"}, ValueError, "time_start"),
        ({"time_start": 3}, TypeError, "time_start"),
        ({"time_start": "Dec03_21-34-43", "time_end": "Dec03_21-34-42"}, ValueError, "later"),
        ({"output_dirpath": 7}, TypeError, "output_dirpath"),
    ],
)
def test_what_is_refused(small, converter, keys, error, says):
    before = sorted(os.listdir(small))
    with pytest.raises(error, match=says):
        CONVERTERS[converter](str(small), **keys)
    assert sorted(os.listdir(small)) == before


@pytest.mark.parametrize("value", [9, 10_000_001])
def test_step_partition_out_of_range(small, value):
    with pytest.raises(ValueError, match="step_partition"):
        csv2db(CSV2DBConfig(str(small), step_partition=value))
    with pytest.raises(TypeError, match="step_partition"):
        csv2db(CSV2DBConfig(str(small), step_partition="500"))


@pytest.mark.parametrize("converter", CONVERTERS)
def test_no_such_directory(tmp_path, converter):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        CONVERTERS[converter](str(tmp_path / "nowhere"))
    with pytest.raises(TypeError, match="monitor_path"):
        CONVERTERS[converter](None)


def test_other_is_a_type_of_csv2db_alone(small):
    csv2db(CSV2DBConfig(str(small), data_type_list=["other"], output_dirpath=str(small / "db")))
    with pytest.raises(ValueError, match="'other'"):
        csv2tensorboard_by_step(str(small), data_type_list=["other"])


def test_what_is_there_is_replaced(small):
    out = small / "out"
    for _ in range(2):
        csv2tensorboard_by_step(str(small), **TIMES, output_dirpath=str(out))
        csv2db(CSV2DBConfig(str(small), **TIMES, output_dirpath=str(out)))
    (out / "mine.txt").write_text("kept")
    csv2tensorboard_by_step(str(small), time_start="Dec03_21-34-43", output_dirpath=str(out))
    csv2db(CSV2DBConfig(str(small), time_start="Dec03_21-34-43", output_dirpath=str(out)))
    assert events(out / "rank0" / "grad_reduced") == {
        "vp0:fc.weight/norm": {0: 99.0},
        "vp0:fc.weight/min": {0: -1.5},
    }
    assert "vp0:fc.input:micro1/norm" in events(out / "rank1" / "actv")  # not converted again
    assert len(database(out / "monitor_metrics.db")[0]["grad_reduced"]) == 1
    assert sorted(os.listdir(out)) == ["mine.txt", "monitor_metrics.db", "rank0", "rank1"]


def test_bad_rows_are_left_out_and_named(small, caplog):
    path = small / "Dec03_21-34-40-rank0-aaaaaaaa" / "grad_reduced_0-1.csv"
    with path.open("a") as file:
        file.write("0,fc.weight,0,5.0,-1.5,[1],torch.float32\n")  # there before
        file.write("0,fc.weight,x,5.0,-1.5,[1],torch.float32\n")
        file.write("0,fc.other,1,much,-1.5,[1],torch.float32\n")
        file.write("0,fc.last,1,0.5,-1.5,[1],torch.float32\n")
        file.write("0,fc.cut,1,0.5")
    keys = {"time_end": "Dec03_21-34-40", "output_dirpath": str(small / "out")}
    for converter in CONVERTERS.values():
        caplog.clear()
        with caplog.at_level(logging.WARNING, "trainmon.compat.msprobe"):
            converter(str(small), **keys)
        said = [r.getMessage() for r in caplog.records if "not converted" in r.getMessage()]
        assert len(said) == 4
        for line, text in zip((5, 6, 7, 9), sorted(said)):
            assert f"{path} line {line}: " in text
    tags = events(small / "out" / "rank0" / "grad_reduced")
    assert tags["vp0:fc.weight/norm"] == {0: 1.0, 1: 2.0}
    assert tags["vp0:fc.last/norm"] == {1: 0.5} and "vp0:fc.other/norm" not in tags
    rows = database(small / "out" / "monitor_metrics.db")[0]["grad_reduced"]
    assert len(rows) == 4


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Files of our own TrainerMon."""
    folder = tmp_path_factory.mktemp("trained")
    out = folder / "monitor_output"
    with compat_case.output(out):
        model = compat_case.net()
        optimizer = compat_case.adam(model)
        monitor = compat_case.trainer_mon(folder, CONFIG)
        monitor.set_monitor(model, optimizer=optimizer, grad_acc_steps=2)
        for step in range(5):
            for micro in range(2):
                compat_case.loss_of(model, 2 * step + micro).backward()
            optimizer.step()
            optimizer.zero_grad()
        monitor.stop()
    return out


def frames(out):
    """{(rank, type): pandas of all its files}"""
    found = {}
    for path in sorted(out.glob("*-rank*-*/*.csv")):
        kind, rank = path.name.rsplit("_", 1)[0], int(re.search(r"-rank(\d+)-", str(path))[1])
        frame = pandas.read_csv(path, keep_default_na=False, na_values={"norm": ["nan"]})
        found.setdefault((rank, kind), []).append(frame)
    return {key: pandas.concat(some) for key, some in found.items()}


@pytest.mark.parametrize("threads", [1, 8])
def test_a_run_of_trainer_mon_to_tensorboard(trained, tmp_path, threads):
    csv2tensorboard_by_step(str(trained), process_num=threads, output_dirpath=str(tmp_path / "tb"))
    wanted = {}
    for (rank, kind), frame in frames(trained).items():
        if kind not in TYPES:
            continue
        tags = wanted.setdefault(f"rank{rank}/{kind}", {})
        for _, row in frame.iterrows():
            place = f"vp{row['vpp_stage']}:{row['name']}"
            if "micro_step" in frame:
                place += f":micro{row['micro_step']}"
            for op in CONFIG["ops"]:
                value = float(np.float32(row[op]))
                tags.setdefault(f"{place}/{op}", {})[row["step"]] = value
    found = all_events(tmp_path / "tb")
    assert found == wanted and len(wanted) == 8


@pytest.mark.parametrize("threads", [1, 8])
def test_a_run_of_trainer_mon_to_a_database(trained, tmp_path, threads):
    csv2db(CSV2DBConfig(str(trained), None, None, threads, None, str(tmp_path), 10))
    found, facts, _ = database(tmp_path / "monitor_metrics.db")
    wanted = {}
    for (rank, kind), frame in frames(trained).items():
        if kind not in [*TYPES, "other"]:
            continue
        for _, row in frame.iterrows():
            micro = row["micro_step"] if "micro_step" in frame else 0
            key = (rank, row["step"], row["name"], row["vpp_stage"], micro)
            wanted.setdefault(kind, {})[key] = {op: row[op] for op in CONFIG["ops"]}
    assert found == wanted and len(wanted) == 8
    assert facts == {"max_rank": 0, "min_step": 0, "max_step": 5, "step_partition_size": 10}


def test_files_with_nothing_of_the_types(small):
    with pytest.raises(RuntimeError, match="no files"):
        csv2db(CSV2DBConfig(str(small), data_type_list=["exp_avg"]))
    assert conversion.TYPES == TYPES
