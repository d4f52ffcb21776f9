# Two runs compared: the arguments checked, the work done in C++; and the picture of a comparison.
"""`python -m trainmon.comparison FILE` draws the report of `trainmon compare --json` on stdin."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from trainmon import _core
from trainmon.checks import arguments as checks
from trainmon.checks import selection


def compare(
    a: str | os.PathLike,
    b: str | os.PathLike,
    *,
    null: str | os.PathLike | None = None,
    kinds: str | Iterable[str] | None = None,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    ranks: int | Iterable[int] | None = None,
    steps: int | tuple[int | None, int | None] | None = None,
    tolerance: float = 1.0,
    worst: int = 10,
) -> dict:
    """Where run `b` begins to differ from run `a`: what `trainmon compare A B --json` prints.

    null        a repeat of `a`, whose noise takes the place of fixed tolerances
    kinds, include, exclude, ranks, steps   as for trainmon.read
    tolerance   factor on every tolerance
    worst       lines of the table of the worst

    `["first"]` is None where nothing is beyond tolerance (docs/compare.md lists the keys). Raises
    TypeError or ValueError naming the argument, RuntimeError where a path holds no run or the runs
    have nothing in common.

    >>> report = trainmon.compare("trainmon_runs/local", "trainmon_runs/local")
    >>> report["first"] is None, report["rows_beyond"]
    (True, 0)
    """
    first, last = selection.step_range(steps)
    report = _core.compare(
        os.fsencode(checks.path("a", a)),
        os.fsencode(checks.path("b", b)),
        None if null is None else os.fsencode(checks.path("null", null)),
        selection.texts("kinds", kinds),
        selection.texts("include", include),
        selection.texts("exclude", exclude),
        selection.rank_numbers(ranks),
        first,
        last,
        _positive(tolerance),
        _count(worst),
    )
    return json.loads(report)


def _positive(tolerance) -> float:
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)):
        raise TypeError(f"tolerance must be a number, not {type(tolerance).__name__}")
    try:
        value = float(tolerance)
    except OverflowError:
        value = float("inf")
    if not 0 < value < float("inf"):
        raise ValueError(f"tolerance must be positive and finite, not {value}")
    return value


def _count(worst) -> int:
    if not selection.is_int(worst):
        raise TypeError(f"worst must be an int, not {type(worst).__name__}")
    if not 1 <= worst <= 1_000_000:
        raise ValueError(f"worst must be 1 to 1000000, not {worst}")
    return int(worst)


def figure_of(report: dict):
    """By kind and step the largest difference, in multiples of what is tolerated there."""
    import numpy as np

    from trainmon import drawing
    from trainmon.marks import INF, VALUE, Line

    lines = []
    for kind in dict.fromkeys(level["kind"] for level in report["levels"]):
        levels = [level for level in report["levels"] if level["kind"] == kind]
        ratios = np.array([float(level["ratio"]) for level in levels])
        state = np.where(np.isfinite(ratios), VALUE, INF).astype(np.uint8)
        # Nothing is at the bottom of a logarithmic scale.
        shown = np.where(state == VALUE, np.maximum(ratios, 1e-3), 0.0)
        lines.append(Line(kind, np.array([level["step"] for level in levels]), shown, state))
    first = report["first"]
    title = "no difference beyond tolerance"
    if first:
        element = f" {first['element']}" if first["element"] else ""
        title = f"first: step {first['step']}, {first['kind']} {first['name']}{element}"
    names = [os.path.basename(os.path.normpath(report[side]["path"])) for side in "ab"]
    figure = drawing.new_figure((9.0, 4.5), f"{names[0]} and {names[1]}: {title}")
    drawing.draw_lines(figure, lines, "largest difference / tolerance", log=True)
    top = figure.axes[0]
    top.axhline(1.0, color="#808080", linewidth=0.8, linestyle="--")
    if first:
        top.axvline(first["step"], color="#D55E00", linewidth=0.8, linestyle=":")
    return figure


def main(arguments: list[str]) -> int:
    try:
        import matplotlib
    except ModuleNotFoundError:
        print("trainmon compare: pictures need matplotlib: pip install 'trainmon[plot]'", file=sys.stderr)  # fmt: skip
        return 2
    import warnings

    from trainmon import drawing
    from trainmon.arguments import UsageError
    from trainmon.plot import save

    report = json.load(sys.stdin)
    try:
        with matplotlib.rc_context(drawing.STYLE), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph")
            save(figure_of(report), Path(arguments[0]))
    except (UsageError, OSError) as error:
        print(f"trainmon compare: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
