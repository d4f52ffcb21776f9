# What a picture shows: values by tensor (or rank) and step, and why a value is not there.
from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainmon.arguments import UsageError
from trainmon.base.names import as_valid
from trainmon.reading import FLAGS, RunTable

if TYPE_CHECKING:
    import numpy as np

    from trainmon.arguments import Reader

# What a cell holds. DROPPED: there was a value, and it was lost. ABSENT: there was none.
VALUE, NAN, INF, DROPPED, ABSENT = range(5)
NAMES = ("value", "NaN", "Inf", "dropped", "absent")

MOST_FILLED = 20_000  # steps put into holes of the axis
MOST_CELLS = 1 << 26  # of a grid: 0.5 GB of values


def check_size(lines: int, axis: np.ndarray) -> None:
    """UsageError where a picture of so many lines would need more memory than anybody sees of it."""
    if lines * len(axis) > MOST_CELLS:
        raise UsageError(
            f"{lines:,} lines of {len(axis):,} steps are too many for a picture: "
            "choose with --name, --rank or --steps"
        )


@dataclasses.dataclass
class Line:
    """One row of a grid."""

    label: str
    steps: np.ndarray
    values: np.ndarray
    state: np.ndarray


@dataclasses.dataclass
class Grid:
    """One value, or the reason why there is none, for each label and step."""

    steps: np.ndarray  # int64
    labels: list[str]
    values: np.ndarray  # float64, labels x steps; meant where state is VALUE
    state: np.ndarray  # uint8, the same shape
    about: str = ""  # what all of it is of: kinds, and the name where there is one

    def lines(self) -> list[Line]:
        return [
            Line(*one)
            for one in zip(self.labels, [self.steps] * len(self.labels), self.values, self.state)
        ]

    def count(self, mark: int) -> int:
        return int((self.state == mark).sum())


def step_axis(steps: np.ndarray) -> np.ndarray:
    """The steps there are, and those that should lie between them.

    Every third step is an axis of its own. A hole is where the distance of two steps is larger
    than one of the distances beside it. It is filled at the smaller of these distances.
    """
    import numpy as np

    there = np.unique(steps)
    if len(there) < 3:
        return there
    apart = np.diff(there)
    beside = np.minimum(np.append(apart[1:], apart[-2]), np.insert(apart[:-1], 0, apart[1]))
    missing = (apart - 1) // beside
    if missing.sum() > MOST_FILLED:
        missing = np.minimum(missing, 1)
    # Number k of a hole lies k + 1 distances after the step before it.
    place = np.repeat(np.arange(len(apart)), missing)
    k = np.arange(len(place)) - np.repeat(np.cumsum(missing) - missing, missing)
    return np.sort(np.concatenate([there, there[place] + (k + 1) * beside[place]]))


def lost(everything: RunTable, axis: np.ndarray) -> dict[int, np.ndarray]:
    """For each rank with gaps, the steps of the axis in which rows were lost.

    A gap says which numbers (`seq`) lost rows had. What is missing at a step had one between the
    last row of the steps before and the first of the steps after. Wants all kinds of the ranks.
    """
    import numpy as np

    found: dict[int, np.ndarray] = {}
    for gap in everything.gaps:
        of = (everything["rank"] == gap["rank"]) & (everything["restart"] == gap["restart"])
        steps, seq = everything["step"][of], everything["seq"][of]
        order = np.lexsort([seq, steps])
        steps, seq = steps[order], seq[order]
        ends = np.append(np.flatnonzero(np.diff(steps)), len(steps) - 1) if len(steps) else []
        begins = np.insert(np.asarray(ends[:-1]) + 1, 0, 0) if len(steps) else []
        own = steps[ends] if len(steps) else steps
        last = np.maximum.accumulate(seq[ends]) if len(steps) else seq
        first = np.minimum.accumulate(seq[begins][::-1])[::-1] if len(steps) else seq
        before = np.append(-1, last)[np.searchsorted(own, axis, "left")]
        after = np.append(first, np.iinfo(np.int64).max)[np.searchsorted(own, axis, "right")]
        hit = (gap["first_seq"] < after) & (gap["last_seq"] > before)
        found[gap["rank"]] = found.get(gap["rank"], False) | hit
    return found


def lost_of(run: str, table: RunTable, axis, arguments: dict, reader: Reader) -> dict:
    """Steps in which rows were lost, by rank. Which they are, rows of all kinds say."""
    if not table.gaps:
        return {}
    everything = reader(run, stats=[], ranks=arguments.get("ranks"), all_restarts=True)
    return lost(everything, axis)


def axis_of(run: str, steps, table: RunTable, arguments: dict, reader: Reader) -> tuple:
    """The steps of a picture and, by rank, those in which rows were lost. A step between two
    others that no rank has, by schedule or by choice, is none of them."""
    import numpy as np

    axis = step_axis(steps)
    found = lost_of(run, table, axis, arguments, reader)
    recorded = np.isin(axis, steps)
    if not recorded.all() and any(arguments[key] for key in ("include", "exclude", "ranks")):
        same = {key: arguments[key] for key in ("steps", "all_restarts")}
        others = reader(run, stats=[], kinds=table.distinct("kind"), **same)
        recorded |= np.isin(axis, others["step"])
    keep = recorded | lost_anywhere(found, axis)
    return axis[keep], {rank: at[keep] for rank, at in found.items()}


def lost_anywhere(found: dict, axis):
    import numpy as np

    return np.logical_or.reduce([np.zeros(len(axis), bool), *found.values()])


def grid(
    table: RunTable,
    stat: str,
    owner: np.ndarray,
    labels: list[str],
    axis: np.ndarray,
    lost_at: np.ndarray,
    largest: bool = False,
) -> Grid:
    """Cells of `labels` x `axis`; `owner` is the label each row of the table belongs to.

    Of several rows of a cell one that is not finite is shown; else the last, or the one `largest`
    in size. `lost_at` (labels x steps, or what broadcasts to it) is where a row that is not there
    was lost.
    """
    import numpy as np

    check_size(len(labels), axis)
    values = np.ma.filled(table[stat].astype(np.float64), np.nan)
    flags = table["flags"]
    known = flags & FLAGS["not_ready"] == 0
    # What an estimate does not tell is no NaN of the tensor.
    known &= ~(
        np.isnan(values) & (flags & FLAGS["sampled"] != 0) & (flags & FLAGS["non_finite"] == 0)
    )
    weight = np.where(np.isnan(values), 3, np.where(np.isinf(values), 2, 1)) * known
    size = np.abs(np.nan_to_num(values)) if largest else np.arange(len(values))
    cell = owner.astype(np.int64) * len(axis) + np.searchsorted(axis, table["step"])
    order = np.lexsort([size, weight, cell])
    chosen = order[np.flatnonzero(np.diff(cell[order], append=-1))]

    shape = (len(labels), len(axis))
    out = np.full(shape, np.nan)
    state = np.where(np.broadcast_to(lost_at, shape), DROPPED, ABSENT).astype(np.uint8)
    marks = np.array([DROPPED, VALUE, INF, NAN], np.uint8)
    state.flat[cell[chosen]] = marks[weight[chosen]]
    out.flat[cell[chosen]] = values[chosen]
    return Grid(axis, labels, out, state, _about(table))


def _about(table: RunTable) -> str:
    kinds, names = (table.distinct(key) for key in ("kind", "name"))
    return " ".join(
        [*([", ".join(kinds)] if len(kinds) <= 3 else []), *(names if len(names) == 1 else [])]
    )


def binned(shown: Grid, rows: int, columns: int) -> tuple[Grid, np.ndarray]:
    """The grid on at most `rows` x `columns` cells, so that a single bad step stays visible in a
    million. NaN goes before Inf, then come dropped rows, then the value of largest size. Second,
    the number of the first label of each row."""
    import numpy as np

    def edges(count, most):
        return np.unique(np.linspace(0, count, min(count, most) + 1).astype(int)[:-1])

    down, across = edges(len(shown.labels), rows), edges(len(shown.steps), columns)
    if len(down) == len(shown.labels) and len(across) == len(shown.steps):
        return shown, down

    def worst(array, of):
        return of.reduceat(of.reduceat(array, down, axis=0), across, axis=1)

    severity = np.array([1, 4, 3, 2, 0], np.uint8)  # by state
    state = np.array([ABSENT, VALUE, DROPPED, INF, NAN], np.uint8)[
        worst(severity[shown.state], np.maximum)
    ]
    there = np.where(shown.state == VALUE, shown.values, np.nan)
    high, low = worst(there, np.fmax), worst(there, np.fmin)
    values = np.where(np.abs(low) > np.abs(high), low, high)
    labels = [shown.labels[i] for i in down]
    return Grid(shown.steps[across], labels, values, state, shown.about), down


def numbered(*keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each combination of keys gets a number, in order of first appearance: numbers by row, and
    the row at which each combination first appears."""
    import numpy as np

    code = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        unique, part = np.unique(key, return_inverse=True)
        _, code = np.unique(code * max(len(unique), 1) + part, return_inverse=True)
    _, first = np.unique(code, return_index=True)
    order = np.argsort(first)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place[code], first[order]


def shortened(name: str, width: int) -> str:
    """A name with its middle left out where it is longer than `width`."""
    if len(name) <= width:
        return name
    tail = width * 3 // 5  # ends differ more often than beginnings
    return name[: width - 1 - tail] + "…" + name[len(name) - tail :]


def shortened_together(names: list[str], width: int) -> tuple[list[str], str]:
    """Names that are too long without the components that all begin and end with; second, these,
    to be said once. What is still too long loses its middle."""
    if max(map(len, names), default=0) <= width or len(names) < 2:
        return [shortened(name, width) for name in names], ""
    parts = [name.split(".") for name in names]
    least = min(map(len, parts)) - 1
    head = next((i for i in range(least) if len({p[i] for p in parts}) > 1), least)
    tail = next(
        (i for i in range(least - head) if len({p[-1 - i] for p in parts}) > 1), least - head
    )
    short = [".".join(p[head : len(p) - tail]) for p in parts]
    cut = (
        ".".join([*parts[0][:head], "…", *parts[0][len(parts[0]) - tail :]]) if head + tail else ""
    )
    return [shortened(name, width) for name in short], cut


def alike(shown: Grid, tensor: np.ndarray, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Which lines to keep where those of a tensor, one for each of so many ranks, hold the same
    in every step. It is the first of each such tensor. Second, whether a line is of such a
    tensor."""
    import numpy as np

    _, first = np.unique(tensor, return_index=True)
    base = first[tensor]
    equal = (shown.state == shown.state[base]) & (
        (shown.values == shown.values[base]) | (shown.state != VALUE)
    )
    whole = np.bincount(tensor, equal.all(1)) == ranks
    return ~whole[tensor] | (base == np.arange(len(tensor))), whole[tensor]


def labels_of(
    table: RunTable, rows: np.ndarray, parts: tuple[str, ...], instead: dict | None = None
) -> list[str]:
    """Labels of the rows from the columns in which they differ, of `parts` in this order; the
    name where they differ in none. `instead` has columns of these rows in the place of the table's."""
    import numpy as np

    show: dict[str, Callable] = {
        "rank": lambda v: "all ranks" if v < 0 else f"rank {v}",
        "restart": lambda v: f"restart {v}",
        "chunk": lambda v: f"chunk {v}",
    }
    columns = {part: table[part][rows] for part in parts} | (instead or {})
    texts = {part: [show.get(part, str)(v) for v in column] for part, column in columns.items()}
    shown = [part for part in parts if len(np.unique(np.array(texts[part], dtype=object))) > 1]
    return [
        as_valid(" ".join(filter(None, line)))
        for line in zip(*(texts[p] for p in shown or ["name"]))
    ]
