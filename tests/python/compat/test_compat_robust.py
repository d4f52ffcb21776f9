"""What an attack on the compatible face found: each case failed once."""

import json
import os

import pytest
import torch
from torch import nn

import compat_case as case
from trainmon.compat.msprobe.config_file import ConfigFile
from trainmon.compat.msprobe.trainer_mon import MonitorExit

XY = {"targets": {}, "xy_distribution": True, "wg_distribution": True}


def account(folder):
    with open(folder / "health.json") as file:
        (sink,) = json.load(file)["sinks"]
    return sink["rows_written"], sink["rows_dropped"]


@pytest.mark.parametrize("order", ["forward first", "cleared first"])
def test_activations_of_a_step_after_a_skipped_one_are_there(tmp_path, order):
    """forward, zero_grad, backward: only then is it known that the step before never came."""
    model = case.net()
    optimizer = case.adam(model)
    with case.output(tmp_path / "out"):
        monitor = case.trainer_mon(tmp_path, XY)
        monitor.set_monitor(model, 1, optimizer)
        for step in range(5):
            if order == "cleared first":
                optimizer.zero_grad()
            loss = case.loss_of(model, step)
            optimizer.zero_grad()
            loss.backward()
            if step != 2:
                optimizer.step()
        monitor.stop()
    (folder,) = case.folders(tmp_path / "out")
    for prefix in ("actv", "actv_grad", "grad_reduced", "grad_unreduced"):
        for step in range(4):
            assert len(case.rows(folder, prefix, step)) == len(case.rows(folder, prefix, 0))
    written, dropped = account(folder)
    lines = sum(len(path.read_text().splitlines()) - 1 for path in folder.glob("*_*-*.csv"))
    assert lines == written
    assert list(dropped) == ["attempt_not_taken"]


def test_values_of_that_step_are_its_own(tmp_path):
    model = case.net()
    optimizer = case.adam(model)
    seen = []
    handle = model.head.register_forward_hook(lambda m, i, o: seen.append(o.detach().clone()))
    with case.output(tmp_path / "out"):
        monitor = case.trainer_mon(tmp_path, {**XY, "ops": ["norm", "mean"]})
        monitor.set_monitor(model, 1, optimizer)
        for step in range(4):
            loss = case.loss_of(model, step)
            optimizer.zero_grad()
            loss.backward()
            if step != 1:
                optimizer.step()
        monitor.stop()
    handle.remove()
    (folder,) = case.folders(tmp_path / "out")
    for step, forward in enumerate((0, 2, 3)):
        row = case.rows(folder, "actv", step).set_index("name").loc["head.output"]
        case.assert_row(row, seen[forward], ["norm", "mean"])


def test_print_struct_in_dynamic_mode_waits_for_a_step_that_was_watched(tmp_path):
    model = case.net()
    optimizer = case.adam(model)
    with case.output(tmp_path / "out", dynamic=True):
        monitor = case.trainer_mon(tmp_path, {"print_struct": True, "dynamic_on": True})
        monitor.set_monitor(model, 1, optimizer)
        case.steps(model, optimizer, 1)
        with pytest.raises(MonitorExit, match="print model struct"):
            case.steps(model, optimizer, 1, first=1)
    structure = json.loads((tmp_path / "out/module_struct/rank0/module_struct.json").read_text())
    assert "0:head" in structure


def test_parts_of_a_run_keep_their_accounts(tmp_path):
    model = case.net()
    optimizer = case.adam(model)
    with case.output(tmp_path / "out"):
        monitor = case.trainer_mon(tmp_path, {"targets": {}, "wg_distribution": True})
        monitor.set_monitor(model, 1, optimizer)
        case.steps(model, optimizer, 2)
        monitor.reload_xy(True)
        case.steps(model, optimizer, 2, first=2)
        monitor.stop()
    (folder,) = case.folders(tmp_path / "out")
    starts, written = [], 0
    for part in (".1", ""):
        starts += json.loads((folder / f"run{part}.json").read_text())["start_steps"]
        written += json.loads((folder / f"health{part}.json").read_text())["sinks"][0][
            "rows_written"
        ]
    assert starts == [0, 2]
    assert written == sum(
        len(path.read_text().splitlines()) - 1 for path in folder.glob("*_*-*.csv")
    )


def test_moments_that_come_are_not_said_to_be_missing(tmp_path):
    folder = case.run(tmp_path / "out", {"targets": {}, "mv_distribution": True}, count=3)
    assert json.loads((folder / "run.json").read_text())["not_covered"] == {}


@pytest.mark.parametrize(
    "config, said",
    [
        ({**XY, "targets": {"nosuch": {}}}, "'nosuch' is the name of no parameter or module"),
        (
            {"recording_l2_features": True, "l2_targets": {"linear_hook": ["0:nosuch"]}},
            "'0:nosuch' is the name of no module",
        ),
    ],
)
def test_targets_that_are_nowhere_are_said(tmp_path, caplog, config, said):
    case.run(tmp_path / "out", config)
    assert said in caplog.text


def test_a_pipe_in_place_of_the_file_is_not_waited_for(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(XY))
    file = ConfigFile(str(path))
    assert file.changed() is not None
    path.unlink()
    os.mkfifo(path)
    assert file.changed() is None
    assert "is not a file" in file.said
    path.unlink()
    path.write_text(json.dumps({**XY, "ops": ["max"]}))
    assert file.changed()["ops"] == ["max"]


@pytest.mark.parametrize(
    "text, error, said",
    [
        ("[" * 100_000, RuntimeError, "failed"),
        ('{"alert": {"rules": [{"rule_name": "AnomalyNan", "args": {"threshold": 1%s}}]}}'
         % ("0" * 400), TypeError, "threshold should be from 0"),
    ],
)  # fmt: skip
def test_errors_at_the_start_name_what_is_wrong(tmp_path, text, error, said):
    with case.output(tmp_path / "out"), pytest.raises(error, match=said):
        case.trainer_mon(tmp_path, text)


@pytest.mark.parametrize("field", ["start_step", "step_interval", "collect_times"])
def test_counts_that_are_too_large_are_a_warning(tmp_path, caplog, field):
    case.run(tmp_path / "out", {**XY, field: 2**62})
    assert f"{field} should be an int from" in caplog.text


def test_late_forwards_of_a_module_list_do_not_disturb(tmp_path):
    """Evaluation between an abandoned step and the next one."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    optimizer = case.adam(model)
    with case.output(tmp_path / "out"):
        monitor = case.trainer_mon(tmp_path, XY)
        monitor.set_monitor(model, 1, optimizer)
        for step in range(4):
            loss = case.loss_of(model, step)
            optimizer.zero_grad()
            loss.backward()
            if step == 1:
                with torch.no_grad():
                    model(torch.randn(2, 4))
                continue
            optimizer.step()
        monitor.stop()
    (folder,) = case.folders(tmp_path / "out")
    assert [len(case.rows(folder, "grad_reduced", step)) for step in range(3)] == [4, 4, 4]
    assert "1.output" in case.names(case.rows(folder, "actv", 1))
