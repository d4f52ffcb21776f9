"""`trainmon config init` and `explain`, the schema an editor reads, and doctor's look at the machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import jsonschema
import pytest

from launch import command_line as program
from launch import finds_nothing

META = "https://json-schema.org/draft/2020-12/schema"


def call(*arguments, cwd=None, **environment):
    done = subprocess.run(
        [program(), *map(os.fspath, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "80", **environment},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def schema():
    loaded = json.loads(call("config", "schema")[1])
    assert loaded["$schema"] == META
    jsonschema.Draft202012Validator.check_schema(loaded)
    return loaded


def is_valid(schema, value):
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def test_the_schema_lets_an_editor_complete(schema):
    assert schema["additionalProperties"] is False
    for name, key in schema["properties"].items():
        assert key["description"], name
        if name == "$schema":
            continue
        assert "default" in key, name
        assert is_valid(schema, {"$schema": "./x.json", name: key["default"]}), name
    assert not is_valid(schema, {"kindz": []})
    assert not is_valid(schema, {"every": 0})


def test_init_is_valid_and_names_a_schema_that_is_there(schema, tmp_path):
    for extra in ([], ["--all"]):
        code, out, err = call("config", "init", *extra)
        config = json.loads(out)
        assert (code, err) == (0, "") and is_valid(schema, config)
        file = tmp_path / f"monitor{len(extra)}.json"
        code, out, err = call("config", "init", *extra, "-o", file.name, cwd=tmp_path)
        assert (code, out) == (0, "") and file.name in err
        config = json.loads(file.read_text())
        assert is_valid(schema, config)
        assert json.loads((tmp_path / config["$schema"]).read_text()) == schema
        assert call("config", "check", file)[0] == 0
        if extra:
            assert set(config) == set(schema["properties"])
        for name, value in config.items():
            assert name == "$schema" or value == schema["properties"][name]["default"]
        before = file.read_text()
        code, out, err = call("config", "init", "-o", file)
        assert code == 2 and "exists" in err and file.read_text() == before


def test_explain(schema):
    keys = json.loads(call("config", "explain", "--json")[1])
    assert {key["key"] for key in keys} == set(schema["properties"]) - {"$schema"}
    for key in keys:
        described = schema["properties"][key["key"]]
        assert key["meaning"] == described["description"]
        assert key["default"] == described["default"]
        assert key["choices"] == described.get("enum", described.get("items", {}).get("enum", []))
        assert key["example"] != key["default"]
        assert is_valid(schema, {key["key"]: key["example"]}), key
    code, out, err = call("config", "explain", "every")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "every" and "of at least 1, or null" in out
    assert '"every": 10' in out
    for arguments in ([], ["every"], ["kinds"], ["include"]):
        assert max(map(len, call("config", "explain", *arguments)[1].splitlines())) <= 80
    code, out, err = call("config", "explain", "evry")
    assert (code, out) == (2, "") and "did you mean 'every'" in err


def test_doctor_of_the_machine(tmp_path):
    code, out, err = call("doctor", "--json", cwd=tmp_path)
    found = json.loads(out)
    assert err == "" and code == len(found["findings"])
    assert finds_nothing(*call("doctor", cwd=tmp_path)[:2])
    assert found["directory"] == str(tmp_path.resolve())
    assert found["write_bytes_per_second"] > 0
    assert list(tmp_path.iterdir()) == []  # what was written is gone
    python = json.loads(call("doctor", "--json", TRAINMON_PYTHON=os.sys.executable)[1])["python"]
    assert python["interpreter"] == os.sys.executable
    assert python["found"]["python"] == platform.python_version()
    assert python["found"]["torch"] == version("torch")
    assert python["found"]["numpy"] == version("numpy")
    code, out, _ = call("doctor", TRAINMON_PYTHON="/nonexistent")
    assert finds_nothing(code, out) and "/nonexistent (cannot be started)" in out
    lines = call("doctor", cwd="/tmp")[1].splitlines()
    assert max(len(line) for line in lines if not line.startswith("interpreter ")) <= 80


def test_doctor_checks_a_config_and_a_directory(tmp_path):
    file = tmp_path / "monitor.json"
    file.write_text('{"every": 3}')
    code, out, _ = call("doctor", "--config", file)
    assert finds_nothing(code, out) and f"{file} is valid" in out
    file.write_text('{"every": 0, "kindz": []}')
    code, out, _ = call("doctor", "--config", file)
    assert code == 1 and not finds_nothing(code, out) and "kindz" in out
    assert len(json.loads(call("doctor", "--config", file, "--json")[1])["config_faults"]) == 2
    assert call("doctor", "--config", tmp_path / "none.json")[0] == 2
    assert call("doctor", tmp_path, "--config", file)[0] == 2
    if Path("/proc/self").exists():
        code, out, _ = call("doctor", cwd="/proc")  # nobody may make a file there, not even root
        assert code == 1 and "cannot be written" in out
