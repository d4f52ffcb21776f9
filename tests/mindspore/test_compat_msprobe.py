# The compatible face: the manual's scripts with only the import changed, files against the oracle.
import json

import mindspore as ms
import mlp
import numpy as np
import pandas as pd
import pytest
from mindspore import Tensor

from trainmon.compat.msprobe.mindspore import PrecisionDebugger, TrainerMon
from trainmon.compat.msprobe.trainer_mon import MonitorExit

ALL = {
    "targets": {},
    "xy_distribution": True,
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "mg_direction": True,
    "stack_info": True,
    "monitor_mbs_grad": True,
    "format": "csv",
    "ops": ["norm", "min", "max", "mean", "nans"],
    "ndigits": 12,
}


def config(tmp_path, **fields) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**ALL, **fields}))
    return str(path)


@pytest.fixture(autouse=True)
def output(tmp_path, monkeypatch):
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    monkeypatch.delenv("DYNAMIC_MONITOR", raising=False)


def files(tmp_path) -> dict[str, pd.DataFrame]:
    found = sorted((tmp_path / "out").glob("*/*.csv"))
    return {path.stem: pd.read_csv(path) for path in found}


def run(tmp_path, steps=3, micro=2, **fields):
    model = mlp.net()
    optimizer = mlp.adamw(model)
    monitor = TrainerMon(config(tmp_path, **fields))
    monitor.set_monitor(model, grad_acc_steps=micro, optimizer=optimizer)
    mlp.train(model, optimizer, steps, micro)
    monitor.stop()
    return files(tmp_path)


@pytest.mark.parametrize(
    ("file", "kind", "shift"),
    [
        ("grad_reduced", "grad_reduced", 0),
        ("param_origin", "param_origin", 0),
        ("param_updated", "param_updated", 0),
        ("exp_avg", "exp_avg", -1),  # read at the entry of the step, as the peer does
        ("exp_avg_sq", "exp_avg_sq", -1),
    ],
)
def test_files_of_parameters(tmp_path, file, kind, shift):
    found, oracle = run(tmp_path), mlp.oracle()
    for step in range(max(0, -shift), 3):
        table = found[f"{file}_{step}-{step}"]
        assert set(table["name"]) == set(mlp.SIZES)
        for _, row in table.iterrows():
            expected = oracle[step + shift][kind][row["name"]]
            assert row["norm"] == pytest.approx(np.linalg.norm(expected), rel=1e-4)
            assert row["max"] == pytest.approx(expected.max(), rel=1e-3, abs=1e-7)


def test_unreduced_gradients_of_each_micro_step(tmp_path):
    table, oracle = run(tmp_path)["grad_unreduced_1-1"], mlp.oracle()
    assert len(table) == 2 * 4
    for name in mlp.SIZES:
        norms = sorted(table[table["name"] == name]["norm"])
        expected = sorted(np.linalg.norm(micro[name]) for micro in oracle[1]["micro"])
        assert norms == pytest.approx(expected, rel=1e-4)


def test_activations_of_a_target(tmp_path):
    targets = {"fc2": {"input": "tuple[1]:0", "output": "tensor", "output_grad": "tuple[1]:0"}}
    found = run(tmp_path, steps=1, micro=1, targets=targets)
    (seen,) = mlp.oracle(1, 1)
    rows = found["actv_0-0"].set_index("name")["norm"].to_dict()
    assert rows == {
        "fc2.input": pytest.approx(np.linalg.norm(seen["values"][0]["h"]), rel=1e-5),
        "fc2.output": pytest.approx(np.linalg.norm(seen["values"][0]["out"]), rel=1e-5),
    }
    rows = found["actv_grad_0-0"].set_index("name")["norm"].to_dict()
    assert rows == {
        "fc2.output": pytest.approx(np.linalg.norm(seen["flows"][0]["out"]), rel=1e-5),
    }
    assert set(found["param_origin_0-0"]["name"]) == {"fc2.weight", "fc2.bias"}


@pytest.mark.parametrize(
    ("only", "other"), [("forward_only", "actv_grad"), ("backward_only", "actv")]
)
def test_one_direction_only(tmp_path, only, other):
    names = {name.rsplit("_", 1)[0] for name in run(tmp_path, steps=1, **{only: True})}
    kept = {"actv", "actv_grad"} - {other}
    assert kept <= names and other not in names


def test_steps_to_collect(tmp_path):
    fields = {"start_step": 1, "step_interval": 2, "collect_times": 2, "step_count_per_record": 4}
    found = run(tmp_path, steps=8, micro=1, xy_distribution=False, **fields)
    steps = pd.concat(table for name, table in found.items() if name.startswith("param_origin"))
    assert sorted(set(steps["step"])) == [1, 3]
    assert {name for name in found if name.startswith("param_origin")} == {"param_origin_0-3"}


def test_module_ranks_leave_others_out(tmp_path):
    assert run(tmp_path, module_ranks=[1]) == {}


def test_alerts_are_dumped(tmp_path):
    alert = {"rules": [{"rule_name": "AnomalyNan", "args": {"threshold": 0.001}}], "dump": True}
    run(tmp_path, alert=alert)
    (path,) = (tmp_path / "out").rglob("anomaly.json")
    found = json.loads(path.read_text())
    assert found and all("AnomalyNan" in json.dumps(one) for one in found.values())


def test_structure_of_the_model_ends_training(tmp_path):
    with pytest.raises(MonitorExit):
        run(tmp_path, print_struct=True)
    (path,) = (tmp_path / "out").rglob("module_struct.json")
    found = json.loads(path.read_text())
    assert any("fc1" in name for name in found)


def test_dynamic_mode_follows_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    model = mlp.net()
    optimizer = mlp.adamw(model)
    monitor = TrainerMon(config(tmp_path, dynamic_on=False))
    monitor.set_monitor(model, optimizer)
    grad = mlp.gradients_of(model, optimizer)
    for step in range(6):
        if step == 2:
            config(tmp_path, dynamic_on=True, collect_times=2, xy_distribution=False)
        optimizer(grad(*map(Tensor, mlp.batch(step)))[1])
    monitor.stop()
    steps = [
        int(name.rsplit("-")[-1]) for name in files(tmp_path) if name.startswith("param_origin")
    ]
    assert sorted(steps) == [3, 4]
    assert json.loads((tmp_path / "config.json").read_text())["dynamic_on"] is False


def test_an_optimizer_wrapped_by_jit_is_refused_by_name(tmp_path):
    model = mlp.net()
    monitor = TrainerMon(config(tmp_path))
    with pytest.raises(TypeError, match="mindspore.jit"):
        monitor.set_monitor(model, ms.jit(mlp.adamw(model)))


# --- grad_probe ----------------------------------------------------------------------------------


def probe(tmp_path, level: str, jit=False, **block) -> None:
    path = tmp_path / "probe.json"
    block = {"grad_level": level, "bounds": [-1, 0, 1], **block}
    given = {"task": "grad_probe", "dump_path": str(tmp_path / "probe"), "grad_probe": block}
    path.write_text(json.dumps(given))
    model = mlp.net()
    optimizer = mlp.adamw(model)
    debugger = PrecisionDebugger(str(path))
    debugger.monitor(optimizer)
    grad = mlp.gradients_of(model, optimizer)
    mlp.train(model, optimizer, 2, 1, ms.jit(grad) if jit else grad)
    debugger.stop()


@pytest.mark.parametrize("jit", [False, True], ids=["pynative", "gradients of a graph"])
@pytest.mark.parametrize("level", ["L0", "L1", "L2"])
def test_probe_of_gradients(tmp_path, level, jit):
    probe(tmp_path, level, jit)
    for step, seen in enumerate(mlp.oracle(2, 1)):
        folder = tmp_path / "probe" / "rank0"
        table = pd.read_csv(folder / f"grad_summary_{step}.csv").set_index("param_name")
        assert set(table.index) == set(mlp.SIZES)
        for name, expected in seen["grad_reduced"].items():
            row = table.loc[name]
            assert row["norm"] == pytest.approx(np.linalg.norm(expected), rel=1e-4)
            assert row["max"] == pytest.approx(expected.max(), rel=1e-3)
            assert ("MD5" in table.columns) == (level == "L0")
            if level == "L2":
                share = (expected <= -1).mean()
                assert row["(-inf, -1]"] == pytest.approx(share)
            if level != "L0":
                signs = np.load(folder / f"step{step}" / f"{name}.npy")
                assert np.array_equal(signs, expected > 0)


def test_probe_of_chosen_parameters(tmp_path):
    probe(tmp_path, "L1", param_list=["fc1.weight"])
    table = pd.read_csv(tmp_path / "probe" / "rank0" / "grad_summary_0.csv")
    assert list(table["param_name"]) == ["fc1.weight"]


def test_probe_refuses_a_jitted_optimizer(tmp_path):
    path = tmp_path / "probe.json"
    path.write_text(
        json.dumps({"task": "grad_probe", "dump_path": str(tmp_path), "grad_probe": {}})
    )
    debugger = PrecisionDebugger(str(path))
    try:
        with pytest.raises(TypeError, match="mindspore.jit"):
            debugger.monitor(ms.jit(mlp.adamw(mlp.net())))
    finally:
        debugger.stop()
