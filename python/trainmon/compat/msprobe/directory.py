# Where msprobe puts its output: one directory per rank and start.
from __future__ import annotations

import datetime
import os
import re
import uuid
from pathlib import Path

from trainmon.base.console import log

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
SHANGHAI = datetime.timezone(datetime.timedelta(hours=8))  # the clock of all names
DIRECTORY = re.compile(r"([\w-]{0,20})-rank(\d{1,5})-")
TIME = re.compile(r"([A-Z][a-z]{2})(\d{2})_(\d{2})-(\d{2})-(\d{2})")


def base() -> Path:
    return Path(os.environ.get("MONITOR_OUTPUT_DIR") or "./monitor_output").expanduser().absolute()


def fresh(base: Path, rank: int) -> Path:
    """A new one, such as Dec03_21-34-40-rank0-5f3a9c01; made when something is written to it."""
    now = datetime.datetime.now(SHANGHAI)
    stamp = f"{MONTHS[now.month - 1]}{now:%d_%H-%M-%S}"
    return base / f"{stamp}-rank{rank}-{uuid.uuid4().hex[:8]}"


def timestamp(text) -> tuple:
    """Sortable; RuntimeError for what is no time such as Dec03_21-34-40."""
    match = TIME.fullmatch(text) if isinstance(text, str) else None
    if match is None or match.group(1) not in MONTHS:
        raise RuntimeError(f"append_output: {text!r} is no timestamp such as 'Dec03_21-34-40'")
    return MONTHS.index(match.group(1)), *map(int, match.groups()[1:])


def continued(base: Path, rank: int, times: list) -> Path:
    """This rank's newest directory of the closed range, a new one where there is none."""
    start, end = map(timestamp, times)
    if start > end:
        raise ValueError(f"append_output: {times[0]!r} is after {times[1]!r}")
    found = []
    for path in base.iterdir() if base.is_dir() else ():
        match = DIRECTORY.match(path.name)
        if match is None or int(match.group(2)) != rank or not path.is_dir():
            continue
        try:
            when = timestamp(match.group(1))
        except RuntimeError:
            continue
        if start <= when <= end:
            found.append((when, path.stat().st_mtime_ns, path))
    if not found:
        log.warning("trainmon: append_output: rank %d has no output there; it gets a new one", rank)
        return fresh(base, rank)
    return max(found)[-1]
