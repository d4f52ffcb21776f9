# Reading runs back: tables of columns, the first bad row, the largest values.
from __future__ import annotations

import dataclasses
import json
import os
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from trainmon import _core
from trainmon.checks import arguments as checks
from trainmon.checks import selection
from trainmon.table import FLAGS as FLAGS
from trainmon.table import Histogram as Histogram
from trainmon.table import RunTable

if TYPE_CHECKING:
    import numpy as np
    import pandas

_STATS = tuple(line["name"] for line in _core.stat_table())


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a run; `stats` holds every statistic."""

    restart: int
    rank: int
    kind: str
    chunk: int
    name: str
    element: str
    optimizer: int
    step: int
    attempt: int
    micro_step: int
    call: int
    seq: int
    flags: int
    fate: str
    stats: dict[str, float] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class FirstBad(Row):
    """Where a run first went wrong.

    ranks      all ranks that went wrong at that same place
    came_from  where it came from, where that is not this tensor ("the forward or the loss"), else ""
    why        why that is so
    module     what is known of the module it came from
    changes    values of the optimizer's groups that changed in the ten steps before, a sentence each
    follows_gap  the step before has no row: what went wrong may have begun in one not recorded
    restarts   all restarts that went wrong
    """

    ranks: tuple[int, ...]
    came_from: str
    why: str
    module: str
    changes: tuple[str, ...]
    follows_gap: bool
    restarts: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Ranked(Row):
    """A row found by top().

    value    its value of the statistic `stat`
    unusual  how far it is from its tensor's own history; inf for a row that is not finite
    before   the median of the steps before it, which it was held against

    By size, `unusual` and `before` are NaN.
    """

    stat: str
    value: float
    unusual: float
    before: float


def read(
    run: str | os.PathLike,
    *,
    stats: str | Iterable[str] | None = None,
    kinds: str | Iterable[str] | None = None,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    ranks: int | Iterable[int] | None = None,
    steps: int | tuple[int | None, int | None] | None = None,
    all_restarts: bool = False,
    merged: bool = False,
) -> pandas.DataFrame | dict[str, np.ndarray]:
    """The rows of a run directory, which may still be written, as a pandas.DataFrame; as a dict of
    NumPy arrays where pandas is not installed. Only what was asked for is loaded.

    stats         statistics to derive (docs/statistics.md); default all
    kinds         kinds or groups (grads, weights, moments, activations); default all
    include, exclude  name patterns as for `watch`
    ranks         ranks to read; default all
    steps         one step, or (first, last), both inclusive, None for open
    all_restarts  also rows of steps that a later restart went through again
    merged        merge rows over ranks. Parts of one whole are merged, and values that are
                  identical on all ranks are taken once; both have rank -1. The rest stays per rank

    Raises FileNotFoundError when `run` holds no run, PermissionError when it may not be read,
    TypeError or ValueError naming the argument.
    Parts of files that cannot be used are left out and warned about; so are ranks that should be
    there and are not. Columns as described at RunTable, which read_table() gives.

    >>> frame = trainmon.read(
    ...     "trainmon_runs/local", kinds="grad_reduced", stats=["norm", "nans"], steps=(11, 12)
    ... )
    >>> print(frame[["step", "name", "nans"]].to_string(index=False))
     step           name  nans
       11 encoder.weight     0
       11   encoder.bias     0
       11    head.weight     0
       11      head.bias     0
       12 encoder.weight   512
       12   encoder.bias    32
       12    head.weight    32
       12      head.bias     1
    """
    names = _checked_stats(stats)
    rows = _read(run, kinds, include, exclude, ranks, steps, all_restarts, merged, names)
    table = RunTable(rows, names)
    try:
        return table.to_pandas()
    except ModuleNotFoundError as error:
        if error.name != "pandas":
            raise
        return dict(table)


def read_table(
    run: str | os.PathLike,
    *,
    stats: str | Iterable[str] | None = None,
    kinds: str | Iterable[str] | None = None,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    ranks: int | Iterable[int] | None = None,
    steps: int | tuple[int | None, int | None] | None = None,
    all_restarts: bool = False,
    merged: bool = False,
) -> RunTable:
    """The same as a RunTable: with the alerts, gaps, payloads and scalars of the run, and what
    could not be read (.damage, .missing_ranks). Arguments and errors as for read().

    >>> table = trainmon.read_table("trainmon_runs/local", kinds="weights", steps=3)
    >>> table.num_rows, table["shape"][0], table.damage
    (8, '[32,16]', [])
    >>> set(table.scalars["name"]), set(table.scalars["step"].tolist())
    ({'loss'}, {3})
    """
    names = _checked_stats(stats)
    rows = _read(run, kinds, include, exclude, ranks, steps, all_restarts, merged, names)
    return RunTable(rows, names)


def first_bad(
    run: str | os.PathLike,
    *,
    kinds: str | Iterable[str] | None = None,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    ranks: int | Iterable[int] | None = None,
    steps: int | tuple[int | None, int | None] | None = None,
) -> FirstBad | None:
    """The row with a NaN or an infinity that comes first in the run; None when there is none.

    First by step, then in the order of a step: weights, forward, backward, reduced gradients,
    optimizer state, updated weights. Gradients of steps that a loss scaler skipped count only when
    nothing else is bad. All restarts are looked at. Arguments and errors as for read().

    >>> bad = trainmon.first_bad("trainmon_runs/local")
    >>> bad.step, bad.ranks, bad.kind, bad.name, bad.element, bad.stats["nans"]
    (12, (0,), 'actv', '', 'input.0', 1)
    >>> trainmon.first_bad("trainmon_runs/local", steps=(0, 11)) is None
    True
    """
    path, asked = _checked(run, kinds, include, exclude, ranks, steps)
    rows, found, unmatched = _call(_core.first_bad, path, *asked)
    _warn(path, rows, 3, unmatched)
    return None if found is None else FirstBad(**found)


def diagnose(
    run: str | os.PathLike,
    *,
    kinds: str | Iterable[str] | None = None,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    ranks: int | Iterable[int] | None = None,
    steps: int | tuple[int | None, int | None] | None = None,
    all_restarts: bool = False,
) -> dict[str, Any]:
    """What went wrong first: the equations that each step of a training obeys, checked over all
    ranks, with the bound of their rounding. docs/detection.md says what each check proves.

    A dict with "verdict" (a finding, or None), "findings", "checked" (how often, by check),
    "not_checked" (check and why) and "left_history" (a value, or None). A finding has "step", "check",
    "stage", "ranks" ("one_of_ranks": one of them is wrong, which cannot be told), "tensors",
    "layers", "value", "bound", "certain" and "text". With `all_restarts` each start is checked as if it were the only one. The verdict is then that
    of the earliest step, and "restarts" has the "verdict" of each "restart".
    Arguments and errors as for read().

    >>> found = trainmon.diagnose("trainmon_runs/local")
    >>> found["verdict"]["step"], found["verdict"]["check"], found["verdict"]["stage"]
    (12, 'finite', 'forward')
    """
    path, asked = _checked(run, kinds, include, exclude, ranks, steps)
    asked = *asked, checks.flag("all_restarts", all_restarts)
    rows, found, unmatched = _call(_core.diagnose, path, *asked)
    _warn(path, rows, 3, unmatched)
    return json.loads(found)


def top(
    run: str | os.PathLike,
    stat: str = "norm",
    count: int = 10,
    *,
    by: Literal["history", "size"] = "history",
    smallest: bool = False,
    kinds: str | Iterable[str] | None = None,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    ranks: int | Iterable[int] | None = None,
    steps: int | tuple[int | None, int | None] | None = None,
) -> list[Ranked]:
    """The `count` tensors that left their own history furthest, each at the row where it did, on the
    rank where it did.

    by="history"  what is not finite comes first, the earliest leading. Other rows count by how far
                  log10 of the value is from the median of the up to 16 steps before. The unit is a
                  robust standard deviation (docs/questions.md). Tensors of integers and those
                  with fewer than nine steps have no history and are left out
    by="size"     the largest (or smallest) value of each; NaN comes first, integers come last

    Arguments and errors as for read().

    >>> worst = trainmon.top("trainmon_runs/local", count=1)[0]
    >>> worst.step, worst.kind, worst.element, worst.unusual
    (12, 'actv', 'output', inf)
    >>> for row in trainmon.top(
    ...     "trainmon_runs/local", "count", 2, by="size", kinds="weights", steps=(0, 5)
    ... ):
    ...     print(row.kind, row.name, row.value)
    param_origin encoder.weight 512.0
    param_updated encoder.weight 512.0
    """
    (name,) = _checked_stats(selection.one_name("stat", stat))
    if not selection.is_int(count):
        raise TypeError(f"count must be an int, not {type(count).__name__}")
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    if by not in ("history", "size"):
        raise ValueError(f'by must be "history" or "size", not {by!r}')
    if checks.flag("smallest", smallest) and by == "history":
        raise ValueError('smallest=True needs by="size"')
    path, asked = _checked(run, kinds, include, exclude, ranks, steps)
    rows, found, unmatched = _call(_core.top, path, *asked, name, count, by == "history", smallest)
    _warn(path, rows, 3, unmatched)
    return [Ranked(**row) for row in found]


def _read(
    run, kinds, include, exclude, ranks, steps, all_restarts=False, merged=False, stats=None
) -> _core.Rows:
    path, asked = _checked(run, kinds, include, exclude, ranks, steps)
    rows = _call(
        _core.read_run,
        path,
        *asked,
        checks.flag("all_restarts", all_restarts),
        checks.flag("merged", merged),
        None if stats is None else list(stats),
    )
    _warn(path, rows, 4)
    return rows


class RowsByKind:
    """The rows of a run, one rank after the other. Of a rank one kind comes after the other, so
    that no more is in memory. `folder` takes a file that has no name. Arguments as of
    read_table(); `threads` read, None: as many as the machine has, at most 8.

    facts     what the run holds beside rows, as a RunTable without any
    payloads  how many histograms and texts the ranks read so far have
    """

    def __init__(
        self,
        run: str | os.PathLike,
        folder: str | os.PathLike,
        *,
        stats=None,
        kinds=None,
        include=None,
        exclude=None,
        ranks=None,
        steps=None,
        all_restarts=False,
        threads=None,
    ):
        self.stats = _checked_stats(stats)
        self._path, asked = _checked(run, kinds, include, exclude, ranks, steps)
        self._rows = _call(
            _core.rows_by_kind,
            self._path,
            *asked,
            checks.flag("all_restarts", all_restarts),
            self.stats,
            os.fsencode(folder),
            threads or 0,
        )
        facts = self._rows.facts()
        _warn(self._path, facts, 3)
        self.facts = RunTable(facts, ())

    @property
    def payloads(self) -> int:
        return self._rows.payload_count()

    def of_rank(self, rank: int, count: int) -> list[tuple[str, Iterator[dict[str, Any]]]]:
        """Each kind that the rank has rows of, with its columns, of `count` rows at a time; to be
        used before the next rank. Rows are ordered by name, chunk, element, restart, step, attempt
        and seq; text columns are codes and the texts they stand for."""
        kinds = self._rows.take_rank(rank)
        if self._rows.damage_count() > len(self.facts.damage):
            _warn(self._path, self._rows.facts(), 3)
        return [(kind, self._blocks(number, count)) for number, kind in enumerate(kinds)]

    def _blocks(self, kind: int, count: int) -> Iterator[dict[str, Any]]:
        rows = self._rows.rows_of(kind)
        for begin in range(0, len(rows), count):
            yield self._rows.columns(rows, begin, begin + count)


def _checked(run, kinds, include, exclude, ranks, steps) -> tuple[bytes, tuple]:
    path = os.fsencode(checks.path("run", run))
    span = selection.step_range(steps)
    return path, (
        selection.texts("kinds", kinds),
        selection.texts("include", include),
        selection.texts("exclude", exclude),
        selection.rank_numbers(ranks),
        *span,
    )


def _call(function, *arguments):
    try:
        return function(*arguments)
    except RuntimeError as error:
        raise FileNotFoundError(f"run: {error}") from None
    except ValueError as error:  # an unknown kind is all it finds wrong
        raise ValueError(f"kinds: {error}") from None


def _warn(path: bytes, rows: _core.Rows, stacklevel: int, unmatched: str = "") -> None:
    """Says what the answer may lack, to whoever is so many calls above."""
    if unmatched:
        warnings.warn(unmatched, RuntimeWarning, stacklevel=stacklevel)
    for pattern in rows.suggested():
        warnings.warn(
            f"include: {pattern[3:]!r} takes no name of the run: patterns begin at the root of the "
            f"model; did you mean {pattern!r}?",
            RuntimeWarning,
            stacklevel=stacklevel,
        )
    missing = rows.missing_text()
    if missing:
        warnings.warn(f"{missing} from {os.fsdecode(path)}", RuntimeWarning, stacklevel=stacklevel)
    incomplete = rows.incomplete()
    if incomplete:
        more = f" and {len(incomplete) - 1} more" if len(incomplete) > 1 else ""
        warnings.warn(f"incomplete: {incomplete[0]}{more}", RuntimeWarning, stacklevel=stacklevel)
    damage = rows.damage()
    if damage:
        file, offset, what = damage[0]
        more = f" and {len(damage) - 1} more" if len(damage) > 1 else ""
        warnings.warn(
            f"parts of the run could not be used: {file} at byte {offset}: {what}{more}",
            RuntimeWarning,
            stacklevel=stacklevel,
        )


def _checked_stats(stats: Any) -> tuple[str, ...]:
    names = _STATS if stats is None else tuple(selection.texts("stats", stats))
    for name in names:
        if name not in _STATS:
            raise ValueError("stats: " + selection.unknown("statistic", name, _STATS))
    return names
