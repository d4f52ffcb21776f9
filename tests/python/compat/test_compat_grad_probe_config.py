# The configuration of PrecisionDebugger: every field, each wrong value named.
import logging

import pytest

from grad_probe_case import config_file
from trainmon.compat.msprobe.pytorch import PrecisionDebugger


@pytest.fixture(autouse=True)
def stopped():
    yield
    if PrecisionDebugger._instance is not None:
        PrecisionDebugger._instance._paired = False
        PrecisionDebugger.stop()
    PrecisionDebugger._instance = None


@pytest.mark.parametrize(
    "fields, block, error, text",
    [
        ({"dump_path": None}, {}, TypeError, "dump_path should be a str, not None"),
        ({"dump_path": 5}, {}, TypeError, "dump_path"),
        ({"step": 3}, {}, TypeError, "step should be a list, not 3"),
        ({"step": [1.5]}, {}, TypeError, "step"),
        ({"step": [True]}, {}, TypeError, "step"),
        ({"step": ["3"]}, {}, ValueError, "step should hold integers and ranges such as '4-6'"),
        ({"rank": ["\uff11-\uff12"]}, {}, ValueError, "rank should hold"),  # full-width digits
        ({"step": ["5-4"]}, {}, ValueError, "step"),
        ({"step": ["a-b"]}, {}, ValueError, "step"),
        ({"step": [1000001]}, {}, ValueError, "step should be from 0 to 1000000"),
        ({"rank": [-1]}, {}, ValueError, "rank"),
        ({"rank": ["0-1000001"]}, {}, ValueError, "rank"),
        ({}, 3, TypeError, "grad_probe should be an object"),
        ({}, {"grad_level": "L3"}, ValueError, "grad_level should be one of L0, L1, L2, not 'L3'"),
        ({}, {"param_list": "fc"}, TypeError, "param_list should be a list of str"),
        ({}, {"param_list": [1]}, TypeError, "param_list"),
        ({}, {"bounds": 1}, TypeError, "bounds should be a list"),
        ({}, {"bounds": ["1"]}, TypeError, "bounds should hold numbers"),
        ({}, {"bounds": [0, 0]}, ValueError, "bounds should ascend: 0 follows 0"),
        ({}, {"bounds": [1, 0]}, ValueError, "bounds should ascend"),
        ({}, {"bounds": [2**63]}, ValueError, "range of int64"),
        ({}, {"bounds": [float("nan")]}, ValueError, "range of int64"),
        ({}, {"digest": "sha1"}, ValueError, "grad_probe.digest should be one of md5, crc32"),
    ],
)
def test_wrong_values_are_named(tmp_path, fields, block, error, text):
    with pytest.raises(error, match=text):
        PrecisionDebugger(config_file(tmp_path, block, **fields))
    assert PrecisionDebugger._instance is None  # the next one is read anew


def test_files_that_are_no_configuration(tmp_path):
    with pytest.raises(RuntimeError, match="none.json"):
        PrecisionDebugger(str(tmp_path / "none.json"))
    with pytest.raises(TypeError, match="config_path should be a str"):
        PrecisionDebugger(5)


def test_unknown_keys_warn(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        PrecisionDebugger(
            config_file(tmp_path, {"grad_levle": "L2"}, steps=[1], level="L1", tensor={})
        )
    assert "did you mean grad_probe.grad_level" in caplog.text
    assert "config key steps is not known" in caplog.text
    assert "tensor" not in caplog.text  # of another task


def test_the_largest_values_are_taken(tmp_path):
    block = {"bounds": [-(2**63), 2**63 - 1]}
    debugger = PrecisionDebugger(config_file(tmp_path, block, step=["0-1000000"], rank=[1000000]))
    assert len(debugger._settings.steps) == 1_000_001
