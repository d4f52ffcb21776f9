# msprobe's configuration of a gradient probe: one JSON object, checked as its manual and code say.
from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from trainmon.base.console import log

TASK = "grad_probe"
LEVELS = ("L0", "L1", "L2")
DIGESTS = ("md5", "crc32")
MOST = 1_000_000  # the largest step and rank
RANGE = re.compile(r"([0-9]{1,7})-([0-9]{1,7})")
KEYS = ("task", "dump_path", "rank", "step", "grad_probe")
# Of the peer's other tasks: files for all of them exist, so that these are no slips.
OTHERS = (
    "level", "enable_dataloader", "async_dump", "precision", "tensor", "statistics", "overflow_check",
    "run_ut", "free_benchmark", "structure", "exception_dump", "seed", "is_deterministic", "nfs_path",
)  # fmt: skip
FIELDS = ("grad_level", "param_list", "bounds", "digest")


@dataclass(frozen=True)
class Settings:
    dump_path: str
    ranks: list[int]
    steps: list[int]
    level: str
    parameters: list[str]
    bounds: list
    digest: str  # ours: what the column MD5 of L0 holds


def checked(given: dict) -> Settings:
    """TypeError or ValueError names the field, the value and what would be valid."""
    _warn_unknown(given, (*KEYS, *OTHERS), "")
    block = given.get("grad_probe", {})
    if not isinstance(block, dict):
        raise TypeError(f"grad_probe should be an object, not {block!r}")
    _warn_unknown(block, FIELDS, "grad_probe.")
    path = given.get("dump_path")
    if not isinstance(path, str) or not path:
        raise TypeError(f"dump_path should be a str, not {path!r}")
    level = block.get("grad_level", "L1")
    if level not in LEVELS:
        raise ValueError(f"grad_level should be one of {', '.join(LEVELS)}, not {level!r}")
    parameters = block.get("param_list", [])
    if not isinstance(parameters, list) or not all(isinstance(name, str) for name in parameters):
        raise TypeError(f"param_list should be a list of str, not {parameters!r}")
    digest = block.get("digest", "md5")
    if digest not in DIGESTS:
        raise ValueError(f"grad_probe.digest should be one of {', '.join(DIGESTS)}, not {digest!r}")
    return Settings(
        dump_path=path,
        ranks=numbers("rank", given.get("rank")),
        steps=numbers("step", given.get("step")),
        level=level,
        parameters=parameters,
        bounds=_bounds(block.get("bounds", [-1, 0, 1])),
        digest=digest,
    )


def numbers(what: str, given) -> list[int]:
    """Of rank and step: integers and ranges such as "4-6", which hold both ends; [] for all."""
    if given is None:
        return []
    if not isinstance(given, list):
        raise TypeError(f"{what} should be a list, not {given!r}")
    found: set[int] = set()
    for one in given:
        if isinstance(one, int) and not isinstance(one, bool):
            first = last = one
        elif isinstance(one, str):
            match = RANGE.fullmatch(one)
            if match is None:
                raise ValueError(
                    f"{what} should hold integers and ranges such as '4-6', not {one!r}"
                )
            first, last = int(match[1]), int(match[2])
        else:
            raise TypeError(f"{what} should hold integers and ranges such as '4-6', not {one!r}")
        if not 0 <= first <= last <= MOST:
            raise ValueError(f"{what} should be from 0 to {MOST}, ranges ascending, not {one!r}")
        found.update(range(first, last + 1))
    return sorted(found)


def _bounds(bounds) -> list:
    if not isinstance(bounds, list):
        raise TypeError(f"bounds should be a list, not {bounds!r}")
    for bound in bounds:
        if isinstance(bound, bool) or not isinstance(bound, (int, float)):
            raise TypeError(f"bounds should hold numbers, not {bound!r}")
        if not -(2**63) <= bound < 2**63:  # no NaN either
            raise ValueError(f"bounds should be in the range of int64, not {bound!r}")
    for low, high in zip(bounds, bounds[1:]):
        if float(low) >= float(high):
            raise ValueError(f"bounds should ascend: {high!r} follows {low!r}")
    return bounds


def _warn_unknown(given: dict, known: tuple, where: str) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {where}{near[0]}?" if near else ""
            log.warning("trainmon: config key %s%s is not known and ignored%s", where, key, hint)
