# The monitor configuration of the compatible face: what each value leads to.
import json
import logging
import math

import pytest
import torch

import compat_case as case
from trainmon.compat.msprobe import config as fields

BOOLS = [
    "xy_distribution",
    "wg_distribution",
    "param_distribution",
    "ur_distribution",
    "print_struct",
    "recording_l2_features",
    "dynamic_on",
    "squash_name",
]
LENIENT = [
    "mv_distribution",
    "mg_direction",
    "all_xy",
    "forward_only",
    "backward_only",
    "stack_info",
]


def checked(**given):
    return fields.checked(json.loads(json.dumps(given)))


def make(folder, given):
    """A TrainerMon, as a user gets it."""
    with case.output(folder):
        return case.trainer_mon(folder, given)


def turbulence(args):
    return {"rules": [{"rule_name": "AnomalyTurbulence", "args": args}]}


def parts(value):
    """A value and everything in it."""
    yield value
    if isinstance(value, (dict, list)):
        for part in [*value, *(value.values() if isinstance(value, dict) else ())]:
            yield from parts(part)


# (field, value, error)
ERRORS = [
    *[(key, value, TypeError) for key in BOOLS for value in (1, "true", None)],
    ("targets", ["fc"], TypeError),
    ("targets", {"fc": "tensor"}, TypeError),
    ("ops", "norm", TypeError),
    ("ops", {"norm": True}, TypeError),
    ("eps", "1e-8", TypeError),
    ("eps", True, TypeError),
    ("eps", -1.0, ValueError),
    ("eps", math.nan, ValueError),
    ("ndigits", -1, ValueError),
    ("ndigits", 21, ValueError),
    ("ndigits", True, ValueError),
    ("ndigits", 2.5, ValueError),
    ("ndigits", "6", ValueError),
    ("step_count_per_record", 1.5, TypeError),
    ("step_count_per_record", True, TypeError),
    ("step_count_per_record", 0, ValueError),
    ("step_count_per_record", 1_000_001, ValueError),
    ("module_ranks", 0, TypeError),
    ("module_ranks", ["0"], TypeError),
    ("module_ranks", [True], TypeError),
    ("append_output", "Dec03_21-34-40", TypeError),
    ("append_output", ["Dec03_21-34-40"], ValueError),
    ("cc_distribution", True, TypeError),
    ("cc_distribution", {"on": True}, TypeError),
    ("cc_distribution", {"enable": 1}, TypeError),
    ("cc_distribution", {"cc_codeline": "train.py"}, TypeError),
    ("cc_distribution", {"cc_codeline": ["train.py["]}, TypeError),
    ("cc_distribution", {"cc_codeline": ["a{99999999999999999999}"]}, TypeError),
    ("cc_distribution", {"cc_codeline": ["(" * 5000]}, TypeError),
    ("cc_distribution", {"cc_pre_hook": "yes"}, TypeError),
    ("cc_distribution", {"cc_log_only": 0}, TypeError),
    ("alert", [], TypeError),
    ("alert", {"rules": {}}, TypeError),
    ("alert", {"rules": [{"rule_name": "AnomalyOdd"}]}, TypeError),
    ("alert", {"rules": [], "dump": "yes"}, TypeError),
    ("alert", turbulence({"limit": 1}), TypeError),
    ("alert", turbulence({"threshold": -0.5}), TypeError),
    ("alert", turbulence({"threshold": "0.5"}), TypeError),
    ("l2_targets", [], TypeError),
    ("l2_targets", {"odd_hook": []}, TypeError),
    ("l2_targets", {"linear_hook": "fc"}, TypeError),
    ("l2_targets", {"linear_hook": [1]}, TypeError),
    ("sa_order", "b,h,s,d", TypeError),
    ("sa_order", 1, TypeError),
]


@pytest.mark.parametrize("field, value, error", ERRORS)
def test_what_is_an_error_names_the_field_and_the_value(field, value, error, tmp_path):
    with pytest.raises(error) as caught:
        make(tmp_path, {"targets": {}, field: value})
    assert type(caught.value) is error
    text = str(caught.value)
    assert field in text or field.split("_")[0] + "." in text or text.startswith("Anomaly")
    assert "should" in text or "no regular expression" in text
    assert any(repr(part) in text for part in parts(value))
    assert not case.folders(tmp_path), "a refused configuration leaves no directory"


# (field, value, what is taken)
FALLBACKS = [
    ("monitor_mbs_grad", 1, False),
    ("monitor_mbs_grad", "true", False),
    ("format", "xml", "csv"),
    ("format", 3, "csv"),
    ("start_step", -1, 0),
    ("start_step", 1.0, 0),
    ("start_step", True, 0),
    ("step_interval", 0, 1),
    ("step_interval", "2", 1),
    ("collect_times", -1, 100_000_000),
    ("collect_times", 1e8, 100_000_000),
    ("ops", [], ["norm"]),
    ("ops", ["foo", "id"], ["norm"]),
    ("ops", ["op1", "max", "norm", "max"], ["max", "norm"]),
    *[(key, 1, True) for key in LENIENT],
    *[(key, None, False) for key in LENIENT],
]


@pytest.mark.parametrize("field, value, taken", FALLBACKS)
def test_what_is_a_warning_and_a_default(field, value, taken, caplog):
    with caplog.at_level(logging.WARNING):
        found = checked(**{field: value})
    assert found[field] == taken and type(found[field]) is type(taken)
    assert any(field.rstrip("s") in record.getMessage() for record in caplog.records)


VALID = [
    ("eps", 1e-5),
    ("eps", 1),
    ("ndigits", 0),
    ("ndigits", 20),
    ("ndigits", None),
    ("step_count_per_record", 1_000_000),
    ("collect_times", 0),
    ("module_ranks", [0, 3]),
    ("module_ranks", []),
    ("append_output", ["Dec03_21-34-40", "Dec03_21-34-41"]),
    ("sa_order", "b,s,h,d"),
    ("ops", ["norm", "min", "max", "mean", "nans", "zeros"]),
    ("format", "api"),
]


@pytest.mark.parametrize("field, value", VALID)
def test_what_is_valid_is_taken_as_it_is(field, value, caplog):
    with caplog.at_level(logging.WARNING):
        assert checked(**{field: value})[field] == value
    assert not caplog.records


def test_defaults_are_those_of_the_manual():
    found = checked()
    manual = {
        **dict.fromkeys([key for key in BOOLS if key != "squash_name"] + LENIENT, False),
        "targets": {}, "squash_name": True, "monitor_mbs_grad": False, "ops": ["norm"],
        "eps": 1e-8, "ndigits": 6, "format": "csv", "step_count_per_record": 1, "start_step": 0,
        "step_interval": 1, "collect_times": 100000000, "module_ranks": [], "append_output": [],
        "l2_targets": {}, "sa_order": "s,b,h,d", "alert": {"rules": [], "dump": False},
        "cc_distribution": {
            "enable": False, "cc_codeline": [], "cc_pre_hook": False, "cc_log_only": False,
        },
    }  # fmt: skip
    assert found == manual


def test_missing_targets_mean_everything_and_all_xy():
    assert checked(xy_distribution=True)["all_xy"] is True
    assert checked(xy_distribution=True, targets={"": {}})["all_xy"] is True
    assert checked(xy_distribution=True, targets={"fc": {}})["all_xy"] is False
    assert checked()["all_xy"] is False


def test_spaces_in_sa_order_are_nothing():
    assert checked(sa_order="b, s, h, d")["sa_order"] == "b,s,h,d"


def test_alert_needs_no_rules_and_turbulence_needs_a_threshold(caplog):
    assert checked(alert={"dump": True})["alert"] == {"rules": [], "dump": True}
    with caplog.at_level(logging.WARNING):
        assert (
            checked(alert={"rules": [{"rule_name": "AnomalyTurbulence"}]})["alert"]["rules"] == []
        )
    assert "threshold" in caplog.text
    found = checked(alert={"rules": [{"rule_name": "AnomalyNan"}]})["alert"]["rules"]
    assert found == [{"name": "AnomalyNan", "threshold": None}]


def test_unknown_keys_warn_with_the_nearest(caplog):
    with caplog.at_level(logging.WARNING):
        found = checked(wg_distributon=True, entirely_odd=1)
    assert "wg_distributon" not in found and found["wg_distribution"] is False
    texts = [record.getMessage() for record in caplog.records]
    assert any("wg_distributon" in t and "did you mean 'wg_distribution'" in t for t in texts)
    assert any("entirely_odd" in t and "did you mean" not in t for t in texts)


def test_ur_distribution_needs_tensorboard(caplog):
    with caplog.at_level(logging.WARNING):
        assert checked(ur_distribution=True, format="csv")["ur_distribution"] is False
    assert "ur_distribution" in caplog.text and "tensorboard" in caplog.text
    assert checked(ur_distribution=True, format="tensorboard")["ur_distribution"] is True


def test_forward_only_and_backward_only_are_nothing(caplog):
    with caplog.at_level(logging.WARNING):
        found = checked(xy_distribution=True, forward_only=True, backward_only=True)
    assert "forward_only" in caplog.text and fields.kinds(found) == []


@pytest.mark.parametrize("value", ["list[2]:0", "tuple[2]:2", 7, "tensors"])
def test_a_wrong_element_is_told_and_all_are_watched(value, tmp_path, caplog):
    config = {
        "targets": {"head": {"input": value, "output": "tensor", "inputs": "tensor"}},
        "xy_distribution": True,
    }
    with caplog.at_level(logging.WARNING):
        folder = case.run(tmp_path, config)
    assert str(value) in caplog.text and "'inputs'" in caplog.text
    assert case.names(case.rows(folder, "actv", 0)) == ["head.input", "head.output"]


@pytest.mark.parametrize(
    "content, error",
    [("{", RuntimeError), ("", RuntimeError), ("[]", TypeError), ('{"a": 1} // x', RuntimeError)],
)
def test_a_file_that_is_no_json_object(content, error, tmp_path):
    with pytest.raises(error, match="monitor_config.json"):
        make(tmp_path, content)


def test_a_missing_file(tmp_path):
    with pytest.raises(RuntimeError, match="Load json file .*nowhere.json failed"):
        case.TrainerMon(str(tmp_path / "nowhere.json"))


@pytest.mark.parametrize(
    "given, error",
    [
        ({"model": "net"}, TypeError),
        ({"model": []}, TypeError),
        ({"optimizer": None}, TypeError),
        ({"optimizer": "adam"}, TypeError),
        ({"odd": 1}, TypeError),
    ],
)
def test_arguments_of_set_monitor(given, error, tmp_path):
    model = case.net()
    with case.output(tmp_path):
        monitor = case.trainer_mon(tmp_path, {"wg_distribution": True})
        with pytest.raises(error):
            monitor.set_monitor(**{"model": model, "optimizer": case.adam(model), **given})


@pytest.mark.parametrize("key, least", [("grad_acc_steps", 1), ("start_iteration", 0)])
@pytest.mark.parametrize("value", [-1, "2", 1.5, True])
def test_wrong_counts_are_a_warning_and_the_default(key, least, value, tmp_path, caplog):
    model = torch.nn.Linear(4, 3)
    with caplog.at_level(logging.WARNING):
        folder = case.run(
            tmp_path, {"wg_distribution": True}, model=model, optimizer=case.adam(model),
            **({"start_iteration": value} if key == "start_iteration" else {"micro": 1}),
        )  # fmt: skip
        if key == "grad_acc_steps":
            with case.output(tmp_path):
                monitor = case.trainer_mon(tmp_path, {"wg_distribution": True})
                monitor.set_monitor(model, optimizer=case.adam(model), grad_acc_steps=value)
                assert monitor._grad_acc_steps == 1
                monitor.stop()
    assert key in caplog.text and repr(value) in caplog.text
    assert "grad_reduced_0-0.csv" in case.csvs(folder)
