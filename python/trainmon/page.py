# The page about a run, made in C++, as an object that a notebook shows.
from __future__ import annotations

import os
from collections.abc import Iterable

from trainmon import _core
from trainmon.checks import arguments as checks
from trainmon.checks import selection
from trainmon.reading import _call

_MOST_MIB = 1024


class Report:
    """A page in memory: a notebook shows it, `str()` gives its first words, `save()` makes it a file.

    verdict     place of what went wrong first in the run, as diagnose() finds it; None: nothing
    verdict_b   the same of the second run; None without one
    difference  place where two runs begin to differ, as compare() finds it; None: nowhere
    html        the page, a text
    """

    def __init__(self, page: _core.Report):
        self._page = page

    @property
    def verdict(self) -> str | None:
        return self._page.verdict

    @property
    def verdict_b(self) -> str | None:
        return self._page.verdict_b

    @property
    def difference(self) -> str | None:
        return self._page.difference

    @property
    def html(self) -> str:
        return self._page.html

    def save(self, path: str | os.PathLike, *, overwrite: bool = False) -> None:
        """Writes the page. A report that is there is replaced, another file only with `overwrite`;
        RuntimeError otherwise, for what is no file, and when the disk fails.

        >>> trainmon.report("trainmon_runs/local").save("local.html")
        >>> open("local.html", encoding="utf-8").readline()
        '<!doctype html>\\n'
        """
        self._page.save(os.fsencode(checks.path("path", path)), checks.flag("overwrite", overwrite))

    def __str__(self) -> str:
        return self._page.words

    def __repr__(self) -> str:
        return f"<trainmon report: {self}>"

    def _repr_html_(self) -> str:
        """An iframe that may run the page's scripts and nothing else: it reaches no other page."""
        return self._page.frame


def report(
    run: str | os.PathLike,
    run_b: str | os.PathLike | None = None,
    *,
    kinds: str | Iterable[str] | None = None,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    ranks: int | Iterable[int] | None = None,
    steps: int | tuple[int | None, int | None] | None = None,
    max_size: int = 16,
) -> Report:
    """The page that `trainmon report RUN [RUN_B]` writes, as an object that a notebook shows.

    run_b     a run that is held against `run`, which is taken to be right
    kinds, include, exclude, ranks, steps   as for trainmon.read
    max_size  MiB that the page may have, 1 to 1024: steps share columns until it fits

    Raises FileNotFoundError when a path holds no run, TypeError or ValueError naming the argument.

    >>> page = trainmon.report("trainmon_runs/local")
    >>> print(page)
    first wrong: step 12, forward, rank 0, (root) input.0
    >>> page.save("report.html")
    """
    first, last = selection.step_range(steps)
    page = _call(
        _core.report,
        os.fsencode(checks.path("run", run)),
        None if run_b is None else os.fsencode(checks.path("run_b", run_b)),
        selection.texts("kinds", kinds),
        selection.texts("include", include),
        selection.texts("exclude", exclude),
        selection.rank_numbers(ranks),
        first,
        last,
        _mebibytes(max_size) << 20,
    )
    return Report(page)


def _mebibytes(max_size) -> int:
    if not selection.is_int(max_size):
        raise TypeError(f"max_size must be an int, not {type(max_size).__name__}")
    if not 1 <= max_size <= _MOST_MIB:
        raise ValueError(f"max_size must be 1 to {_MOST_MIB}, not {max_size}")
    return int(max_size)
