# The examples of msprobe's manuals for MindSpore run, with only the import changed.
"""Configurations are those of tests/python/compat_manual.py, read without importing it (it needs torch)."""

import ast
import json
import pathlib
import sqlite3
import subprocess
import sys
import types

import mlp
import numpy as np
import pandas as pd
import pytest
from mindspore import Tensor, nn

import trainmon.compat.msprobe.mindspore  # noqa: F401

QUICK_START = """
from trainmon.compat.msprobe.mindspore import TrainerMon
monitor = TrainerMon(
    config_file_path="./monitor_config.json",
    process_group=None,
    params_have_main_grad=True,
)
monitor.set_monitor(
    model,
    grad_acc_steps=args.global_batch_size//args.data_parallel_size//args.micro_batch_size,
    optimizer=optimizer,
    dp_group=None,
    tp_group=None
)
"""

PROBE = """
from trainmon.compat.msprobe.mindspore import PrecisionDebugger
debugger = PrecisionDebugger("config_json_path")
debugger.monitor(optimizer)
"""

PROBE_CONFIG = """
{
 "task": "grad_probe",
 "dump_path": "./dump_path",
 "rank": [],
 "step": [],
 "grad_probe": {
     "grad_level": "L1",
     "param_list": [],
     "bounds": [-1, 0, 1]
 }
}
"""

COMPARE = """
from trainmon.compat.msprobe import *
GradComparator.compare_distributed("one",
                                    "two",
                                    "result")
"""

CSV2DB = """
from trainmon.compat.msprobe.core.monitor.csv2db import CSV2DBConfig, csv2db
config = CSV2DBConfig(
    monitor_path="monitor_output",
    process_num=8,
    data_type_list=["grad_unreduced"],
    step_partition=500,
    output_dirpath="monitor_output"
)
csv2db(config)
"""

ALL = ["actv", "actv_grad", "exp_avg", "exp_avg_sq", "grad_reduced", "grad_unreduced",
       "param_origin", "param_updated"]  # fmt: skip
EXPECTED = {
    "param": ["param_origin", "param_updated"],
    "wg": ["grad_reduced", "grad_unreduced"],
    "xy": ["actv", "actv_grad"],
    "mv": ["exp_avg", "exp_avg_sq"],
    "stack": ["stack"],
    "targets": [],
    "all targets": [],
    "ops": [],
    "mbs": ["grad_reduced", "grad_unreduced"],
    "details": ALL,
}


def configs() -> dict:
    path = pathlib.Path(__file__).parents[1] / "python" / "compat_manual.py"
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "CONFIGS":
            return ast.literal_eval(node.value)
    raise AssertionError("no CONFIGS")


class Layers(nn.Cell):
    """With the names that the manual's targets have."""

    def __init__(self):
        super().__init__()
        self.language_model = nn.Cell()
        self.language_model.encoder = nn.Cell()
        self.language_model.encoder.layers = nn.CellList([nn.Dense(6, 3)])

    def construct(self, x):
        return self.language_model.encoder.layers[0](x)


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MONITOR_OUTPUT_DIR", raising=False)
    monkeypatch.delenv("DYNAMIC_MONITOR", raising=False)
    started = []

    def run(config: str, text: str = QUICK_START, model=None) -> dict:
        pathlib.Path("monitor_config.json").write_text(config)
        pathlib.Path("config_json_path").write_text(config)
        model = model or mlp.net()
        sizes = {"global_batch_size": 8, "data_parallel_size": 1, "micro_batch_size": 4}
        space = {
            "model": model,
            "optimizer": mlp.adamw(model),
            "args": types.SimpleNamespace(**sizes),
        }
        exec(text, space)
        started.append(space.get("monitor") or space["debugger"])
        return space

    yield run
    for one in started:
        one.stop()


def prefixes() -> list[str]:
    found = pathlib.Path("monitor_output").glob("*/*.csv")
    return sorted({path.stem.rsplit("_", 1)[0] for path in found})


@pytest.mark.parametrize("name", EXPECTED)
def test_every_configuration(name, start):
    model = Layers().set_train() if name == "details" else None
    space = start(configs()[name], model=model)
    mlp.train(space["model"], space["optimizer"])
    space["monitor"].stop()
    assert prefixes() == EXPECTED[name]


def test_features_of_torch_are_said_not_to_be_offered(start, caplog):
    """The manual: PyTorch only."""
    with caplog.at_level("INFO"):
        space = start(configs()["l2"])
        mlp.train(space["model"], space["optimizer"])
        space["monitor"].stop()
    assert prefixes() == [] and "not offered under MindSpore" in caplog.text


def test_statistics_are_changed_while_training(start):
    space = start(configs()["wg"])
    mlp.train(space["model"], space["optimizer"], steps=1)
    space["monitor"].ops = ["min", "max"]
    mlp.train(space["model"], space["optimizer"], steps=1)
    space["monitor"].stop()
    (folder,) = pathlib.Path("monitor_output").glob("*")
    first, second = (pd.read_csv(folder / f"grad_reduced_{k}-{k}.csv") for k in range(2))
    assert "norm" in first and "norm" not in second and {"min", "max"} <= set(second)


def test_activations_are_switched_on_while_training(start):
    space = start(configs()["wg"])
    mlp.train(space["model"], space["optimizer"], steps=1)
    space["monitor"].reload_xy(xy_distribution=True)
    mlp.train(space["model"], space["optimizer"], steps=1)
    space["monitor"].stop()
    (folder,) = pathlib.Path("monitor_output").glob("*")
    table = pd.read_csv(folder / "actv_1-1.csv")
    expected = mlp.oracle(2)[1]["values"]
    assert not (folder / "actv_0-0.csv").exists() and len(table) > 0
    assert "fc2" in " ".join(table["name"]) and len(expected) == 2


def test_old_names_of_calls(start):
    text = QUICK_START.replace("monitor.set_monitor(", "monitor.monitor_gnorm_with_ad(")
    text = text.replace("    optimizer=optimizer,\n", "")
    text = text.replace(
        "monitor.monitor", "monitor.set_wrapped_optimizer(optimizer)\nmonitor.monitor"
    )
    space = start(configs()["param"], text)
    mlp.train(space["model"], space["optimizer"])
    space["monitor"].stop()
    assert prefixes() == ["param_origin", "param_updated"]


def test_metrics_that_are_asked_for_in_a_loop(start):
    space = start(configs()["wg"].replace('"csv"', '"api"'))
    mlp.train(space["model"], space["optimizer"], steps=1)
    exec("reduced, unreduced = monitor.generate_wgrad_metrics()", space)
    exec("actv, actv_grad = monitor.generate_xy_metrics()", space)
    expected = np.linalg.norm(mlp.oracle(1)[0]["grad_reduced"]["fc1.weight"])
    assert space["reduced"]["0:fc1.weight/rank0/post_grad"]["norm"] == pytest.approx(
        expected, rel=1e-4
    )
    assert len(space["unreduced"]) == 4 and space["actv"] == {} == space["actv_grad"]


def test_anomalies_are_put_in_order(start, tmp_path, monkeypatch):
    rule = {"rules": [{"rule_name": "AnomalyNan"}], "dump": True}
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    space = start(json.dumps({"targets": {}, "wg_distribution": True, "alert": rule}))
    grads = [Tensor(np.full(shape, np.nan, np.float32)) for shape in mlp.SIZES.values()]
    space["optimizer"](tuple(grads))
    space["monitor"].stop()
    command = [sys.executable, "-m", "trainmon.compat.msprobe.core.monitor.anomaly_processor"]
    done = subprocess.run(
        [*command, "-d", str(tmp_path / "out" / "anomaly_detected")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "out").rglob("anomaly_analyse.json")
    assert "fc1.weight" in path.read_text()


def test_files_become_a_database(start):
    space = start(configs()["wg"])
    mlp.train(space["model"], space["optimizer"])
    space["monitor"].stop()
    exec(CSV2DB, {})
    (path,) = pathlib.Path("monitor_output").rglob("monitor_metrics.db")
    with sqlite3.connect(path) as database:
        metrics = database.execute("SELECT * FROM monitoring_metrics").fetchall()
        (table,) = [
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master")
            if name.startswith("metric_1_step")
        ]
        (count,) = database.execute(f"SELECT count(*) FROM {table}").fetchone()
    assert metrics == [(1, "grad_unreduced")]
    assert count == 3 * 4  # a value for each step and parameter


def test_the_probe_and_its_comparator(start):
    """Signs of two trainings, compared: the share of elements that agree, by NumPy."""
    seen = []
    for folder, seed in (("one", 0), ("two", 7)):
        model = mlp.net()
        for name, parameter in model.parameters_and_names():
            parameter.set_data(Tensor(mlp.weights(seed)[name]))
        config = PROBE_CONFIG.replace("./dump_path", f"./{folder}")
        space = start(config, PROBE, model)
        grad = mlp.gradients_of(model, space["optimizer"])
        found = []
        for step in range(3):
            gradients = grad(*map(Tensor, mlp.batch(step)))[1]
            found.append([mlp.copy_of(one) > 0 for one in gradients])
            space["optimizer"](gradients)
        exec("debugger.stop()", space)
        seen.append(found)
    exec(COMPARE, {})
    (path,) = pathlib.Path("result").rglob("similarities.csv")
    table = pd.read_csv(path).set_index("step")
    assert set(table.index) == {*mlp.SIZES, "summary"} and list(table) == ["0", "1", "2"]
    one, two = seen
    for step in range(3):
        same, size = 0, 0
        for name, a, b in zip(mlp.SIZES, one[step], two[step], strict=True):
            found = table.loc[name, str(step)]
            assert found == pytest.approx((a == b).mean(), abs=1e-6), name
            same, size = same + (a == b).sum(), size + a.size
        assert table.loc["summary", str(step)] == pytest.approx(same / size, abs=1e-6)
