# The configuration of msprobe's Monitor V2: one JSON object, checked as its manual and its code say.
from __future__ import annotations

import difflib
from typing import Any

from trainmon.base.console import log
from trainmon.compat.msprobe import config as v1

FRAMEWORKS = {
    "pytorch": "pytorch", "pt": "pytorch", "torch": "pytorch", "mindspore": "mindspore",
    "ms": "mindspore",
}  # fmt: skip
OPS = ("min", "max", "mean", "norm", "nans")
FIELDS: dict[str, Any] = {
    "framework": "pytorch",
    "output_dir": "./",
    "format": "csv",
    "async_write": False,
    "rank": [],
    "start_step": 0,
    "stop_step": None,
    "step_interval": 1,
    "step_count_per_record": 1,
    "patch_optimizer_step": None,  # true where start() is given an optimizer
    "collect_times": 100_000_000,
    "monitors": {},
}
COLLECTIVES = {"cc_codeline": [], "cc_log_only": False, "cc_pre_hook": False, "module_ranks": []}
MONITORS: dict[str, dict] = {
    "module": {"targets": []},
    "weight_grad": {"monitor_mbs_grad": False, "micro_batch_number": None, "grad_acc_steps": None},
    "optimizer": {"mv_distribution": True},
    "param": {"param_distribution": True},
    "cc": COLLECTIVES,
}
KINDS = {
    "module": ["actv", "actv_grad"],
    "weight_grad": ["grad_unreduced", "grad_reduced"],
    "optimizer": ["exp_avg", "exp_avg_sq"],
    "param": ["param_origin", "param_updated"],
    "cc": ["cc"],
}


def checked(given: dict, fr=None) -> dict:
    """Every field, with its default where it is not given. What the peer lets pass is a warning and the
    default; ValueError for a framework or a format that there is not."""
    config = {**FIELDS, **{key: value for key, value in given.items() if key in FIELDS}}
    _say_unknown(given.keys(), FIELDS, "config")
    wanted = str(fr or config["framework"]).strip().lower()
    if wanted not in FRAMEWORKS:
        raise ValueError(f"framework should be one of {', '.join(FRAMEWORKS)}, not {wanted!r}")
    config["framework"] = FRAMEWORKS[wanted]
    if str(config["format"]).strip().lower() != "csv":
        raise ValueError(f"format should be 'csv', not {config['format']!r}")
    if not isinstance(config["output_dir"], str):
        raise TypeError(f"output_dir should be a str, not {config['output_dir']!r}")
    for key, least, most in (
        ("start_step", 0, v1.LARGEST),
        ("step_interval", 1, v1.LARGEST),
        ("collect_times", 1, v1.LARGEST),
        ("step_count_per_record", 1, 1_000_000),
    ):
        if not v1.is_int(config[key]) or not least <= config[key] <= most:
            config[key] = _default(key, config[key], f"an int from {least} to {most}", FIELDS)
    stop = config["stop_step"]
    if stop is not None and (not v1.is_int(stop) or stop < config["start_step"]):
        config["stop_step"] = _default("stop_step", stop, "an int from start_step on", FIELDS)
    config["rank"] = _ranks("rank", config["rank"])
    config["monitors"] = _monitors(config["monitors"])
    return config


def _monitors(given) -> dict[str, dict]:
    """Those that are switched on, each with every field of its own."""
    if not isinstance(given, dict):
        given = _default("monitors", given, "a dict", FIELDS)
    found = {}
    for name, settings in given.items():
        if not isinstance(settings, dict) or not settings.get("enabled", name == "module"):
            continue
        if name not in MONITORS:
            _say_unknown([name], MONITORS, "monitor")
            continue
        if name == "cc" and isinstance(settings.get("cc_distribution"), dict):
            settings = {**settings, **settings["cc_distribution"]}
        own = {**MONITORS[name], **{k: v for k, v in settings.items() if k in MONITORS[name]}}
        shared = ("enabled", "enable", "ops", "eps", "cc_distribution")
        _say_unknown(settings.keys() - set(shared), own, f"monitors.{name}")
        for key, default in MONITORS[name].items():
            if isinstance(default, bool) and not isinstance(own[key], bool):
                if key == "monitor_mbs_grad":
                    own[key] = _default(key, own[key], "true or false", MONITORS[name])
                own[key] = bool(own[key])
        own["ops"] = _ops(settings.get("ops"))
        found[name] = own
    if "module" in found:
        found["module"]["targets"] = _targets(found["module"]["targets"] or [])
    if "cc" in found:
        found["cc"]["module_ranks"] = sorted(_ranks("module_ranks", found["cc"]["module_ranks"]))
    return found


def _targets(given) -> list[str]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        names = _default("targets", given, "a list of str", MONITORS["module"])
    return list(names)


def _ops(names) -> list[str]:
    if not isinstance(names, (list, str)):
        return list(OPS)
    asked = [names] if isinstance(names, str) else names
    known = list(dict.fromkeys(name for name in asked if name in OPS))
    if len(known) < len(asked):
        log.warning("trainmon: ops should be of %s, not %r", ", ".join(OPS), names)
    return known or list(OPS)


def _ranks(key: str, given) -> set[int]:
    """Empty: all ranks."""
    ranks = [given] if v1.is_int(given) else given
    if not isinstance(ranks, list) or not all(v1.is_int(rank) for rank in ranks):
        log.warning("trainmon: %s should be an int or a list of int, not %r: all", key, given)
        return set()
    return set(ranks)


def micro_steps(settings: dict, context: dict) -> int:
    """Micro-batches of a step: what weight_grad says, else what start() was given, else 1."""
    for place in (settings, context):
        for key in ("micro_batch_number", "grad_acc_steps"):
            try:
                count = int(place.get(key))
            except (TypeError, ValueError, OverflowError):
                continue
            if count > 0:
                return count
    return 1


def _default(key: str, value, valid: str, fields: dict):
    log.warning("trainmon: %s should be %s, not %r: %r is taken", key, valid, value, fields[key])
    return fields[key]


def _say_unknown(given, known, what: str) -> None:
    for key in sorted(map(str, set(given) - set(known))):
        near = difflib.get_close_matches(key, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        log.warning("trainmon: %s key %r is not known and ignored%s", what, key, hint)
