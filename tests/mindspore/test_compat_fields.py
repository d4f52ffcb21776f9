# The compatible face on MindSpore: formats, rules and what is asked of a TrainerMon, against NumPy.
import json

import mlp
import numpy as np
import pandas as pd
import pytest
from mindspore import Tensor
from tensorboard.backend.event_processing import event_accumulator as accumulators
from test_compat_msprobe import ALL, config, files, output, run  # noqa: F401

from trainmon.compat.msprobe.mindspore import TrainerMon
from trainmon.compat.msprobe.trainer_mon import MonitorExit


def events_of(tmp_path):
    (folder,) = {path.parent for path in (tmp_path / "out").rglob("events.out.tfevents.*")}
    found = accumulators.EventAccumulator(
        str(folder), size_guidance=dict.fromkeys(accumulators.DEFAULT_SIZE_GUIDANCE, 0)
    )
    return found.Reload()


def test_tensorboard(tmp_path):
    assert run(tmp_path, format="tensorboard", ur_distribution=True, stack_info=False) == {}
    events, oracle = events_of(tmp_path), mlp.oracle()
    for name in mlp.SIZES:
        for tag, kind in (("post_grad", "grad_reduced"), ("param_updated", "param_updated")):
            got = events.Scalars(f"0:{name}/rank0/{tag}_norm")
            assert [event.step for event in got] == [0, 1, 2]
            expected = [np.linalg.norm(seen[kind][name]) for seen in oracle]
            assert [event.value for event in got] == pytest.approx(expected, rel=1e-4)
        for micro in range(2):
            got = events.Scalars(f"0:{name}:{micro}/rank0/acc_grad_norm")
            expected = [np.linalg.norm(seen["micro"][micro][name]) for seen in oracle]
            assert [event.value for event in got] == pytest.approx(expected, rel=1e-4)
    # Histograms of Adam's steps: with the moments that a step finds, so not of the first one.
    tags = [tag for tag in events.Tags()["histograms"] if "fc1.weight" in tag]
    assert len(tags) == 2
    for tag in tags:
        assert [event.step for event in events.Histograms(tag)] == [1, 2]
        for event in events.Histograms(tag):
            seen = oracle[event.step - 1]
            eps = 0.0 if "ratio" in tag else mlp.EPS
            m, v = seen["exp_avg"]["fc1.weight"], seen["exp_avg_sq"]["fc1.weight"]
            values = m / (np.sqrt(v) + eps)
            inside = int((np.abs(values) <= 1).sum())
            assert abs(event.histogram_value.num - inside) <= 1


def test_metrics_that_are_asked_for(tmp_path):
    """format "api": no files, numbers by name."""
    model = mlp.net()
    optimizer = mlp.adamw(model)
    monitor = TrainerMon(config(tmp_path, format="api", monitor_mbs_grad=False, stack_info=False))
    monitor.set_monitor(model, optimizer=optimizer, grad_acc_steps=1)
    grad, oracle = mlp.gradients_of(model, optimizer), mlp.oracle(3, 1)
    for step, seen in enumerate(oracle):
        gradients = grad(*map(Tensor, mlp.batch(step)))[1]
        actv, actv_grad = monitor.generate_xy_metrics()
        norm = np.linalg.norm(seen["values"][0]["out"])
        assert actv["0:fc2.output:0/rank0/actv"]["norm"] == pytest.approx(norm, rel=1e-5)
        norm = np.linalg.norm(seen["flows"][0]["out"])
        assert actv_grad["0:fc2.output:0/rank0/actv_grad"]["norm"] == pytest.approx(norm, rel=1e-5)
        optimizer(gradients)
        reduced, unreduced = monitor.generate_wgrad_metrics()
        assert len(reduced) == len(unreduced) == 4
        for name, expected in seen["grad_reduced"].items():
            for found, task in ((reduced, "post_grad"), (unreduced, "acc_grad")):
                metrics = found[f"0:{name}/rank0/{task}"]
                assert metrics["norm"] == pytest.approx(np.linalg.norm(expected), rel=1e-4)
                assert metrics["shape"] == expected.shape and metrics["dtype"] == "float32"
    monitor.stop()
    assert files(tmp_path) == {}


def test_groups_of_one_process(tmp_path, caplog):
    """Without communication.init() names of groups mean nothing, and hide nothing."""
    model = mlp.net()
    optimizer = mlp.adamw(model)
    monitor = TrainerMon(config(tmp_path), process_group="pipeline")
    monitor.set_monitor(model, 2, optimizer, "data", "tensor")
    mlp.train(model, optimizer, 1)
    monitor.stop()
    assert len(files(tmp_path)["grad_reduced_0-0"]) == 4
    assert (monitor.rank, monitor.pp_stage, monitor.group_mates) == (0, 0, [0])


def test_turbulence_is_found(tmp_path):
    rules = [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}]
    model = mlp.net()
    optimizer = mlp.adamw(model)
    fields = {"alert": {"rules": rules, "dump": True}, "xy_distribution": False}
    monitor = TrainerMon(config(tmp_path, **fields, monitor_mbs_grad=False))
    monitor.set_monitor(model, optimizer)
    for step in range(6):
        size = 100.0 if step == 5 else 1.0
        gradients = [np.full(shape, size, np.float32) for shape in mlp.SIZES.values()]
        optimizer(tuple(map(Tensor, gradients)))
    monitor.stop()
    (path,) = (tmp_path / "out").rglob("anomaly.json")
    found = json.loads(path.read_text())
    steps = {
        one["step"]
        for one in found.values()
        if "AnomalyTurbulence" in json.dumps(one) and "post_grad" in json.dumps(one)
    }
    assert steps == {5}


def test_a_nan_in_a_gradient_is_an_anomaly(tmp_path):
    rules = [{"rule_name": "AnomalyNan"}]
    model = mlp.net()
    optimizer = mlp.adamw(model)
    monitor = TrainerMon(config(tmp_path, alert={"rules": rules, "dump": True}))
    monitor.set_monitor(model, optimizer)
    gradients = [np.ones(shape, np.float32) for shape in mlp.SIZES.values()]
    gradients[1][0] = np.nan
    optimizer(tuple(map(Tensor, gradients)))
    monitor.stop()
    (path,) = (tmp_path / "out").rglob("anomaly.json")
    text = path.read_text()
    assert "fc1.bias" in text and "fc2.weight" not in text


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({"start_step": 2}, [2, 3, 4, 5]),
        ({"step_interval": 3}, [0, 3]),
        ({"collect_times": 2}, [0, 1]),
        ({"start_step": 1, "step_interval": 2, "collect_times": 2}, [1, 3]),
        ({"collect_times": 0}, []),
    ],
)
def test_when_to_collect(tmp_path, fields, steps):
    found = run(tmp_path, steps=6, micro=1, **fields)
    for prefix in ("param_origin", "grad_reduced", "actv_grad", "other"):
        tables = [table for name, table in found.items() if name.rsplit("_", 1)[0] == prefix]
        seen = sorted({int(step) for table in tables for step in table["step"]})
        # In step 0 there is no momentum yet.
        assert seen == [step for step in steps if step or prefix != "other"], prefix


def test_directions(tmp_path):
    found, oracle = run(tmp_path), mlp.oracle()
    for step in (1, 2):
        table = found[f"other_{step}-{step}"].set_index("name")
        for name in mlp.SIZES:
            gradient, before = oracle[step]["grad_reduced"][name], oracle[step - 1]["exp_avg"][name]
            share = (np.sign(gradient) * np.sign(before)).mean() / 2 + 0.5
            value = table.loc[name]["mean"]
            assert value == pytest.approx(share, abs=1e-6)


def test_stack_info(tmp_path):
    run(tmp_path, steps=2)
    (path,) = (tmp_path / "out").rglob("stack_info.csv")
    table = pd.read_csv(path)
    text = table.to_csv()
    assert all(name in text for name in ("fc1", "act", "fc2")) and mlp.__file__ in text


def test_ranks_that_are_asked_for(tmp_path):
    assert "grad_reduced_0-0" in run(tmp_path, steps=1, module_ranks=[0, 3])


def test_dynamic_mode_twice_and_a_bad_file(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    model = mlp.net()
    optimizer = mlp.adamw(model)
    monitor = TrainerMon(config(tmp_path, dynamic_on=False))
    monitor.set_monitor(model, optimizer)
    grad = mlp.gradients_of(model, optimizer)
    for step in range(10):
        if step in (1, 6):
            config(tmp_path, dynamic_on=True, collect_times=1, xy_distribution=step == 6)
        if step == 4:
            (tmp_path / "config.json").write_text("{")
        optimizer(grad(*map(Tensor, mlp.batch(step)))[1])
    monitor.stop()
    names = list(files(tmp_path))
    assert [name for name in names if name.startswith("param_origin")] == [
        "param_origin_2-2",
        "param_origin_7-7",
    ]
    assert [name for name in names if name.startswith("actv_")] == ["actv_7-7", "actv_grad_7-7"]


def test_collectives_of_one_process_change_nothing(tmp_path):
    found = run(tmp_path, steps=2, cc_distribution={"enable": True})
    assert "grad_reduced_1-1" in found


def test_collectives_alone_end_training_as_asked(tmp_path):
    with pytest.raises(MonitorExit):
        run(tmp_path, steps=3, cc_distribution={"enable": True, "cc_log_only": True})
