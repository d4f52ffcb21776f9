# The configuration of ColossalAIMonitor: one JSON object, checked as its manual and its code say.
from __future__ import annotations

import difflib
import json
import os
from typing import Any

from trainmon.base.console import log
from trainmon.base.settings_file import content_of

STATS = ("norm", "mean", "max", "min")  # in the order of their columns
STRAY = "front"  # the manual lists it where its columns have norm
MODES = ("none", "dp", "tp", "pp", "zero", "zero1", "zero2", "zero3", "auto")
LARGEST = 2**53  # every reader of JSON keeps such an integer
FIELDS: dict[str, Any] = {
    "stats": list(STATS),
    "parallel_mode": "dp",
    "param_list": [],
    "write_interval": 1,
    "output_dir": ".",
    "output_file_local": "grad_stats_local.csv",
    "output_file_global": "grad_stats_global.csv",
    "reduce_shards": False,  # ours
}


def load(path) -> dict:
    """The JSON object in a file; {} for None. An OSError, ValueError or TypeError names it."""
    if path is None:
        return {}
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"config_path should be the path of a JSON file or None, not {path!r}")
    if not os.path.exists(path):
        raise FileNotFoundError(f"Config file not found at: {path}")
    if os.path.isdir(path):
        raise IsADirectoryError(f"config_path should be a JSON file, but {path} is a folder")
    try:
        found = json.loads(content_of(path).decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise TypeError(f"{path} must hold a JSON object, not {type(found).__name__}")
    return found


def checked(given: dict) -> dict:
    """Every field, with its default where it is not given. ValueError names every fault; a key that
    is not known is a warning."""
    config = {**FIELDS, **{key: value for key, value in given.items() if key in FIELDS}}
    for key in given.keys() - FIELDS.keys():
        near = difflib.get_close_matches(key, FIELDS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        log.warning("trainmon: config key %r is not known and ignored%s", key, hint)
    faults: list[str] = []
    config["stats"] = _stats(config["stats"], faults)
    if config["parallel_mode"] not in MODES:
        _fault(faults, config, "parallel_mode", "one of " + ", ".join(MODES))
    names = config["param_list"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        _fault(faults, config, "param_list", "a list of names of parameters")
    interval = config["write_interval"]
    if isinstance(interval, bool) or not isinstance(interval, int) or not 1 <= interval <= LARGEST:
        _fault(faults, config, "write_interval", "an int from 1 to 2**53")
    for key in ("output_dir", "output_file_local", "output_file_global"):
        if not _is_path(config[key]):
            _fault(faults, config, key, "a path, in UTF-8 at most 4095 bytes, 255 between two /")
    if not isinstance(config["reduce_shards"], bool):
        _fault(faults, config, "reduce_shards", "true or false")
    if not faults and _same_file(config):
        faults.append(
            "output_file_local and output_file_global should be two files, not both "
            f"{config['output_file_local']!r}"
        )
    if faults:
        raise ValueError("bad configuration of ColossalAIMonitor: " + "; ".join(faults))
    return config


def _stats(names, faults: list[str]) -> list[str]:
    valid = "one or more of " + ", ".join(STATS)
    if not isinstance(names, list):
        faults.append(f"stats should be a list of {valid}, not {names!r}")
        return []
    if STRAY in names:
        log.warning("trainmon: stats holds %r, which is taken for 'norm'", STRAY)
        names = ["norm" if name == STRAY else name for name in names]
    unknown = [name for name in names if name not in STATS]
    if unknown or not names:
        faults.append(f"stats should be a list of {valid}, not {unknown or names!r}")
    return [name for name in STATS if name in names]


def _is_path(value) -> bool:
    """Whether a file may have it for a name."""
    if not isinstance(value, str) or not value or "\0" in value:
        return False
    try:
        path = value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return len(path) < 4096 and all(len(part) < 256 for part in path.split(b"/"))


def _same_file(config: dict) -> bool:
    local, reduced = (
        os.path.normpath(os.path.join(config["output_dir"], config[key]))
        for key in ("output_file_local", "output_file_global")
    )
    return local == reduced


def _fault(faults: list[str], config: dict, key: str, valid: str) -> None:
    value = repr(config[key])
    if len(value) > 200:
        value = f"{value[:100]}... ({len(value)} characters)"
    faults.append(f"{key} should be {valid}, not {value}")
