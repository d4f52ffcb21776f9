"""Configuration from Python: merging, conversion, faults, and the schema against the validator."""

import inspect
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainmon
from trainmon import _core
from trainmon.config import ConfigError, config_json, schema
from trainmon.config_types import ConfigKeys, OtherKeys

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "python" / "trainmon"


def effective(*args, **keys):
    return json.loads(config_json(*args, **keys))


def test_what_checks_add_to_the_kinds():
    groups = [
        "weights",
        "grads",
        "moments",
        "update",
        "buffer",
        "input",
        "input_entropy",
        "actv_recomputed",
    ]
    assert _core.kinds_of_checks() == groups
    assert set(_core.expand_kinds(groups)) == {
        "grad_unreduced", "grad_reduced", "param_origin", "param_updated", "moments", "update",
        "buffer", "input", "input_entropy", "actv_recomputed",
    }  # fmt: skip


def test_defaults_are_the_documented_ones():
    config = effective(None)
    assert config["kinds"] == ["grads"]
    assert config["every"] is None
    assert config["queue_mb"] == 64.0
    assert config["overflow"] == "drop_newest"


def test_keywords_win_over_the_mapping_and_the_file(tmp_path):
    file = tmp_path / "c.json"
    file.write_text('{"every": 3, "threads": 2}')
    assert effective({"every": 3, "threads": 2}, every=5)["every"] == 5
    merged = effective(str(file), every=5)
    assert (merged["every"], merged["threads"]) == (5, 2)
    assert effective(file)["every"] == 3


def test_python_values_become_json():
    config = effective(
        None,
        out=Path("a") / "b",
        every=np.int64(4),
        eps=np.float32(0.5),
        ranks=range(2),
        kinds=("weights",),
        input_grads=np.bool_(False),
    )
    assert config["out"] == "a/b"
    assert (config["every"], config["eps"]) == (4, 0.5)
    assert config["ranks"] == [0, 1]
    assert config["kinds"] == ["weights"]
    assert config["input_grads"] is False


def test_all_faults_at_once():
    with pytest.raises(ConfigError) as error:
        config_json({"evry": 1, "queue_mb": float("nan")}, kinds=["gards"], every=0)
    assert isinstance(error.value, ValueError)
    faults = error.value.faults
    assert len(faults) == 4
    for part in ('did you mean "every"?', 'queue_mb = "nan"', 'did you mean "grads"?', "every = 0"):
        assert sum(part in fault for fault in faults) == 1, part
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("config", "keys", "part"),
    [
        (3, {}, "config must be a dict"),
        ({1: 2}, {}, "config key 1"),
        (None, {"every": object()}, "every must be"),
        (None, {"kinds": [b"grads"]}, r"kinds\[0\] must be"),
    ],
)
def test_wrong_types_name_the_argument(config, keys, part):
    with pytest.raises(TypeError, match=part):
        config_json(config, **keys)


def test_a_sink_that_python_cannot_read_is_refused():
    with pytest.raises(ConfigError, match=r"only a program in C\+\+ reads the sink memory"):
        config_json({"sinks": ["log", "memory"]})


def test_file_faults(tmp_path):
    with pytest.raises(FileNotFoundError):
        config_json(tmp_path / "absent.json")
    file = tmp_path / "c.json"
    file.write_text('{\n  "every": 1,\n}')
    with pytest.raises(ConfigError, match=r"c\.json: .*\n.*line 3, column 1"):
        config_json(file)
    file.write_text('{"every": 0}')
    with pytest.raises(ConfigError, match="every = 0"):  # a keyword does not hide it
        config_json(file, every=2)
    file.write_bytes(b'{"out": "\xff"}')
    with pytest.raises(ConfigError, match="not UTF-8"):
        config_json(file)


def test_shipped_schema_is_the_generated_one():
    """If not: .venv/bin/python scripts/configuration_doc.py"""
    assert (PACKAGE / "config.schema.json").read_text().strip() == _core.config_schema().strip()


def test_the_page_and_the_types_are_current():
    """If not: .venv/bin/python scripts/configuration_doc.py"""
    pages = runpy.run_path(str(ROOT / "scripts" / "configuration_doc.py"))
    assert pages["PAGE"].read_text(encoding="utf-8") == pages["page"]()
    assert pages["MODULE"].read_text(encoding="utf-8") == pages["module"]()


def test_types_and_watch_name_every_key_once():
    other, every = set(OtherKeys.__annotations__), set(ConfigKeys.__annotations__)
    named = every - other
    assert every == set(effective(None))
    parameters = set(inspect.signature(trainmon.watch).parameters)
    assert parameters & every == named


CALLS = """
import torch
import trainmon
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters())
trainmon.watch(model, optimizer, every=10)
trainmon.watch(model, optimizer, kinds="all", sinks=("log",), ranks=range(2), overflow="block")
trainmon.watch(model, optimizer, config={"every": 10, "out": "a"}, start_iteration=None)
trainmon.watch(model, optimizer, evry=10)
trainmon.watch(model, optimizer, queue_mb="large")
trainmon.watch(model, optimizer, overflow="blok")
trainmon.wach(model)
"""


def test_a_type_checker_finds_misspelt_keywords(tmp_path):
    (tmp_path / "calls.py").write_text(CALLS)
    # What is inside torch says nothing here, and takes minutes.
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nfollow_imports = silent\n[mypy-torch.*]\nfollow_imports = skip\n"
    )
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "calls.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    faults = [line.split(": ", 2) for line in found.stdout.splitlines() if ": error: " in line]
    lines = {int(place.split(":")[1]): fault for place, _, fault in faults}
    assert sorted(lines) == [9, 10, 11, 12], found.stdout + found.stderr
    for line, name in ((9, "evry"), (10, "queue_mb"), (11, "overflow"), (12, "wach")):
        assert name in lines[line]


def test_schema_is_a_valid_schema_and_takes_the_effective_configuration():
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(effective(None), schema(), cls=jsonschema.Draft202012Validator)
    assert set(schema()["properties"]) == {"$schema", *effective(None)}


VALIDATOR = jsonschema.Draft202012Validator(schema())
INTEGERS = st.one_of(
    st.integers(-2, 300),
    st.sampled_from([2**31 - 1, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30]),
)
NUMBERS = st.one_of(INTEGERS, st.floats(allow_nan=False, allow_infinity=False))
WORDS = st.one_of(
    st.sampled_from(
        ["grads", "gard", "actv", "log", "memory", "auto", "ops", "block", "drop_newest", ""]
    ),
    st.text(alphabet="ab.*\0\n", max_size=8),
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=4),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=2)),
    max_leaves=4,
)
LISTS = st.one_of(st.lists(WORDS, max_size=4), st.lists(INTEGERS, max_size=3))
KEYS = st.sampled_from(sorted(schema()["properties"]) + ["evry", ""])


@settings(max_examples=1500, deadline=None)
@given(st.dictionaries(KEYS, st.one_of(VALUES, LISTS, NUMBERS, WORDS), max_size=3))
def test_schema_and_validator_agree(document):
    try:
        _core.check_config(json.dumps(document))
        accepted = True
    except ConfigError as error:
        # Rules between two keys are beyond JSON Schema.
        of_two = ("must be greater than start_step", "must be at least twice segment_mb")
        faults = [f for f in error.faults if not any(rule in f for rule in of_two)]
        accepted = not faults
    assert accepted == VALIDATOR.is_valid(document), document


@settings(max_examples=500, deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_a_configuration_or_an_error(text):
    try:
        effective_text = _core.check_config(text)
    except (ConfigError, UnicodeEncodeError):  # lone surrogates have no UTF-8
        return
    assert _core.check_config(effective_text) == effective_text


def test_kinds_and_names():
    assert _core.expand_kinds(["grads"]) == ["grad_unreduced", "grad_reduced"]
    with pytest.raises(ConfigError, match="did you mean"):
        _core.expand_kinds(["weihgts"])
    assert _core.name_selected("layers.1.weight", ["layers.1"], [])
    assert not _core.name_selected("layers.10.weight", ["layers.1"], [])


def test_a_relative_file_of_the_environment_is_found_where_the_command_was_typed(tmp_path):
    typed_in, works_in = tmp_path / "typed in", tmp_path / "works in"
    typed_in.mkdir()
    works_in.mkdir()
    (typed_in / "watch.json").write_text('{"every": 7}')

    def read(path, pwd):
        asked = "from trainmon.integrations import configured; print(configured()['every'])"
        environment = {**os.environ, "TRAINMON_CONFIG": path, "PWD": str(pwd)}
        return subprocess.run(
            [sys.executable, "-c", asked],
            cwd=works_in,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert read("watch.json", typed_in).stdout == "7\n"  # a launcher started it elsewhere
    (works_in / "watch.json").write_text('{"every": 9}')
    assert read("watch.json", typed_in).stdout == "9\n"  # the working directory comes first
    assert read(str(typed_in / "watch.json"), works_in).stdout == "7\n"
    missing = read("other.json", typed_in)
    assert missing.returncode == 1 and "TRAINMON_CONFIG" in missing.stderr
    assert f"there is no 'other.json' in {works_in} nor in {typed_in}" in missing.stderr
    missing = read("other.json", works_in)
    assert f"there is no 'other.json' in {works_in};" in missing.stderr
