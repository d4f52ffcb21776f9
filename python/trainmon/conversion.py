# Conversions from Python: the arguments checked, the work done in C++.
from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from trainmon import _core
from trainmon.checks import arguments as checks
from trainmon.checks import selection

SOURCES = ("auto", "log", "csv", "sqlite", "msprobe_csv")
TARGETS = ("csv", "jsonl", "sqlite", "tensorboard", "msprobe_db", "msprobe_trend")


@dataclasses.dataclass(frozen=True)
class Conversion:
    """What became of the rows: rows == written + rejected + superseded + left_out."""

    rows: int
    written: int
    rejected: int
    superseded: int  # a restart went through their step again
    left_out: int  # the target has no place for them
    rejections: list[tuple[str, int, int, str]]  # file, line (0: none), rows, what
    remarks: list[str]
    kinds: list[str]
    missing_ranks: list[int]
    incomplete: list[str]  # why the record is not complete


def convert(
    source: str | os.PathLike,
    out: str | os.PathLike,
    to: str,
    *,
    format: str = "auto",
    stats: str | Iterable[str] | None = None,
    kinds: str | Iterable[str] | None = None,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    ranks: int | Iterable[int] | None = None,
    steps: int | tuple[int | None, int | None] | None = None,
    all_restarts: bool = False,
    merged: bool = False,
    time_start: str | None = None,
    time_end: str | None = None,
    step_partition: int = 500,
    micro_steps_are_steps: bool = True,
    safe_cells: bool = False,
    threads: int = 1,
    overwrite: bool = False,
    progress: Callable[[int, int], Any] | None = None,
) -> Conversion:
    """Other files from those of a run or of msprobe's monitor, as `trainmon convert` makes them.

    source   a run directory, a directory or database that a conversion wrote, or msprobe's output
    out      what to write; gets its name when everything is in it
    to       csv, jsonl, sqlite, tensorboard, msprobe_db or msprobe_trend
    format   of the source: auto, log, csv, sqlite or msprobe_csv
    stats, kinds, include, exclude, ranks, steps, all_restarts, merged   as for trainmon.read
    time_start, time_end    msprobe_csv: times of directories, closed ("Dec03_21-34-40")
    step_partition          msprobe_db: steps per table
    micro_steps_are_steps   msprobe_trend: micro steps are counted on as steps
    safe_cells              csv: an apostrophe before text that a spreadsheet takes for a formula
    threads                 that read
    overwrite               replace what is there
    progress                called with bytes done and in all, from any thread

    Raises TypeError or ValueError naming the argument, RuntimeError when there is nothing to convert
    or `out` is in the way, OSError. Rows that cannot be used are left out, listed and warned about.

    >>> done = trainmon.convert("trainmon_runs/local", "tables", "csv", kinds="weights")
    >>> done.rows, done.written, done.rejections
    (128, 128, [])
    """
    _check_formats(format, to)
    if safe_cells and to != "csv":
        raise ValueError(f"safe_cells: for to='csv' only, not for {to!r}")
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be a function, not {type(progress).__name__}")
    first, last = selection.step_range(steps)
    report = Conversion(
        **_core.convert(
            os.fsencode(checks.path("source", source)),
            format,
            os.fsencode(checks.path("out", out)),
            to,
            selection.texts("kinds", kinds),
            selection.texts("include", include),
            selection.texts("exclude", exclude),
            selection.rank_numbers(ranks),
            first,
            last,
            checks.flag("all_restarts", all_restarts),
            checks.flag("merged", merged),
            selection.texts("stats", stats),
            time_start or "",
            time_end or "",
            step_partition,
            checks.flag("micro_steps_are_steps", micro_steps_are_steps),
            checks.flag("safe_cells", safe_cells),
            threads,
            checks.flag("overwrite", overwrite),
            progress,
        )
    )
    _warn_of(report)
    return report


def _check_formats(source: str, target: str) -> None:
    if source not in SOURCES:
        raise ValueError(f"format: {source!r} is none; there are {', '.join(SOURCES)}")
    if target not in TARGETS:
        raise ValueError(f"to: {target!r} is no format; there are {', '.join(TARGETS)}")


def _warn_of(report: Conversion) -> None:
    """To whoever has called convert()."""
    if report.rejections:
        file, line, _, what = report.rejections[0]
        place = f"{file} line {line}" if line else file
        more = len(report.rejections) - 1
        warnings.warn(
            f"not all could be converted ({report.rejected} rows rejected): {place}: {what}"
            + (f" and {more} more" if more else ""),
            RuntimeWarning,
            stacklevel=3,
        )
    if report.incomplete:
        more = len(report.incomplete) - 1
        warnings.warn(
            f"incomplete: {report.incomplete[0]}" + (f" and {more} more" if more else ""),
            RuntimeWarning,
            stacklevel=3,
        )
