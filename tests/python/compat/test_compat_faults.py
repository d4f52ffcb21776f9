"""Faults of the peer that no field's own test shows: state that leaks, work that nobody asked for."""

import copy

import pytest
import torch

import compat_case as case

EVERYTHING = {
    "targets": {},
    "wg_distribution": True,
    "xy_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "mg_direction": True,
}


def test_monitors_of_one_process_count_for_themselves(tmp_path):
    config = {"targets": {}, "wg_distribution": True}
    models = [case.net(seed) for seed in range(2)]
    optimizers = [case.adam(model) for model in models]
    with case.output(tmp_path / "out"):
        monitors = [case.trainer_mon(tmp_path / str(i), config) for i in range(2)]
        for i, start in enumerate((100, 7)):
            monitors[i].set_monitor(models[i], 1, optimizers[i], start_iteration=start)
        for step in range(3):
            for model, optimizer in zip(models, optimizers):
                case.loss_of(model, step).backward()
                optimizer.step()
                optimizer.zero_grad()
        for monitor in monitors:
            monitor.stop()
    found = sorted(
        sorted(int(p.stem.split("_")[-1].split("-")[0]) for p in folder.glob("grad_reduced_*.csv"))
        for folder in case.folders(tmp_path / "out")
    )
    assert found == [[7, 8, 9], [100, 101, 102]]


def test_steps_that_are_not_collected_measure_nothing(tmp_path):
    """The rows of 6 steps of which every third is collected are those of 2 steps."""

    def produced(interval):
        model = case.net()
        optimizer = case.adam(model)
        config = {**EVERYTHING, "mv_distribution": False, "mg_direction": False}
        with case.output(tmp_path / str(interval)):
            monitor = case.trainer_mon(tmp_path, {**config, "step_interval": interval})
            monitor.set_monitor(model, 1, optimizer)
            watch = monitor._watch
            case.steps(model, optimizer, 6)
            monitor.stop()
        return watch.health()["rows_produced"]

    assert produced(3) * 3 == produced(1)


@pytest.mark.parametrize("how", ["loaded", "made later"])
def test_optimizer_state_is_looked_up_each_time(tmp_path, how):
    model = case.net()
    optimizer = case.adam(model)
    other = case.net(seed=5)
    donor = case.adam(other)
    case.steps(other, donor, 3)
    state = copy.deepcopy(donor.state_dict())
    for parameter in model.head.parameters():
        parameter.requires_grad_(how == "loaded")

    def each(step):
        if step == 2 and how == "loaded":
            optimizer.load_state_dict(state)
        if step == 2:
            for parameter in model.head.parameters():
                parameter.requires_grad_(True)

    with case.output(tmp_path / "out"):
        monitor = case.trainer_mon(
            tmp_path, {"targets": {}, "mv_distribution": True, "ndigits": 12, "ops": ["norm"]}
        )
        monitor.set_monitor(model, 1, optimizer)
        for step in range(5):
            each(step)
            case.loss_of(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        monitor.stop()
    (folder,) = case.folders(tmp_path / "out")
    if how == "made later":
        tables = {step: case.names(case.rows(folder, "exp_avg", step)) for step in range(1, 5)}
        assert [step for step, names in tables.items() if "head.weight" in names] == [3, 4]
        return
    row = case.rows(folder, "exp_avg", 2).set_index("name").loc["head.weight"]
    expected = donor.state[other.head.weight]["exp_avg"].double().norm().item()
    assert row["norm"] == pytest.approx(expected, rel=1e-9)


def test_nothing_of_torch_is_replaced(tmp_path):
    before = {
        name: getattr(torch.utils.hooks.BackwardHook, name)
        for name in ("setup_input_hook", "setup_output_hook")
    }
    model = case.net()
    optimizer = case.adam(model)
    step, call = torch.optim.Adam.step, torch.nn.Module.__call__
    with case.output(tmp_path / "out"):
        monitor = case.trainer_mon(tmp_path, EVERYTHING)
        monitor.set_monitor(model, 1, optimizer)
        case.steps(model, optimizer, 2)
        for name, function in before.items():
            assert getattr(torch.utils.hooks.BackwardHook, name) is function
        assert torch.optim.Adam.step is step and torch.nn.Module.__call__ is call
        assert "step" not in vars(optimizer)
        monitor.stop()
