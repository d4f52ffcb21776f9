# What the converters and the comparator share: progress, times, defaults, the checks of arguments, and where output goes.
from __future__ import annotations

import datetime
import os
import shutil
import sys
import time
import warnings

from trainmon import conversion
from trainmon.base.console import Log, say
from trainmon.checks import arguments as checks

log = Log("trainmon.compat.msprobe")

TYPES = [
    "actv",
    "actv_grad",
    "exp_avg",
    "exp_avg_sq",
    "grad_unreduced",
    "grad_reduced",
    "param_origin",
    "param_updated",
]
_MOST_PROCESSES = 128
# The clock of directory names, whatever the machine's.
_SHANGHAI = datetime.timezone(datetime.timedelta(hours=8))


def now() -> str:
    return datetime.datetime.now(_SHANGHAI).strftime("%b%d_%H-%M-%S")


def checked_path(name: str, path) -> str:
    return os.path.abspath(checks.path(name, path))


def checked_directory(path) -> str:
    path = checked_path("monitor_path", path)
    if not os.path.isdir(path):
        raise FileNotFoundError(f"monitor_path: there is no directory {path}")
    return path


def checked_process_num(value) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"process_num must be an int, not {type(value).__name__}")
    if not 1 <= value <= _MOST_PROCESSES:
        raise ValueError(f"process_num must be from 1 to {_MOST_PROCESSES}, not {value}")
    return value


def checked_types(value, known: list[str]) -> list[str]:
    if value is None:
        return known
    if not isinstance(value, list):
        raise ValueError(f"data_type_list must be a list, not {type(value).__name__}")
    for name in value:
        if name not in known:
            raise ValueError(f"data_type_list: {name!r} is no type; there are {', '.join(known)}")
    return value or known


def checked_time(name: str, value) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f'{name} must be text such as "Dec03_21-34-40", not {value!r}')
    return value


class Progress:
    """A bar on a terminal, a line every five seconds elsewhere."""

    def __init__(self, what: str):
        self.what = what
        self.is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self.next = time.monotonic() + (0.3 if self.is_terminal else 5.0)
        self.drawn = False

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + (0.1 if self.is_terminal else 5.0)
        share = done / total if total else 1.0
        if self.is_terminal:
            self.drawn = True
            bar = ("#" * int(30 * share)).ljust(30, ".")
            say(f"\r{self.what} [{bar}] {share:4.0%}\x1b[K", end="")
        else:
            say(f"{self.what}: {share:.0%}")

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        if self.drawn:
            say("\r\x1b[K", end="")


def convert(source: str, out: str, to: str, types: list[str], **options) -> None:
    """Converts and says what could not be: as warnings of the log, the first ones by file and
    line."""
    with Progress(f"converting {os.path.basename(source) or source}") as progress:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # said below, in full
            report = conversion.convert(
                source, out, to, format="msprobe_csv", kinds=types, progress=progress, **options
            )
    for file, line, _, what in report.rejections[:20]:
        log.warning("not converted: %s%s: %s", file, f" line {line}" if line else "", what)
    if len(report.rejections) > 20:
        log.warning("and %d more places", len(report.rejections) - 20)
    log.info("%d rows converted, %d rejected", report.written, report.rejected)


def merge_into(staged: str, out: str) -> None:
    """Moves the folders STAGED/rank*/TYPE into `out`, each in one step, in place of older ones."""
    for rank in sorted(os.listdir(staged)):
        os.makedirs(os.path.join(out, rank), mode=0o750, exist_ok=True)
        for data_type in sorted(os.listdir(os.path.join(staged, rank))):
            fresh = os.path.join(staged, rank, data_type)
            place = os.path.join(out, rank, data_type)
            old = place + ".old"
            if os.path.lexists(place):
                log.warning("%s is replaced", place)
                shutil.rmtree(old, ignore_errors=True)
                os.rename(place, old)
            os.rename(fresh, place)
            shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(staged, ignore_errors=True)
