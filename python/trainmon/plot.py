# Pictures of a run: a statistic over steps, by layer, by rank, histograms, two runs.
"""`python -m trainmon.plot RUN`, which is what `trainmon plot` runs."""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
from pathlib import Path

from trainmon import marks
from trainmon.arguments import (
    PARTIAL,
    USAGE,
    Reader,
    UsageError,
    add_selection,
    selection,
    what_there_is,
)
from trainmon.marks import DROPPED, VALUE, Grid, Line
from trainmon.reading import RunTable, _checked_stats

WHATS = {
    "series": "a statistic over steps, one line per tensor and rank (default for one run)",
    "layers": "layers x steps, as colours",
    "ranks": "ranks x steps, as colours",
    "histogram": "recorded histograms (kind update_ratio) over steps (default where nothing else is)",
    "compare": "two runs over each other (default for two)",
}
LOGARITHMIC = ("norm", "absmax", "std")
MOST_LINES = 12
MOST_COMPARED = 4
# Where several kinds match and one is needed, the first of these that is there.
FIRST_KINDS = ("grad_reduced", "grad_unreduced", "param_updated", "param_origin", "actv")

EXAMPLES = """\
examples:
  trainmon plot runs/a --name layers.3.mlp              its gradients over steps
  trainmon plot runs/a --what layers --steps 900:1000   where it went wrong
  trainmon plot runs/a --what ranks --name head.weight  which rank differs
  trainmon plot runs/a --what histogram                 sizes of Adam's steps
  trainmon plot runs/a runs/b --stat max                what changed

In every picture NaN, Inf, dropped (recorded, then lost) and absent (other
tensors or ranks have the step) are four distinct marks. A step that nobody
recorded has none. Ranks that have the same in every step are one line.
"""


class NoRows(UsageError):
    """Nothing that matches has statistics."""


def read(run: str, arguments: dict, stat: str, reader: Reader) -> RunTable:
    table = reader(run, stats=[stat], **arguments)
    if table.num_rows == 0:
        raise NoRows(what_there_is(run, arguments, reader))
    return table


def read_one_kind(run: str, arguments: dict, stat: str, reader: Reader) -> tuple[RunTable, dict]:
    """Rows of one kind: of the first, where the question names none and several match. And the
    arguments that ask for them."""
    table = read(run, arguments, stat, reader)
    kinds = table.distinct("kind")
    if len(kinds) > 1 and not arguments["kinds"]:
        kind = next((kind for kind in FIRST_KINDS if kind in kinds), kinds[0])
        reader.remark(f"showing {kind} of {', '.join(kinds)}; choose with --kind")
        arguments = {**arguments, "kinds": [kind]}
        table = read(run, arguments, stat, reader)
    return table, arguments


def series_grid(run: str, arguments: dict, stat: str, reader: Reader, joined: bool = True) -> Grid:
    """One line for each tensor and rank; if `joined`, one for all ranks where they are alike."""
    import numpy as np

    table, arguments = read_one_kind(run, arguments, stat, reader)
    parts = ("restart", "rank", "chunk", "kind", "name", "element")
    keys = parts if len(table.distinct("restart")) > 1 and arguments["all_restarts"] else parts[1:]
    owner, first = marks.numbered(*(_codes(table, key) for key in keys))
    axis, lost = marks.axis_of(run, table["step"], table, arguments, reader)
    anywhere = marks.lost_anywhere(lost, axis)
    never = np.zeros(len(axis), bool)
    ranks = table["rank"][first]
    marks.check_size(len(ranks), axis)
    lost_at = np.stack([anywhere if r < 0 else lost.get(r, never) for r in ranks])
    shown = marks.grid(table, stat, owner, marks.labels_of(table, first, keys), axis, lost_at)
    if not joined or len(table.distinct("rank")) < 2:
        return shown
    tensor, _ = marks.numbered(*(_codes(table, key)[first] for key in keys if key != "rank"))
    keep, alike = marks.alike(shown, tensor, len(table.distinct("rank")))
    ranks = np.where(alike, -1, ranks)[keep]
    labels = marks.labels_of(table, first[keep], keys, {"rank": ranks})
    return Grid(axis, labels, shown.values[keep], shown.state[keep], shown.about)


def layers_grid(run: str, arguments: dict, stat: str, reader: Reader) -> Grid:
    """One row for each tensor, all ranks together, in the order in which they run."""
    table, arguments = read_one_kind(run, arguments, stat, reader)
    parts = ("chunk", "kind", "name", "element")
    owner, first = marks.numbered(*(_codes(table, key) for key in parts))
    axis, of_ranks = marks.axis_of(run, table["step"], table, arguments, reader)
    lost = marks.lost_anywhere(of_ranks, axis)
    labels = marks.labels_of(table, first, parts)
    return marks.grid(table, stat, owner, labels, axis, lost, largest=True)


def ranks_grid(run: str, arguments: dict, stat: str, reader: Reader) -> Grid:
    """One row for each rank the run has or should have; of several tensors the largest value."""
    import numpy as np

    table, arguments = read_one_kind(run, {**arguments, "merged": False}, stat, reader)
    tensors = len(marks.numbered(*(_codes(table, k) for k in ("kind", "name", "element")))[1])
    if tensors > 1:
        reader.remark(f"each cell shows the largest of {tensors} tensors; choose one with --name")
    wanted = set(arguments["ranks"] or [*table.ranks, *table.missing_ranks])
    ranks = np.array(sorted(wanted | set(table.distinct("rank"))))
    axis, lost = marks.axis_of(run, table["step"], table, arguments, reader)
    never = np.zeros(len(axis), bool)
    lost_at = np.stack([lost.get(rank, never) for rank in ranks.tolist()])
    missing = set(table.missing_ranks)
    labels = [f"{rank} (missing)" if rank in missing else str(rank) for rank in ranks.tolist()]
    owner = np.searchsorted(ranks, table["rank"])
    return marks.grid(table, stat, owner, labels, axis, lost_at, largest=True)


def histogram_grid(run: str, arguments: dict, reader: Reader, element: str = "update") -> Grid:
    """One row for each bin, the largest on top: the share of elements in it; tensors and ranks
    together. The rows at the ends are what lies beyond the bins."""
    import numpy as np

    arguments = {**arguments, "merged": False}
    table = reader(run, stats=[], **arguments)
    found = [p for p in table.payloads if hasattr(p["value"], "counts")]
    if not found:
        raise UsageError(
            f"no histogram matches in {run}; kind update_ratio records them "
            f"(watch(kinds=[..., 'update_ratio'])); the run has kinds {', '.join(table.kinds)}"
        )
    elements = sorted({p["element"] for p in found})
    found = [p for p in found if p["element"] == element]
    if not found:
        raise UsageError(f"--element: there is no {element!r}; there are {', '.join(elements)}")
    edges = found[0]["value"].edges
    same = [p for p in found if np.array_equal(p["value"].edges, edges)]
    if len(same) < len(found):
        reader.remark(f"{len(found) - len(same)} histograms with other bins are left out")
    steps = np.array([p["step"] for p in same])
    axis, of_ranks = marks.axis_of(run, steps, table, arguments, reader)
    lost = marks.lost_anywhere(of_ranks, axis)
    counts = np.stack([[p["value"].below, *p["value"].counts, p["value"].above] for p in same])
    bad = np.array([p["value"].nans for p in same])
    column = np.searchsorted(axis, steps)
    total = np.zeros((len(axis), counts.shape[1]))
    np.add.at(total, column, counts)
    nans = np.bincount(column, bad, len(axis))
    there = np.bincount(column, minlength=len(axis)) > 0
    with np.errstate(invalid="ignore"):
        share = (total / (total.sum(1) + nans)[:, None]).T[::-1]
    state = np.where(there, VALUE, np.where(lost, DROPPED, marks.ABSENT)).astype(np.uint8)
    state = np.repeat(state[None], len(share), axis=0)
    # What is not a number has a row of its own, and only where there is some.
    if nans.any():
        row = np.where(there & (nans == 0), VALUE, np.where(nans > 0, marks.NAN, state[0]))
        share, state = np.vstack([np.zeros(len(axis)), share]), np.vstack([row, state])
    middle = [f"{low:.3g} to {high:.3g}" for low, high in zip(edges[:-1], edges[1:])]
    labels = [f"< {edges[0]:.3g}", *middle, f"> {edges[-1]:.3g}"][::-1]
    labels = ["NaN", *labels] if nans.any() else labels
    names = sorted({p["name"] for p in same})
    about = f"{same[0]['kind']} ({element}) {names[0] if len(names) == 1 else f'of {len(names)} tensors'}"
    return Grid(axis, labels, share, state.astype(np.uint8), about)


def compare_lines(
    runs: list[str], arguments: dict, stat: str, reader: Reader
) -> tuple[list[Line], int]:
    """Lines of both runs for the tensors that differ most: A's and B's of each, in pairs. Second,
    how many tensors both runs have."""
    import numpy as np

    first, second = (series_grid(run, arguments, stat, reader, joined=False) for run in runs)
    there = {name: i for i, name in enumerate(second.labels)}
    pairs = [(i, there[name]) for i, name in enumerate(first.labels) if name in there]
    if len(first.labels) == len(second.labels) == 1:
        pairs = [(0, 0)]  # labels say what lines of one run differ in
    if not pairs:
        raise UsageError(
            f"no tensor is in both runs; {runs[0]} has {', '.join(first.labels[:4])}; "
            f"{runs[1]} has {', '.join(second.labels[:4])}"
        )
    _, here, over = np.intersect1d(first.steps, second.steps, return_indices=True)
    a, b = np.transpose(pairs)
    one, two = first.values[a][:, here], second.values[b][:, over]
    left, right = first.state[a][:, here], second.state[b][:, over]
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.abs(one - two) / np.maximum(np.abs(one), np.abs(two))
    differs = np.where((left == VALUE) & (right == VALUE), np.nan_to_num(apart), 0.0)
    # A NaN in one of them is more than any number.
    differs = np.where(left != right, 9.0, differs).max(1, initial=0.0)
    most = np.argsort(-differs, kind="stable")[:MOST_COMPARED]
    ends = [_short_run(run) for run in runs]
    ends = ["first", "second"] if ends[0] == ends[1] else ends
    lines = []
    for i, j in (pairs[k] for k in most):
        for shown, row, end in ((first, i, ends[0]), (second, j, ends[1])):
            line = shown.lines()[row]
            lines.append(Line(f"{line.label} {end}", line.steps, line.values, line.state))
    return lines, len(pairs)


def most_telling(shown: Grid, most: int) -> Grid:
    """At most so many lines: those with a NaN or an Inf first, then those that come out largest."""
    import numpy as np

    if len(shown.labels) <= most:
        return shown
    bad = ((shown.state == marks.NAN) | (shown.state == marks.INF)).any(1)
    size = np.where(shown.state == VALUE, np.abs(shown.values), 0).max(1)
    keep = np.sort(np.lexsort([-size, ~bad])[:most])
    labels = [shown.labels[i] for i in keep]
    return Grid(shown.steps, labels, shown.values[keep], shown.state[keep], shown.about)


def _codes(table: RunTable, key: str):
    column = table._columns[key]
    return column[0] if isinstance(column, tuple) else column


def _short_run(run: str) -> str:
    return Path(os.path.abspath(run)).name


def drawn(options: argparse.Namespace, reader: Reader):
    """The figure that the options ask for. Where they leave open what it shows, `what` is set."""
    if options.what:
        return draw(options, reader)
    options.what = "compare" if len(options.run) == 2 else "series"
    try:
        return draw(options, reader)
    except NoRows:
        options.what = "histogram"
        try:
            return draw(options, reader)
        except UsageError:
            pass  # there are no histograms either
        raise


def draw(options: argparse.Namespace, reader: Reader):
    from trainmon import drawing

    arguments = selection(options)
    (stat,) = _checked_stats([options.stat])
    what, runs = options.what, options.run
    if len(runs) != (2 if what == "compare" else 1):
        wanted = "two runs" if what == "compare" else "one run (two with --what compare)"
        raise UsageError(f"--what {what} takes {wanted}, not {len(runs)}")
    run = _short_run(runs[0])
    styles = None
    if what == "series":
        shown = series_grid(runs[0], arguments, stat, reader)
        if len(shown.labels) > MOST_LINES:
            reader.remark(
                f"drawing {MOST_LINES} of {len(shown.labels)} lines, not finite or largest; "
                "choose with --name or --rank, or see all with --what layers"
            )
            shown = most_telling(shown, MOST_LINES)
        subject, lines = f"{stat} of {shown.about}, {run}", shown.lines()
    elif what == "compare":
        lines, count = compare_lines(runs, arguments, stat, reader)
        if count > MOST_COMPARED:
            reader.remark(
                f"drawing the {MOST_COMPARED} of {count} that differ most; choose with --name"
            )
        styles = [(drawing.LINES[i // 2], drawing.DASHES[i % 2]) for i in range(len(lines))]
        subject = f"{stat}: {run} (solid) and {_short_run(runs[1])} (dashed)"
    elif what == "histogram":
        shown = histogram_grid(runs[0], arguments, reader, options.element)
        subject = f"histograms of {shown.about}, {run}"
    else:
        made = layers_grid if what == "layers" else ranks_grid
        shown = made(runs[0], arguments, stat, reader)
        subject = f"{stat} of {shown.about} by {what[:-1]}, {run}"

    if what in ("series", "compare"):
        size = options.size or (9.0, 4.2 + 0.2 * len(lines))
        figure = drawing.new_figure(size, options.title or subject)
        log = options.log or (not options.linear and _logarithmic(stat, lines))
        drawing.draw_lines(figure, lines, stat, log, styles)
        return figure
    size = options.size or (10.0, min(max(2.6, 1.6 + 0.17 * len(shown.labels)), 12.0))
    figure = drawing.new_figure(size, options.title or subject)
    if what == "histogram":
        drawing.draw_heatmap(figure, shown, "share of elements", not options.linear, down="value")
    else:
        log = options.log or (not options.linear and _logarithmic(stat, shown.lines()))
        drawing.draw_heatmap(figure, shown, stat, log, down="rank" if what == "ranks" else "tensor")
    return figure


def _logarithmic(stat: str, lines: list[Line]) -> bool:
    values = [line.values[line.state == VALUE] for line in lines]
    return stat in LOGARITHMIC and any((v > 0).any() for v in values)


def _sized(text: str) -> tuple[float, float]:
    try:
        width, height = (float(side) for side in text.lower().split("x"))
    except ValueError:
        width = height = 0.0
    if not (1 <= width <= 100 and 1 <= height <= 100):
        raise argparse.ArgumentTypeError(f"{text!r} is not WxH in inches, 1x1 to 100x100")
    return width, height


def save(figure, out: Path) -> None:
    """Under its name only when it is whole."""
    kind = out.suffix.lower().lstrip(".")
    if kind not in ("png", "svg", "pdf"):
        raise UsageError(f"--out: {out} ends in none of .png, .svg, .pdf")
    picture = io.BytesIO()  # which takes long: a process that is killed meanwhile leaves no file
    figure.savefig(picture, format=kind)
    handle, beside = tempfile.mkstemp(prefix=out.name + ".tmp-", dir=out.parent)
    try:
        with open(handle, "wb") as file:
            file.write(picture.getbuffer())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(beside, 0o666 & ~mask)
        os.replace(beside, out)
    except BaseException:
        os.unlink(beside)
        raise


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="trainmon plot",
        description="Draws a run.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_selection(made, runs="run directory (`out` of trainmon.watch); two with --what compare")
    what = ". ".join(f"{name}: {meaning}" for name, meaning in WHATS.items())
    made.add_argument("--what", choices=WHATS, help=what)
    made.add_argument("--stat", default="norm", metavar="STAT", help="statistic; default norm")
    made.add_argument("-o", "--out", type=Path, metavar="FILE", help="default RUN-WHAT-STAT.png")
    made.add_argument("--size", type=_sized, metavar="WxH", help="in inches")
    made.add_argument("--title", help="instead of the one that says what is shown")
    made.add_argument(
        "--element", default="update", help="which histograms: update (default) or ratio"
    )
    scale = made.add_mutually_exclusive_group()
    scale.add_argument("--log", action="store_true", help="default for norm, absmax and std")
    scale.add_argument("--linear", action="store_true", help="no logarithms")
    return made


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    reader = Reader("trainmon plot", options.quiet)
    try:
        import matplotlib
    except ModuleNotFoundError:
        reader.say("pictures need matplotlib: pip install 'trainmon[plot]'")
        return USAGE
    import warnings

    from trainmon import drawing

    def saved() -> Path:
        # Names may have characters that the font lacks: boxes, not warnings.
        with matplotlib.rc_context(drawing.STYLE), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph")
            figure = drawn(options, reader)
            stat = "" if options.what == "histogram" else f"-{options.stat}"
            out = options.out or Path(f"{_short_run(options.run[0])}-{options.what}{stat}.png")
            save(figure, out)
        return out

    out = reader.attempt(saved)
    try:
        print(out, flush=True)
    except OSError:
        reader.say(f"{out} is written, but its name could not be written to stdout")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python tries again at exit
        return PARTIAL
    return reader.exit_code


if __name__ == "__main__":
    sys.exit(main())
