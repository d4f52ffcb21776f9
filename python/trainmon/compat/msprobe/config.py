# msprobe's monitor configuration: one JSON object, checked as its manual and its code say.
from __future__ import annotations

import difflib
import json
import re
from typing import Any

from trainmon.base.collective_calls import NO_EXPRESSION
from trainmon.base.console import log
from trainmon.base.settings_file import content_of

FORMATS = ("csv", "tensorboard", "api")
OPS = ("norm", "min", "max", "mean", "zeros", "nans")
HOOKS = (
    "attention_hook",
    "linear_hook",
    "moe_router_weight_hook",
    "moe_router_logit_hook",
)
ORDERS = {"s,b,h,d": "sbhd", "b,s,h,d": "bshd"}
RULES = ("AnomalyTurbulence", "AnomalyNan")
CC_KEYS = ("enable", "cc_codeline", "cc_pre_hook", "cc_log_only")
SIDES = ("input", "output", "input_grad", "output_grad")
SPEC = re.compile(r"(tensor|tuple\[(\d+)\](?::(\d+))?)")
LARGEST = 2**53  # every reader of JSON keeps such an integer
WARM_UP = 3  # values of a series before one can deviate from their mean
SWITCHES = (
    "xy_distribution", "wg_distribution", "param_distribution", "mv_distribution",
    "ur_distribution", "mg_direction", "monitor_mbs_grad", "all_xy", "forward_only",
    "backward_only", "print_struct", "stack_info", "recording_l2_features", "dynamic_on",
)  # fmt: skip
# The peer takes whatever is true for these, so configurations exist that have 1 there.
LENIENT = {
    "mv_distribution", "mg_direction", "all_xy", "forward_only", "backward_only", "stack_info",
}  # fmt: skip
FIELDS: dict[str, Any] = {
    **dict.fromkeys(SWITCHES, False),
    "targets": {},
    "squash_name": True,
    "ops": ["norm"],
    "eps": 1e-8,
    "ndigits": 6,
    "format": "csv",
    "step_count_per_record": 1,
    "start_step": 0,
    "step_interval": 1,
    "collect_times": 100_000_000,
    "module_ranks": [],
    "append_output": [],
    "cc_distribution": {},
    "alert": {},
    "l2_targets": {},
    "sa_order": "s,b,h,d",
}


def load(path) -> tuple[dict, bytes]:
    """The JSON object in a file, and the bytes it was read from."""
    try:
        content = content_of(path)
        found = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise RuntimeError(f"Load json file {path} failed: {error}") from None
    if not isinstance(found, dict):
        raise TypeError(f"{path} must hold a JSON object, not {type(found).__name__}")
    return found, content


def checked(given: dict) -> dict:
    """Every field, with its default where it is not given. TypeError or ValueError names the field,
    the value and what would be valid; what the manual lets pass is a warning and the default."""
    config = {**FIELDS, **{key: value for key, value in given.items() if key in FIELDS}}
    for key in given.keys() - FIELDS.keys():
        near = difflib.get_close_matches(key, FIELDS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        log.warning("trainmon: config key %r is not known and ignored%s", key, hint)
    for key in (*SWITCHES, "squash_name"):
        if not isinstance(config[key], bool):
            if key == "monitor_mbs_grad":
                config[key] = _default(key, config[key], "true or false")
            elif key in LENIENT:
                log.warning("trainmon: %s should be true or false, not %r", key, config[key])
                config[key] = bool(config[key])
            else:
                raise TypeError(f"{key} should be a bool, not {config[key]!r}")
    config["targets"] = _targets(config["targets"])
    config["ops"] = ops(config["ops"])
    if isinstance(config["eps"], bool) or not isinstance(config["eps"], (int, float)):
        raise TypeError(f"eps should be a float, not {config['eps']!r}")
    if not 1e-300 <= config["eps"] <= 1e300:
        raise ValueError(f"eps should be from 1e-300 to 1e300, not {config['eps']!r}")
    if config["ndigits"] is not None:  # null: values are not rounded
        _integer(config, "ndigits", 0, 20, ValueError)
    if config["format"] not in FORMATS:
        config["format"] = _default("format", config["format"], "one of " + ", ".join(FORMATS))
    if not is_int(config["step_count_per_record"]):
        what = config["step_count_per_record"]
        raise TypeError(f"step_count_per_record should be an int, not {what!r}")
    _integer(config, "step_count_per_record", 1, 1_000_000, ValueError)
    for key, least in (("start_step", 0), ("step_interval", 1), ("collect_times", 0)):
        if not is_int(config[key]) or not least <= config[key] <= LARGEST:
            config[key] = _default(key, config[key], f"an int from {least} to 2**53")
    ranks = config["module_ranks"]
    if not isinstance(ranks, list) or not all(is_int(rank) and rank >= 0 for rank in ranks):
        raise TypeError(f"module_ranks should be a list of int, not {ranks!r}")
    _check_append_output(config["append_output"])
    config["cc_distribution"] = _collectives(config["cc_distribution"])
    config["alert"] = _alert(config["alert"])
    _check_l2_targets(config["l2_targets"])
    order = config["sa_order"]
    if not isinstance(order, str) or order.replace(" ", "") not in ORDERS:
        raise TypeError(f"sa_order should be one of {', '.join(map(repr, ORDERS))}, not {order!r}")
    config["sa_order"] = order.replace(" ", "")
    if config["forward_only"] and config["backward_only"]:
        log.warning("trainmon: forward_only and backward_only are both true: no activations")
    if config["ur_distribution"] and config["format"] != "tensorboard":
        log.warning("trainmon: ur_distribution needs format tensorboard and is switched off")
        config["ur_distribution"] = False
    if not config["targets"] and config["xy_distribution"]:
        config["all_xy"] = True
    return config


def ops(names) -> list[str]:
    """The statistics asked for, in their order; norm where none is valid."""
    if not isinstance(names, list):
        raise TypeError(f"ops should be a list, not {names!r}")
    known = []
    for name in names:
        if name in ("shape", "dtype"):  # always there
            continue
        if name not in OPS:
            log.warning("trainmon: op %r is not one of %s and ignored", name, ", ".join(OPS))
        elif name not in known:
            known.append(name)
    if not known:
        log.warning("trainmon: ops holds no known statistic: norm is taken")
    return known or ["norm"]


def spec(text) -> tuple[int, int | None] | None:
    """(length, index) of "tuple[n]:i", (length, None) without an index, None for "tensor".
    ValueError for anything else."""
    match = SPEC.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"should be 'tensor' or 'tuple[n]:i', not {text!r}")
    if match.group(3) is not None and int(match.group(3)) >= int(match.group(2)):
        raise ValueError(f"{text!r} has no element {match.group(3)}")
    if match.group(1) == "tensor":
        return None
    return int(match.group(2)), None if match.group(3) is None else int(match.group(3))


def is_int(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _integer(config: dict, key: str, least: int, most: int, error: type) -> None:
    value = config[key]
    if not is_int(value) or not least <= value <= most:
        raise error(f"{key} should be an int from {least} to {most}, not {value!r}")


def _default(key: str, value, valid: str):
    log.warning("trainmon: %s should be %s, not %r: %r is taken", key, valid, value, FIELDS[key])
    return FIELDS[key]


def _targets(targets) -> dict[str, dict]:
    if not isinstance(targets, dict):
        raise TypeError(f"targets should be a dict, not {targets!r}")
    found = {}
    for name, wanted in targets.items():
        if not isinstance(wanted, dict):
            raise TypeError(f"targets[{name!r}] should be a dict, not {wanted!r}")
        found[name] = {key: value for key, value in wanted.items() if _is_side(name, key, value)}
    return {name: wanted for name, wanted in found.items() if name}


def _is_side(name: str, key: str, value) -> bool:
    """The peer's code reads none of these, so what is wrong here must not end a run."""
    where = f"targets[{name!r}][{key!r}]"
    if key not in SIDES:
        what = f"{where} is not known and ignored: should be one of {', '.join(SIDES)}"
        log.warning("trainmon: %s", what)
        return False
    try:
        spec(value)
    except ValueError as error:
        log.warning("trainmon: %s: %s: all of %s is watched", where, error, key)
    return True


def _check_append_output(times) -> None:
    if not isinstance(times, list):
        raise TypeError(f"append_output should be a list, not {times!r}")
    if len(times) not in (0, 2):
        raise ValueError(f"append_output should hold no or two timestamps, not {times!r}")


def _collectives(given) -> dict:
    if not isinstance(given, dict):
        raise TypeError(f"cc_distribution should be a dict, not {given!r}")
    for key, value in given.items():
        if key not in CC_KEYS:
            raise TypeError(f"cc_distribution holds {key!r}: should be one of {', '.join(CC_KEYS)}")
        kind = list if key == "cc_codeline" else bool
        if not isinstance(value, kind):
            raise TypeError(f"cc_distribution[{key!r}] should be a {kind.__name__}, not {value!r}")
    lines = given.get("cc_codeline", [])
    for line in lines:
        try:
            re.compile(line)
        except NO_EXPRESSION as error:
            raise TypeError(
                f"cc_distribution.cc_codeline: {line!r} is no regular expression: {error}"
            ) from None
    return {"enable": False, "cc_codeline": [], "cc_pre_hook": False, "cc_log_only": False, **given}


def _alert(given) -> dict:
    if not isinstance(given, dict):
        raise TypeError(f"alert should be a dict, not {given!r}")
    rules, dump = given.get("rules", []), given.get("dump", False)
    if not isinstance(rules, list):
        raise TypeError(f"alert.rules should be a list, not {rules!r}")
    if not isinstance(dump, bool):
        raise TypeError(f"alert.dump should be a bool, not {dump!r}")
    kept = []
    for rule in rules:
        name = rule.get("rule_name") if isinstance(rule, dict) else None
        if name not in RULES:
            raise TypeError(f"alert.rules: {rule!r} should name one of {', '.join(RULES)}")
        args = rule.get("args", {})
        if not isinstance(args, dict):
            raise TypeError(f"{name}: args should be a dict, not {args!r}")
        threshold = args.get("threshold")
        if threshold is None:
            if args:
                raise TypeError(f"{name}: args should hold a threshold, not {args!r}")
            if name == "AnomalyTurbulence":
                log.warning("trainmon: AnomalyTurbulence needs args.threshold and is left out")
                continue
        elif isinstance(threshold, bool) or not isinstance(threshold, (int, float)):
            raise TypeError(f"{name}: threshold should be a number, not {threshold!r}")
        elif not 0 <= threshold <= 1e300:
            raise TypeError(f"{name}: threshold should be from 0 to 1e300, not {threshold!r}")
        kept.append({"name": name, "threshold": threshold})
    return {"rules": kept, "dump": dump}


def _check_l2_targets(targets) -> None:
    if not isinstance(targets, dict):
        raise TypeError(f"l2_targets should be a dict, not {targets!r}")
    for hook, names in targets.items():
        if hook not in HOOKS:
            raise TypeError(f"l2_targets holds {hook!r}: should be one of {', '.join(HOOKS)}")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"l2_targets[{hook!r}] should be a list of str, not {names!r}")


def kinds(config: dict) -> list[str]:
    """What trainmon calls what the configuration asks for."""
    wanted = {
        "grad_unreduced": config["wg_distribution"],
        "grad_reduced": config["wg_distribution"],
        "param_origin": config["param_distribution"],
        "param_updated": config["param_distribution"],
        "exp_avg": config["mv_distribution"],
        "exp_avg_sq": config["mv_distribution"],
        "actv": config["xy_distribution"] and not config["backward_only"],
        "actv_grad": config["xy_distribution"] and not config["forward_only"],
        "mg_direction": config["mg_direction"],
        "update_ratio": config["ur_distribution"],
        "stack": config["stack_info"],
        "cc": config["cc_distribution"]["enable"],
    }
    if config["xy_distribution"] and config["forward_only"] and config["backward_only"]:
        wanted["actv"] = wanted["actv_grad"] = False
    if config["recording_l2_features"]:
        targets = config["l2_targets"]
        wanted["attn_entropy"] = wanted["attn_max"] = bool(targets.get("attention_hook"))
        wanted["stable_rank"] = wanted["spectral_norm"] = "linear_hook" in targets
        wanted["router_similarity"] = bool(targets.get("moe_router_weight_hook"))
        wanted["router_entropy"] = bool(targets.get("moe_router_logit_hook"))
    return [kind for kind, is_wanted in wanted.items() if is_wanted]


def rules(config: dict) -> list[dict]:
    """The rules of `alert` as the core takes them, without those that have no statistic to look at."""
    found = [_rule(rule, config["ops"]) for rule in config["alert"]["rules"]]
    return [rule for rule in found if rule["stats"]]


def _rule(rule: dict, stats: list[str]) -> dict:
    if rule["name"] == "AnomalyTurbulence":
        stats = [name for name in stats if name in ("norm", "mean")]
        made = {"deviation": float(rule["threshold"]), "warmup": WARM_UP}
    else:
        made = {} if rule["threshold"] is None else {"limit": float(rule["threshold"])}
    return {"name": rule["name"], "stats": stats, **made}
