# The cases that the peer tests itself with, on the same models, as a black box.
import json

import pandas
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import compat_case as case
from trainmon.compat.msprobe.trainer_mon import MonitorExit


class Demo(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.relu = nn.Linear(784, 10), nn.ReLU()

    def forward(self, x):
        return self.relu(self.fc(x))


def demo(folder, config):
    """16 samples in batches of 10: two steps."""
    torch.manual_seed(1234)
    model = Demo()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    x, y = torch.randn(16, 784), torch.randint(0, 10, (16,))
    with case.output(folder):
        monitor = case.trainer_mon(folder, config)
        monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
        for chosen in torch.randperm(16).split(10):
            optimizer.zero_grad()
            F.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
        monitor.stop()
    (folder,) = case.folders(folder)
    return folder


def test_xy(tmp_path):
    ops = ["norm", "nans"]
    config = {"targets": {}, "xy_distribution": True, "all_xy": True, "ops": ops}
    folder = demo(tmp_path, config)
    for prefix, rows in (("actv", 6), ("actv_grad", 4)):
        table = pandas.read_csv(folder / f"{prefix}_0-0.csv")
        columns = ["vpp_stage", "name", "step", "micro_step", "norm", "nans", "shape", "dtype"]
        assert list(table.columns) == columns
        assert len(table) == rows  # the data needs no gradient: no row, where the peer has NaN
    names = case.names(pandas.read_csv(folder / "actv_0-0.csv"))
    assert names == ["fc.input", "fc.output", "relu.input", "relu.output", ".input", ".output"]


@pytest.mark.parametrize("targets", [{}, {"": {}}])
def test_wg(targets, tmp_path):
    folder = demo(tmp_path, {"targets": targets, "wg_distribution": True, "ops": ["norm"]})
    for prefix in ("grad_reduced", "grad_unreduced"):
        assert pandas.read_csv(folder / f"{prefix}_0-0.csv").shape == (2, 6)


def test_mv(tmp_path):
    folder = demo(tmp_path, {"targets": {}, "mv_distribution": True, "ops": ["norm"]})
    assert case.csvs(folder) == ["exp_avg_1-1.csv", "exp_avg_sq_1-1.csv"]
    for name in case.csvs(folder):
        assert pandas.read_csv(folder / name).shape == (2, 6)


def test_print_struct(tmp_path):
    config = {"targets": {}, "print_struct": True, "xy_distribution": True, "all_xy": True}
    with pytest.raises(Exception) as caught:
        demo(tmp_path, config)
    assert str(caught.value) == "exit after first monitor step when print model struct"
    assert type(caught.value) is MonitorExit
    path = tmp_path / "module_struct/rank0/module_struct.json"
    found = json.loads(path.read_text())
    assert list(found) == ["0:fc", "0:relu", "0:"]
    assert found["0:fc"] == {
        "input": {"config": "tuple[1]", "0": "size=(10, 784), dtype=torch.float32"},
        "output": {"config": "tensor", "tensor": "size=(10, 10), dtype=torch.float32"},
        "input_grad": {"config": "tuple[1]", "0": "<class 'NoneType'>"},
        "output_grad": {"config": "tuple[1]", "0": "size=(10, 10), dtype=torch.float32"},
    }
    assert path.read_text().startswith('{\n  "0:fc": {\n    "input"')


def test_stack(tmp_path):
    assert (demo(tmp_path, {"targets": {}, "stack_info": True}) / "stack_info.csv").exists()


def test_ur_with_csv(tmp_path):
    folder = demo(tmp_path, {"ur_distribution": True, "xy_distribution": True, "format": "csv"})
    assert "actv_0-0.csv" in case.csvs(folder)


def test_cc_and_alert_can_be_constructed(tmp_path):
    rules = [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}]
    config = {"cc_distribution": {"enable": True}, "alert": {"rules": rules, "dump": True}}
    demo(tmp_path, {**config, "wg_distribution": True})


class Ones(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.relu = nn.Linear(10, 5), nn.ReLU()
        nn.init.constant_(self.linear.weight, 1.0)
        nn.init.constant_(self.linear.bias, 1.0)

    def forward(self, x):
        return self.relu(self.linear(x))


def test_all_tasks_over_ten_steps(tmp_path):
    """The run whose files the peer's converters are tested with."""
    config = {
        "targets": {}, "xy_distribution": True, "all_xy": True, "wg_distribution": True,
        "mv_distribution": True, "param_distribution": True, "ops": ["norm", "nans"],
        "step_count_per_record": 3,
    }  # fmt: skip
    torch.manual_seed(1234)
    model = Ones()
    inputs = [torch.rand(10, 10) for _ in range(10)]
    folder = case.run(
        tmp_path, config, 10, model=model, optimizer=torch.optim.Adam(model.parameters()),
        loss=lambda m, index: m(inputs[index]).square().mean(),
    )  # fmt: skip
    buckets = ["0-2", "3-5", "6-8", "9-11"]
    prefixes = ["actv", "actv_grad", "exp_avg", "exp_avg_sq", "grad_reduced", "grad_unreduced",
                "param_origin", "param_updated"]  # fmt: skip
    assert case.csvs(folder) == sorted(f"{p}_{b}.csv" for p in prefixes for b in buckets)
    for prefix in prefixes:
        first = 1 if prefix.startswith("exp") else 0
        table = case.rows(folder, prefix)
        assert list(dict.fromkeys(table["step"])) == list(range(first, 10))
        assert not table.duplicated(["name", "step"]).any()


@pytest.mark.parametrize(
    "values, ops",
    [
        ([1.0, 2.0, 3.0], {"norm": 3.741657, "mean": 2.0, "min": 1.0, "max": 3.0, "nans": 0}),
        ([1.0, float("nan"), 3.0], {"nans": 1, "norm": None, "mean": None, "max": None}),
        ([0.0, 1e-9, 1.0, -1e-9], {"zeros": 0.75}),
        ([float("inf"), 1.0], {"max": float("inf"), "norm": float("inf"), "nans": 0}),
        ([float("-inf"), 1.0], {"min": float("-inf"), "nans": 0}),
        (2.0, {"norm": 2.0, "mean": 2.0}),
        ([], {"norm": 0.0, "mean": None, "min": None, "max": None, "zeros": None, "nans": 0}),
    ],
)
def test_metrics(values, ops, tmp_path):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)
            self.held = nn.Identity()

        def forward(self, x):
            self.held(torch.tensor(values))
            return self.fc(x)

    config = {"targets": {"held": {"output": "tensor"}}, "xy_distribution": True, "ops": list(ops)}
    folder = case.run(tmp_path, config, model=Holder())
    (row,) = case.rows(folder, "actv").to_dict("records")
    for op, value in ops.items():
        if value is None:
            assert pandas.isna(row[op]), op
        else:
            assert row[op] == pytest.approx(value, abs=1e-6), op
    assert row["shape"] == str(list(torch.tensor(values).shape))


@pytest.mark.parametrize(
    "tensor, wanted",
    [
        (torch.tensor([3, -4]), {"norm": 5.0, "mean": -0.5, "min": -4.0, "zeros": 0.0}),
        (torch.tensor([True, False]), {"norm": 1.0, "mean": 0.5}),
        (torch.tensor([1.5, 2.5], dtype=torch.bfloat16), {"mean": 2.0, "max": 2.5}),
        (torch.tensor([1.5, 2.5], dtype=torch.float64), {"mean": 2.0}),
    ],
)
def test_dtypes(tensor, wanted, tmp_path):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.held = nn.Linear(4, 3), nn.Identity()

        def forward(self, x):
            self.held(tensor)
            return self.fc(x)

    config = {
        "targets": {"held": {"input": "tensor"}},
        "xy_distribution": True,
        "ops": list(wanted),
    }
    (row,) = case.rows(case.run(tmp_path, config, model=Holder()), "actv").to_dict("records")
    assert {op: float(row[op]) for op in wanted} == wanted and row["dtype"] == str(tensor.dtype)
