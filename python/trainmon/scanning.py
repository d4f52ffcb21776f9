# Runs of any size, table by table.
from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from trainmon import _core
from trainmon.checks import arguments as checks
from trainmon.checks import selection
from trainmon.reading import _call, _checked, _checked_stats, _warn
from trainmon.table import Table


class Scan:
    """What scan() gives: an iterable of tables, which is read anew each time. For whoever speaks
    Arrow it is a stream: `pyarrow.RecordBatchReader.from_stream(scan)`,
    `duckdb.sql("SELECT max(norm) FROM scan")`.

    stats   names of the statistics in the tables
    """

    def __init__(self, core: Any, stats: tuple[str, ...]):
        self._core = core
        self.stats = stats

    def __iter__(self) -> Iterator[Table]:
        one = self._core.begin()
        while (columns := one.next()) is not None:
            yield Table(columns, self.stats)

    def __arrow_c_schema__(self):
        return self._core.empty().__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema=None):
        """A stream that decodes rows as they are asked for; `requested_schema` is not followed."""
        return self._core.__arrow_c_stream__(requested_schema)


def scan(
    run: str | os.PathLike,
    *,
    rows: int = 65_536,
    stats: str | Iterable[str] | None = None,
    kinds: str | Iterable[str] | None = None,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    ranks: int | Iterable[int] | None = None,
    steps: int | tuple[int | None, int | None] | None = None,
    all_restarts: bool = False,
) -> Scan:
    """The rows of a run directory as tables of `rows` rows each, the last one of what is left. Memory
    does not grow with the run, so this is the way to read one that does not fit.

    Other arguments, warnings and errors as for read(); columns as described at Table of
    trainmon.table. Rows come in the order of the logs: by rank, restart, and as they were
    written. All tables have the same texts in their dictionaries, but for shapes that vary.
    The result is an iterable that can be gone through again, and a stream of Arrow.

    >>> weights = trainmon.scan("trainmon_runs/local", kinds="weights", stats="norm", rows=100)
    >>> [(table.num_rows, table["norm"].size) for table in weights]
    [(100, 100), (28, 28)]
    >>> max(float(table["norm"].max()) for table in weights) > 0
    True
    """
    names = _checked_stats(stats)
    if not selection.is_int(rows):
        raise TypeError(f"rows must be an int, not {type(rows).__name__}")
    if not 1 <= rows < 2**31:
        raise ValueError(f"rows must be from 1 to 2147483647, not {rows}")
    path, asked = _checked(run, kinds, include, exclude, ranks, steps)
    flag = checks.flag("all_restarts", all_restarts)
    opened = _call(_core.open_scan, path, *asked, flag, list(names), int(rows))
    _warn(path, opened, 3)
    return Scan(opened, names)
