# The examples of msprobe's monitor manual run, with only the import changed.
import json
import logging

import pytest
import torch

import compat_case as case
import compat_manual as manual
import launch
from trainmon.compat.msprobe.trainer_mon import MonitorExit

EXPECTED = {
    "param": ["param_origin", "param_updated"],
    "wg": ["grad_reduced", "grad_unreduced"],
    "xy": ["actv", "actv_grad"],
    "mv": ["exp_avg", "exp_avg_sq"],
    "stack": ["stack"],
    "targets": [],
    "all targets": [],
    "l2": ["attention_hook", "linear_hook"],
    "ops": [],
    "mbs": ["grad_reduced", "grad_unreduced"],
    "details": ["actv", "actv_grad", "exp_avg", "exp_avg_sq", "grad_reduced", "grad_unreduced",
                "param_origin", "param_updated"],
}  # fmt: skip


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Runs the quick start of the manual in an empty folder, with one of its configurations."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MONITOR_OUTPUT_DIR", raising=False)
    started = []

    def run(config, text=manual.QUICK_START, **keys):
        (tmp_path / "monitor_config.json").write_text(config)
        space = manual.names(**keys)
        exec(text, space)
        started.append(space["monitor"])
        return space

    yield run
    for monitor in started:
        monitor.stop()


def prefixes(folder):
    return sorted({name.rsplit("_", 1)[0] for f in case.folders(folder) for name in case.csvs(f)})


@pytest.mark.parametrize("name", EXPECTED)
def test_every_configuration(name, start, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        space = start(manual.CONFIGS[name])
        manual.train(space)
        space["monitor"].stop()
    base = tmp_path / "monitor_output"
    assert (prefixes(base) if base.exists() else []) == EXPECTED[name]
    texts = [record.getMessage() for record in caplog.records]
    if name == "details":
        assert any("ur_distribution" in text for text in texts)
    if not EXPECTED[name]:
        assert any("nothing is monitored" in text for text in texts)
        assert texts == [text for text in texts if "not known" not in text]


def test_the_detailed_configuration_chooses_elements(start, tmp_path):
    space = start(manual.CONFIGS["details"])
    manual.train(space)
    space["monitor"].stop()
    (folder,) = case.folders(tmp_path / "monitor_output")
    for prefix, sides in (("actv", {"input_0", "output"}), ("actv_grad", {"input_0", "output"})):
        table = case.rows(folder, prefix, 0)
        assert list(table.columns)[4:] == [
            "min", "max", "norm", "zeros", "nans", "mean", "shape", "dtype",
        ]  # fmt: skip
        found = {
            n.removeprefix("layers.0.") for n in case.names(table) if n.startswith("layers.0.")
        }
        assert {n for n in found if "." not in n} == sides
    grads = case.rows(folder, "grad_unreduced", 0)
    assert set(grads["micro_step"]) == {0, 1} and grads["name"].str.startswith("layers.0.mlp").all()


def test_targets_name_modules_and_parameters(start, tmp_path):
    config = {**json.loads(manual.CONFIGS["targets"]), **json.loads(manual.CONFIGS["param"])}
    config["targets"] = json.loads(manual.CONFIGS["targets"])["targets"]
    space = start(json.dumps(config))
    manual.train(space, 1)
    space["monitor"].stop()
    (folder,) = case.folders(tmp_path / "monitor_output")
    # Another layers.0.mlp came first and has the short name.
    assert case.names(case.rows(folder, "param_origin")) == [
        "module.encoder.layers.0.mlp.weight", "module.encoder.layers.0.mlp.bias",
        "embedding.word_embedding.weight",
    ]  # fmt: skip


def test_l2_names(start, tmp_path):
    space = start(manual.CONFIGS["l2"])
    manual.train(space, 1)
    space["monitor"].stop()
    (folder,) = case.folders(tmp_path / "monitor_output")
    assert case.names(case.rows(folder, "linear_hook")) == [
        "0.self_attention.linear_qkv.linear", "1.self_attention.linear_qkv.linear",
    ]  # fmt: skip
    table = case.rows(folder, "attention_hook")
    assert set(table["name"]) == {"0.self_attention.core_attention.flash_attention.attention"}


def test_print_struct(start, tmp_path):
    space = start(manual.CONFIGS["print_struct"])
    with pytest.raises(MonitorExit):
        manual.train(space)
    path = tmp_path / "monitor_output/module_struct/rank0/module_struct.json"
    found = json.loads(path.read_text())
    side = "0:1.self_attention.linear_qkv"
    size = "size=(2, 3, {}), dtype=torch.float32".format
    assert found[side] == {
        "input": {"config": "tuple[1]", "0": size(4)},
        "output": {"config": "tensor", "tensor": size(12)},
        "input_grad": {"config": "tuple[1]", "0": size(4)},
        "output_grad": {"config": "tuple[1]", "0": size(12)},
    }


@pytest.mark.parametrize("name", manual.ALERTS)
def test_alerts(name, start, tmp_path):
    config = "{" + manual.ALERTS[name] + manual.CONFIGS["wg"].strip()[1:]
    space = start(config)
    for p in space["model"].parameters():
        p.register_hook(lambda g: g * 1e12)
    manual.train(space, 3)
    space["monitor"].stop()
    path = tmp_path / "monitor_output/anomaly_detected/rank0/anomaly.json"
    events = json.loads(path.read_text())
    rules = {event["message"].split()[1] for event in events.values()}
    assert rules == (set() if name == "turbulence" else {"AnomalyNan"})


def test_the_old_calls(start, tmp_path):
    space = start(manual.CONFIGS["wg"], manual.QUICK_START.split("...")[0] + manual.OLD)
    manual.train(space)
    space["monitor"].stop()
    assert prefixes(tmp_path / "monitor_output") == ["grad_reduced", "grad_unreduced"]


def test_pipeline_group(start):
    text = "from trainmon.compat.msprobe.pytorch import TrainerMon\n" + manual.PIPELINE
    assert start(manual.CONFIGS["wg"], text)["monitor"].group_mates == [0]


def test_snippets_while_training(start, tmp_path):
    space = start(manual.CONFIGS["wg"])
    manual.train(space, 1)
    model = space["model"]
    model(torch.arange(6).view(2, 3)).square().mean().backward()
    exec(manual.GRADIENTS + manual.ACTIVATIONS, space)
    assert len(space["reduced"]) == len(space["unreduced"]) == len(list(model.parameters()))
    assert space["actv"] == space["actv_grad"] == {}
    for text in (manual.OPS, manual.RELOAD):
        exec(text.replace("{some condition}", "True"), space)
    assert space["monitor"].ops[:2] == ["min", "max"]
    manual.train(space, 1)
    exec(manual.ACTIVATIONS, space)
    assert set(next(iter(space["actv"].values()))) == {"min", "max", "shape", "dtype"}
    assert space["actv_grad"]


def test_two_processes(tmp_path):
    launch.run(launch.SHARED / "compat_manual.py", tmp_path, ranks=2, timeout=120)
    for name, found in (
        ("quick", EXPECTED["wg"]),
        ("old", EXPECTED["xy"]),
        ("details", EXPECTED["details"]),
    ):
        folders = [case.folders(tmp_path / name, rank) for rank in (0, 1)]
        assert [len(f) for f in folders] == [1, 1]
        for (folder,) in folders:
            kinds = sorted({n.rsplit("_", 1)[0] for n in case.csvs(folder)})
            assert kinds == found, name
    # A target names a module of the user's, with or without the "module." of its wrapper.
    (folder,) = case.folders(tmp_path / "details", 0)
    names = case.names(case.rows(folder, "actv", 0))
    assert [n for n in names if n.startswith("layers.0.") and n.count(".") == 2] == [
        "layers.0.input_0", "layers.0.output",
    ] * 2  # fmt: skip
