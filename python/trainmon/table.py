# The rows of a run as a table of columns.
from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainmon.checks import selection

if TYPE_CHECKING:
    import numpy as np

# Bits of the column `flags`.
FLAGS = {
    "still_scaled": 1,
    "clip_before": 2,
    "clip_after": 4,
    "partial": 8,
    "non_finite": 16,
    "not_ready": 32,
    "over_limit": 64,
    "sampled": 128,
    "masked": 256,
    "forward_changes": 512,
    "before_step": 1024,
    "by_operations": 2048,
    "first_masked": 4096,
}


class Table(Mapping):
    """Rows of a run: a mapping from column name to a NumPy array, all of one length.

    The key columns come first, then the statistics. The keys are restart, rank, kind, chunk, name,
    element, optimizer, step, attempt, micro_step, call, seq, flags, window, accum, fate, loss_scale,
    dtype, replication and shape. A run without rows gives columns of length 0.

    rank   -1 where rows are merged over ranks
    flags  bits, see FLAGS; uint32
    fate   "taken", "skipped" or "unknown"
    shape  of the tensor that was measured: "[2,3]", "[]" for a scalar, "" where it is not known

    Text columns hold str, the other keys int32 or int64, and loss_scale float64. Of the statistics
    nans, infs, subnormals and count are int64, and all others float64.

    num_rows     how many rows there are
    stats        names of the statistics in the table
    """

    def __init__(self, columns: Any, stats: tuple[str, ...]):
        self._held = columns
        self._columns = columns.arrays()
        self.num_rows: int = len(columns)
        self.stats = stats

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._columns:
            raise KeyError(selection.unknown("column", name, self._columns))
        return _decoded(self._columns[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.num_rows} rows, columns {', '.join(self)}>"

    def distinct(self, name: str) -> list:
        """The values that a column has, sorted.

        >>> trainmon.read_table("trainmon_runs/local", kinds="weights").distinct("kind")
        ['param_origin', 'param_updated']
        """
        import numpy as np

        if name not in self._columns:
            raise KeyError(selection.unknown("column", name, self._columns))
        column = self._columns[name]
        if isinstance(column, tuple):
            codes, names = column
            return sorted(names[code] for code in np.unique(codes))
        return np.unique(np.ma.compressed(column)).tolist()

    def __arrow_c_schema__(self):
        return self._held.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema=None):
        """The table for whoever speaks Arrow: `pyarrow.table(table)`, `polars.DataFrame(table)`,
        `duckdb.sql('SELECT max(norm) FROM "table"')`. Columns are shared, not copied; text columns
        are dictionaries. `requested_schema` is not followed."""
        return self._held.__arrow_c_stream__(requested_schema)

    def to_pandas(self):
        """The table as a pandas.DataFrame, text columns as categories. Needs pandas.

        >>> frame = trainmon.read_table("trainmon_runs/local", kinds="weights", steps=3).to_pandas()
        >>> frame["kind"].dtype.name, len(frame)
        ('category', 8)
        """
        import numpy as np
        import pandas as pd

        def series(column):
            if isinstance(column, np.ma.MaskedArray):  # of fingerprints, which no float64 holds
                return pd.arrays.IntegerArray(column.data, column.mask)
            return pd.Categorical.from_codes(*column) if isinstance(column, tuple) else column

        return pd.DataFrame({name: series(column) for name, column in self._columns.items()})


class RunTable(Table):
    """A Table of all rows that were asked for, and what the run holds beside them. Rows are ordered
    by restart, step, attempt, rank, seq.

    scalars        {restart, rank, step, name, value}: arrays of what `mon.log` recorded
    declared       {restart, rank, step, optimizer, param_group, name, value, text, type}: what the
                   groups of the optimizers said (lr, weight_decay, betas.0, ...), where it changed.
                   `type` is "number", "text" or "unknown" (on a device). `value` is NaN where it is
                   no number. With `steps`, what held before the first step, too
    payloads       list of dicts of what is no number: `value` is a str (of kind stack) or a
                   Histogram (of kind update_ratio)
    alerts, gaps   lists of dicts: what rules found; rows that were lost, and why
    damage         list of (file, offset, what): parts of the files that could not be used
    torn_tails     unfinished last writes, those of a killed or living run (no damage)
    kinds          every kind of the ranks read, selected or not
    ranks          every rank the run has, read or not
    earlier        sentences on what restarts before the newest found that is not finite
    expired        sentences on from which step on there are rows, where retention_mb or
                   retention_days deleted older ones, and on what a repaired run has lost
    incomplete     sentences on why the record is not complete: nothing recorded, rows dropped, a
                   process that is gone without having stopped
    missing_ranks  ranks that should be among those read and have no directory
    """

    def __init__(self, rows: Any, stats: tuple[str, ...]):
        super().__init__(rows.columns(list(stats)), stats)
        self._scalars = rows.scalars()
        self._declared = rows.declared()
        self.payloads: list[dict] = [
            {**place, "value": _payload(kind, value)} for kind, value, place in rows.payloads()
        ]
        self.alerts: list[dict] = rows.alerts()
        self.gaps: list[dict] = rows.gaps()
        self.damage: list[tuple[str, int, str]] = rows.damage()
        self.torn_tails: int = rows.torn_tails()
        self.kinds: list[str] = rows.kinds()
        self.ranks: list[int] = rows.ranks()
        self.earlier: list[str] = rows.earlier()
        self.expired: list[str] = rows.expired()
        self.incomplete: list[str] = rows.incomplete()
        self.missing_ranks: list[int] = rows.missing_ranks()

    @property
    def scalars(self) -> dict[str, np.ndarray]:
        return {name: _decoded(column) for name, column in self._scalars.items()}

    @property
    def declared(self) -> dict[str, np.ndarray]:
        return {name: _decoded(column) for name, column in self._declared.items()}


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Counts of `edges[i] <= x < edges[i + 1]`, the last one closed; `below`, `above`, `nans`."""

    edges: np.ndarray  # float64, one more than counts
    counts: np.ndarray  # int64
    below: int
    above: int
    nans: int

    @classmethod
    def of(cls, content: bytes) -> Histogram:
        import numpy as np

        low, high = np.frombuffer(content[:16], "<f8")
        below, above, nans, *counts = np.frombuffer(content[16:], "<i8").tolist()
        edges = np.linspace(low, high, len(counts) + 1)
        return cls(edges, np.array(counts, np.int64), below, above, nans)


def _payload(kind: int, content: bytes):
    if kind == 1:
        return Histogram.of(content)
    return content.decode("utf-8", "replace") if kind == 4 else content


def _decoded(column: Any) -> np.ndarray:
    if not isinstance(column, tuple):
        return column
    import numpy as np

    codes, names = column
    texts = np.empty(len(names), dtype=object)
    texts[:] = names
    return texts[codes]
