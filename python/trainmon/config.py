"""Configuration: keyword arguments, a dict or a JSON file become one checked configuration."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainmon import _core
from trainmon.base.settings_file import NoSettings, content_of
from trainmon.checks import arguments as checks

ConfigError = _core.ConfigError


def config_json(config: Mapping[str, Any] | str | os.PathLike[str] | None, **keys: Any) -> str:
    """The effective configuration as JSON text, every key present.

    `config` is a mapping or the path of a JSON file; `keys` win over it. Raises ConfigError (a
    ValueError) naming every fault, TypeError for a value that JSON cannot express, OSError when
    the file cannot be read.
    """
    if isinstance(config, (str, os.PathLike)):
        text = _read(Path(checks.path("config", config)))
        # The file is checked before it is merged. A fault hidden by a keyword is still a fault,
        # and its line and column are only known here.
        try:
            _core.check_config(text)
        except ConfigError as error:
            raise ConfigError(f"{os.fspath(config)}: {error}") from None
        merged = json.loads(text)
    elif isinstance(config, Mapping):
        merged = dict(config)
    elif config is None:
        merged = {}
    else:
        raise TypeError(
            f"config must be a dict or the path of a JSON file, not {type(config).__name__}"
        )
    merged.update(keys)
    for key, value in merged.items():
        is_single = isinstance(value, (str, int)) and not isinstance(value, bool)
        if is_single and _TYPES.get(key) == "array":
            merged[key] = [value]
    if isinstance(merged.get("out"), (str, os.PathLike)):
        merged["out"] = os.path.expanduser(merged["out"])
    try:
        plain = {_key(k): _plain(v, _key(k)) for k, v in merged.items()}
    except RecursionError:
        raise TypeError("config must not hold itself") from None
    checked = _core.check_config(json.dumps(plain))
    if "memory" in json.loads(checked)["sinks"]:
        raise ConfigError(
            "sinks: only a program in C++ reads the sink memory; leave it out ([]: no files)"
        )
    return checked


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a configuration file."""
    return json.loads(_core.config_schema())


_TYPES = {key: value.get("type") for key, value in schema()["properties"].items()}


def _read(path: Path) -> str:
    try:
        return content_of(path).decode("utf-8-sig")
    except NoSettings as error:
        raise ConfigError(f"[config] {error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"[config] {path}: not UTF-8 text ({error.reason})") from None


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"config key {key!r} must be a str, not {type(key).__name__}")
    return key


def _plain(value: Any, where: str) -> Any:
    """`value` as JSON types: paths as text, NumPy scalars as numbers, tuples and sets as lists."""
    if isinstance(value, os.PathLike):
        value = os.fsdecode(value)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"[{where}] {value!r} is not UTF-8 text") from None
    if value is None or isinstance(value, (bool, str)):
        return value
    if hasattr(value, "dtype") and hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, int) and value.bit_length() > 64:
        raise ConfigError(f"[{where}] an integer of {value.bit_length()} bits is out of range")
    if isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        if _TYPES.get(where) == "string":
            raise TypeError(f"{where} must be text, not {value}")
        return str(value)  # JSON has no NaN; as text it is refused by the validator, with its key
    if isinstance(value, Mapping):
        return {_key(k): _plain(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, range)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(items)]
    raise TypeError(f"{where} must be a number, text, a list or None, not {type(value).__name__}")
