# TrainerMon field by field: the rows of its files against plain torch.
import json
import re

import numpy as np
import pandas
import pytest
import torch

import compat_case as case
from compat_oracle import truth

OPS = ["norm", "min", "max", "mean", "zeros", "nans"]
ALL = ["layers.0.up.weight", "layers.0.up.bias", "layers.0.down.weight", "layers.0.down.bias",
       "layers.1.up.weight", "layers.1.up.bias", "layers.1.down.weight", "layers.1.down.bias",
       "head.weight", "head.bias"]  # fmt: skip
MODULES = ["layers.0.up", "layers.0.down", "layers.0", "layers.1.up", "layers.1.down", "layers.1",
           "head", ""]  # fmt: skip


def known(count, micro=1, first=0):
    model = case.net()
    return truth(model, case.adam(model), count, case.loss_of, micro, first)


def assert_table(table, values, step, ops=OPS, **options):
    """Exactly one row per tensor, each with its statistics."""
    micro = "micro_step" in table.columns
    ident = ["vpp_stage", "name", "step"] + ["micro_step"] * micro
    assert list(table.columns) == [*ident, *ops, "shape", "dtype"]
    assert set(table["step"]) == {step} and set(table["vpp_stage"]) == {0}
    keys = [(r["name"], r["micro_step"]) if micro else r["name"] for _, r in table.iterrows()]
    assert sorted(keys) == sorted(values)
    for key, (_, row) in zip(keys, table.iterrows()):
        case.assert_row(row, values[key], ops, **options)


# --- which quantities ------------------------------------------------------------------------------


def test_wg_distribution(tmp_path):
    folder = case.run(tmp_path, {"targets": {}, "wg_distribution": True, "ops": OPS}, 2)
    assert case.csvs(folder) == [
        f"grad_{kind}_{s}-{s}.csv" for kind in ("reduced", "unreduced") for s in (0, 1)
    ]
    for step, values in enumerate(known(2)):
        assert_table(case.rows(folder, "grad_reduced", step), values["grad"], step)
        assert_table(case.rows(folder, "grad_unreduced", step), values["grad"], step)
    assert case.names(case.rows(folder, "grad_reduced", 0)) == ALL  # in order of registration
    assert case.names(case.rows(folder, "grad_unreduced", 0))[-1].startswith("layers.0.up")


def test_param_distribution(tmp_path):
    folder = case.run(tmp_path, {"param_distribution": True, "ops": OPS}, 2)
    assert case.csvs(folder) == [
        f"param_{kind}_{s}-{s}.csv" for kind in ("origin", "updated") for s in (0, 1)
    ]
    for step, values in enumerate(known(2)):
        for kind in ("param_origin", "param_updated"):
            assert_table(case.rows(folder, kind, step), values[kind], step)
    assert case.names(case.rows(folder, "param_origin", 0)) == ALL


def test_mv_distribution(tmp_path):
    config = {"mv_distribution": True, "ops": OPS, "ndigits": 12}
    folder = case.run(tmp_path, config, 3)
    # The state is that before the update, so a fresh optimizer has none in step 0.
    assert case.csvs(folder) == [
        f"{k}_{s}-{s}.csv" for k in ("exp_avg", "exp_avg_sq") for s in (1, 2)
    ]
    for step, values in enumerate(known(3)):
        for kind in ("exp_avg", "exp_avg_sq") if step else ():
            assert_table(case.rows(folder, kind, step), values[kind], step, digits=12)


def test_xy_distribution(tmp_path):
    config = {"xy_distribution": True, "all_xy": True, "ops": OPS}
    folder = case.run(tmp_path, config, 2, micro=2)
    assert case.csvs(folder) == [f"actv{g}_{s}-{s}.csv" for g in ("", "_grad") for s in (0, 1)]
    for step, values in enumerate(known(2, micro=2)):
        assert_table(case.rows(folder, "actv", step), values["actv"], step)
        assert_table(case.rows(folder, "actv_grad", step), values["actv_grad"], step)
    table = case.rows(folder, "actv", 0)
    order = [f"{m}.{side}" for m in MODULES for side in ("input", "output")]
    assert list(dict.fromkeys(case.names(table))) == order  # of first calls that ended
    first = table[table["name"].str.startswith("head.")]
    assert list(first["micro_step"]) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    "flags, prefixes",
    [
        ({"forward_only": True}, ["actv"]),
        ({"backward_only": True}, ["actv_grad"]),
        ({}, ["actv", "actv_grad"]),
    ],
)
def test_forward_only_and_backward_only(flags, prefixes, tmp_path):
    folder = case.run(tmp_path, {"xy_distribution": True, "all_xy": True, **flags})
    assert case.csvs(folder) == [f"{prefix}_0-0.csv" for prefix in prefixes]


def test_forward_only_and_backward_only_give_nothing_together(tmp_path):
    config = {"xy_distribution": True, "forward_only": True, "backward_only": True}
    case.run(tmp_path, config)
    assert not [p for f in case.folders(tmp_path) for p in case.csvs(f)]


def test_xy_distribution_without_all_xy_takes_the_targets(tmp_path):
    folder = case.run(tmp_path, {"targets": {"encoder.layers.1": {}}, "xy_distribution": True})
    assert case.names(case.rows(folder, "actv")) == ["layers.1.input", "layers.1.output"]
    config = {"targets": {"encoder.layers.1": {}}, "xy_distribution": True, "all_xy": True}
    table = case.rows(case.run(tmp_path / "all", config), "actv")
    assert set(case.names(table)) == {f"{m}.{s}" for m in MODULES for s in ("input", "output")}


def test_mg_direction(tmp_path):
    config = {"mg_direction": True, "ops": ["mean", "norm"]}
    folder = case.run(tmp_path, config, 3)
    for step, values in enumerate(known(3)):
        if step == 0:
            assert "other_0-0.csv" not in case.csvs(folder)  # no momentum yet
            continue
        table = case.rows(folder, "other", step)
        assert list(table.columns) == [
            "vpp_stage",
            "name",
            "step",
            "mean",
            "norm",
            "shape",
            "dtype",
        ]
        assert case.names(table) == ALL
        for _, row in table.iterrows():
            g, m = values["grad"][row["name"]], values["exp_avg"][row["name"]]
            share = ((np.sign(g.numpy()) * np.sign(m.numpy())).mean() + 1) / 2
            assert row["mean"] == pytest.approx(share, abs=1e-6) == row["norm"]
            assert row["shape"] == "[]"


def test_monitor_mbs_grad(tmp_path):
    config = {"wg_distribution": True, "monitor_mbs_grad": True, "ops": OPS}
    folder = case.run(tmp_path, config, 2, micro=3)
    for step, values in enumerate(known(2, micro=3)):
        # Accumulated up to and with that micro-batch, as the reduced one is in the end.
        assert_table(case.rows(folder, "grad_unreduced", step), values["grad_micro"], step)
        assert_table(case.rows(folder, "grad_reduced", step), values["grad"], step)
    folder = case.run(tmp_path / "without", {"wg_distribution": True, "ops": OPS}, 1, micro=3)
    assert_table(case.rows(folder, "grad_unreduced", 0), known(1, micro=3)[0]["grad"], 0)


# --- which steps -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config, start, count, steps",
    [
        ({"start_step": 2}, 0, 5, [2, 3, 4]),
        ({"step_interval": 3}, 0, 7, [0, 3, 6]),
        ({"start_step": 1, "step_interval": 2}, 0, 6, [1, 3, 5]),
        ({"collect_times": 2}, 0, 5, [0, 1]),
        ({"collect_times": 2, "start_step": 1, "step_interval": 2}, 0, 8, [1, 3]),
        ({"collect_times": 0}, 0, 3, []),
        ({"step_interval": 2}, 101, 4, [102, 104]),
        ({"start_step": 103, "step_interval": 2}, 100, 7, [103, 105]),
        ({}, 100, 2, [100, 101]),
    ],
)
def test_which_steps_are_collected(config, start, count, steps, tmp_path):
    folder = case.run(tmp_path, {"wg_distribution": True, **config}, count, start_iteration=start)
    found = case.csvs(folder) if folder else []
    assert [n for n in found if "_reduced" in n] == [f"grad_reduced_{s}-{s}.csv" for s in steps]
    for step in steps:
        assert set(case.rows(folder, "grad_reduced", step)["step"]) == {step}


def test_collect_times_takes_the_hooks_off(tmp_path):
    model = case.net()
    optimizer = case.adam(model)
    bare = len(model._forward_hooks) + len(model.head._forward_hooks)
    with case.output(tmp_path):
        monitor = case.trainer_mon(tmp_path, {"xy_distribution": True, "collect_times": 1})
        monitor.set_monitor(model, 1, optimizer)
        assert len(model._forward_hooks) + len(model.head._forward_hooks) > bare
        case.steps(model, optimizer, 1)
        assert len(model._forward_hooks) + len(model.head._forward_hooks) == bare
        monitor.stop()


# --- statistics and files --------------------------------------------------------------------------


@pytest.mark.parametrize("ops", [["max", "norm"], ["zeros"], ["nans", "mean", "min"]])
def test_ops_are_the_columns_in_their_order(ops, tmp_path):
    folder = case.run(tmp_path, {"param_distribution": True, "ops": ops})
    assert_table(case.rows(folder, "param_origin", 0), known(1)[0]["param_origin"], 0, ops)


def test_eps_is_the_bound_of_zeros(tmp_path):
    values = known(1)[0]["param_origin"]
    for name, eps in (("small", 1e-8), ("large", 0.2)):
        config = {"param_distribution": True, "ops": ["zeros"], "eps": eps}
        table = case.rows(case.run(tmp_path / name, config), "param_origin", 0)
        assert_table(table, values, 0, ["zeros"], eps=eps)
        assert (table["zeros"] > 0).any() == (name == "large")


@pytest.mark.parametrize("digits", [0, 2, 6, 12, None])
def test_ndigits_are_decimals(digits, tmp_path):
    config = {"wg_distribution": True, "ops": ["norm", "min"]}
    if digits is not None:
        config["ndigits"] = digits
    folder = case.run(tmp_path, config)
    table = case.rows(folder, "grad_reduced", 0, dtype=str)
    gradients = known(1)[0]["grad"]
    for _, row in table.iterrows():
        for op in ("norm", "min"):
            value = case.oracle(gradients[row["name"]], op)
            rounded = np.round(float(row[op]), 6 if digits is None else digits)
            assert float(row[op]) == rounded  # no decimals beyond
            assert abs(float(row[op]) - value) < 0.6 * 10.0 ** -(6 if digits is None else digits)


def test_without_ndigits_values_are_not_rounded(tmp_path):
    config = {"wg_distribution": True, "ops": ["norm", "min"], "ndigits": None}
    table = case.rows(case.run(tmp_path, config), "grad_reduced", 0, dtype=str)
    gradients = known(1)[0]["grad"]
    for _, row in table.iterrows():
        for op in ("norm", "min"):
            value = case.oracle(gradients[row["name"]], op)
            assert abs(float(row[op]) - value) <= 1e-13 * abs(value)
            assert row[op] == repr(float(row[op]))


def test_step_count_per_record_puts_steps_into_one_file(tmp_path):
    config = {"wg_distribution": True, "step_count_per_record": 3}
    folder = case.run(tmp_path, config, 5, start_iteration=2)
    reduced = [n for n in case.csvs(folder) if "_reduced" in n]
    assert reduced == ["grad_reduced_0-2.csv", "grad_reduced_3-5.csv", "grad_reduced_6-8.csv"]
    for name, steps in zip(reduced, ([2], [3, 4, 5], [6])):
        lines = (folder / name).read_text().splitlines()
        assert [line.startswith("vpp_stage,name,step,") for line in lines].count(True) == 1
        assert list(dict.fromkeys(pandas.read_csv(folder / name)["step"])) == steps
        assert len(lines) == 1 + len(ALL) * len(steps)


def test_files_are_plain_and_private(tmp_path):
    folder = case.run(tmp_path, {"wg_distribution": True})
    assert re.fullmatch(r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d-rank0-[0-9a-f]{8}", folder.name)
    content = (folder / "grad_reduced_0-0.csv").read_bytes()
    assert b"\r" not in content and not content.startswith(b"\xef\xbb\xbf")
    assert (folder / "grad_reduced_0-0.csv").stat().st_mode & 0o777 == 0o640
    assert folder.stat().st_mode & 0o777 == 0o750


def test_the_default_directory_is_monitor_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MONITOR_OUTPUT_DIR", raising=False)
    model = case.net()
    optimizer = case.adam(model)
    rules = [{"rule_name": "AnomalyNan", "args": {"threshold": 1e-9}}]
    config = {"wg_distribution": True, "alert": {"rules": rules, "dump": True}}
    monitor = case.trainer_mon(tmp_path, config)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # training scripts do
    monitor.set_monitor(model, 1, optimizer)
    case.steps(model, optimizer, 1)
    monitor.stop()
    assert [case.csvs(f) for f in case.folders(tmp_path / "monitor_output")]
    assert (tmp_path / "monitor_output/anomaly_detected").exists()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_module_ranks_in_one_process(tmp_path):
    config = {"wg_distribution": True, "module_ranks": [0]}
    assert case.csvs(case.run(tmp_path / "in", config))
    assert case.run(tmp_path / "out", {**config, "module_ranks": [1]}) is None


def test_stack_info(tmp_path):
    config = {"targets": {"head": {}}, "stack_info": True, "start_step": 1}
    folder = case.run(tmp_path, config, 3)
    table = pandas.read_csv(folder / "stack_info.csv")
    assert list(table.columns) == ["module_name", "stack_info"]
    assert list(table["module_name"]) == [f"0:{name}" for name in MODULES]  # whatever the targets
    for text in table["stack_info"]:
        assert re.search(r"File .*compat_case\.py, line \d+, in loss_of, *\n", text)
    assert "self.down(torch.tanh(self.up(x)))" in table["stack_info"][0]
    without = case.run(tmp_path / "without", {"wg_distribution": True})
    assert not (without / "stack_info.csv").exists()


def test_alert_and_dump(tmp_path):
    rules = [{"rule_name": "AnomalyNan", "args": {"threshold": 1e-9}}]
    config = {"wg_distribution": True, "alert": {"rules": rules, "dump": True}}
    case.run(tmp_path, config)
    found = json.loads((tmp_path / "anomaly_detected/rank0/anomaly.json").read_text())
    assert {event["tag_name"] for event in found.values()} >= {"0:head.weight/rank0/post_grad"}
    config["alert"]["dump"] = False
    case.run(tmp_path / "without", config)
    assert not (tmp_path / "without/anomaly_detected").exists()


def proportional():
    """The net of events(): its output is in proportion to its input."""
    model = case.net(layers=0)
    model.head.bias.data.zero_()
    return model


def events(folder, rule, config, count, scale):
    """(statistic, name, step) of the alerts on inputs, which are batch 0 times scale[step]."""

    def loss(model, index):
        model(case.batch(0) * scale[index])
        return model.head.weight.sum()  # its gradient stays finite

    rules = [{"rule_name": rule[0], **({"args": {"threshold": rule[1]}} if rule[1:] else {})}]
    given = {"targets": {"head": {"output": "tensor"}}, "xy_distribution": True, **config}
    model = proportional()
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    given["alert"] = {"rules": rules, "dump": True}
    case.run(folder, given, count, model=model, optimizer=sgd, loss=loss)
    path = folder / "anomaly_detected/rank0/anomaly.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for key, event in found.items():
        assert event["message"].startswith(f"Rule {rule[0]} reports anomaly signal in (")
        assert (
            event["tag_name"]
            == "0:head.output:0/rank0/actv"
            == key.split("_norm_")[0].split("_max_")[0]
        )
    return sorted((e["message"].split("'")[3], e["step"]) for e in found.values())


def test_nan_and_large_values(tmp_path):
    output = proportional()(case.batch(0)).detach()
    norm, most = output.norm().item(), output.max().item()
    assert most < norm * 0.9
    config, nan, inf = {"ops": ["norm", "max"]}, float("nan"), float("inf")
    found = events(tmp_path / "a", ("AnomalyNan", 0.9 * norm), config, 3, [0.5, 1.0, nan])
    assert found == [("max", 2), ("norm", 1), ("norm", 2)]
    found = events(tmp_path / "b", ("AnomalyNan",), config, 3, [1e6, nan, inf])
    assert [e for e in found if e[1] == 0] == [] and ("norm", 1) in found and ("norm", 2) in found


def test_turbulence(tmp_path):
    """After three values, up and down, for norm and mean alone."""
    config = {"ops": ["norm", "max"]}
    scale = [1.0, 3.0, 1.0, 1.0, 1.0, 4.0, 0.1, float("nan"), 1.0, 4.0]
    model = proportional()
    sizes = [model(case.batch(0) * s).norm().item() for s in scale]
    found = events(tmp_path, ("AnomalyTurbulence", 0.5), config, len(scale), scale)
    mean, values, wanted = 0.0, 0, []
    for step, size in enumerate(sizes):
        if not np.isfinite(size):
            continue
        if values >= 3 and not 0.5 * mean <= size <= 1.5 * mean:
            wanted.append(("norm", step))
        mean = size if values == 0 else 0.99 * mean + 0.01 * size
        values += 1
    assert found == wanted and len(wanted) >= 3


def test_nans_are_counted_and_shown(tmp_path):
    def odd(model, index):
        model.head.weight.data[0, 0] = float("nan")
        model.head.bias.data[0] = float("inf")
        return case.loss_of(model, index)

    ops = ["nans", "max", "norm", "zeros"]
    folder = case.run(tmp_path, {"param_distribution": True, "ops": ops}, loss=odd)
    table = case.rows(folder, "param_origin", 0, dtype=str).set_index("name")
    row = table.loc["head.weight"]
    assert row["nans"] == "1" and pandas.isna(row["max"]) and pandas.isna(row["norm"])
    row = table.loc["head.bias"]
    assert (row["nans"], row["max"], row["norm"]) == ("0", "inf", "inf")
