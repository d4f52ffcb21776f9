# Grids drawn with matplotlib: lines over steps with a strip of marks below, and heatmaps.
from __future__ import annotations

from typing import TYPE_CHECKING

from trainmon.base.names import as_text
from trainmon.marks import (
    ABSENT,
    DROPPED,
    INF,
    NAMES,
    NAN,
    VALUE,
    Grid,
    Line,
    binned,
    shortened,
    shortened_together,
)

if TYPE_CHECKING:
    import numpy as np

# Okabe and Ito's colours, told apart by everybody; those of the marks are not among the lines'.
LINES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#000000")
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
COLOURS = {NAN: "#D55E00", INF: "#FF3DC8", DROPPED: "#8C8C8C", ABSENT: "#FFFFFF"}
SHAPES = {NAN: "x", INF: "^", DROPPED: "s", ABSENT: "o"}
MARKS = (NAN, INF, DROPPED, ABSENT)

STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}
COLUMNS = 700  # cells across at most, somewhat fewer than pixels
ROWS = 400
MARKERS = 100  # shapes on a heatmap at most where they would overlap; beyond that colour alone
LEFT = 40  # characters of a label beside a heatmap


def plain(text: str, width: int) -> str:
    """A name of at most so many characters, for matplotlib, to which a $ begins a formula."""
    return shortened(as_text(text), width).replace("$", r"\$")


def new_figure(size: tuple[float, float], title: str):
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=150, layout="constrained")
    figure.suptitle(plain(title, int(size[0] * 11)), x=0.01, ha="left", fontsize=11)
    return figure


def draw_lines(figure, lines: list[Line], ylabel: str, log: bool, styles=None) -> None:
    """Values above, and below for each line that lacks some a row of marks that say why."""
    import numpy as np
    from matplotlib.ticker import MaxNLocator

    marked = [i for i, line in enumerate(lines) if (line.state != VALUE).any()]
    strip = 0.16 * len(marked) + 0.1
    if marked:
        room = figure.get_figheight() - 1.2 - strip - 0.07 * len(lines)
        top, below = figure.subplots(2, 1, sharex=True, height_ratios=[max(room, 1), strip])
    else:
        top, below = figure.subplots(), None
    paired = styles is not None
    styles = styles or [
        (LINES[i % len(LINES)], DASHES[i // len(LINES) % len(DASHES)]) for i in range(len(lines))
    ]
    names, cut = shortened_together([line.label for line in lines], 36)
    names = [name.replace("$", r"\$") for name in names]
    for line, text, (colour, dash) in zip(lines, names, styles):
        values = np.where(line.state == VALUE, line.values, np.nan)
        top.plot(line.steps, values, color=colour, linestyle=dash, linewidth=1.3, label=text)
        # A value between two holes has no line.
        alone = np.isnan(np.append(values[1:], np.nan)) & np.isnan(
            np.insert(values[:-1], 0, np.nan)
        )
        points = np.isfinite(values) & (alone | (len(values) <= 40))
        top.plot(line.steps[points], values[points], ".", color=colour, markersize=4)
    if log:
        top.set_yscale("log", nonpositive="clip")
    top.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    top.set_ylabel(ylabel)
    top.grid(axis="y", color="#E6E6E6", linewidth=0.6)
    top.set_axisbelow(True)
    if len(lines) > 1:
        figure.legend(
            *top.get_legend_handles_labels(),
            loc="outside lower center", ncols=_ncols(figure, names, 2 if paired else 4),
            title=plain(cut, 80) or None,
            frameon=False, fontsize=8,
        )  # fmt: skip
    if below is None:
        top.set_xlabel("step")
        return
    for lane, i in enumerate(marked):
        for mark in MARKS:
            at = _spread(lines[i].steps[lines[i].state == mark])
            below.plot(at, np.full(len(at), lane), linestyle="", **_marker(mark, 4.5))
    below.set_ylim(len(marked) - 0.4, -0.6)
    if len(lines) > 1:
        below.set_yticks(range(len(marked)), [names[i] for i in marked], fontsize=7)
        for text, i in zip(below.get_yticklabels(), marked):
            text.set_color(styles[i][0])
    else:
        below.set_yticks([])
    below.tick_params(axis="y", length=0)
    below.spines["left"].set_visible(False)
    below.set_xlabel("step")
    _legend_of_marks(top, [m for m in MARKS if any((line.state == m).any() for line in lines)])


def _ncols(figure, names: list[str], most: int) -> int:
    """As many columns of a legend as there is room for."""
    longest = max(map(len, names))
    return max(1, min(most, len(names), int(figure.get_figwidth() * 13) // (longest + 8)))


def draw_heatmap(
    figure, shown: Grid, label: str, log: bool, across: str = "step", down: str = ""
) -> None:
    """One row per label, one column per step; marks have a colour and a shape of their own."""
    import numpy as np
    from matplotlib import colors

    small, first = binned(shown, ROWS, COLUMNS)
    rows, columns = small.state.shape
    axes = figure.subplots()
    image = np.ma.masked_where(small.state != VALUE, small.values)
    scale = _scale(image.compressed(), log)
    drawn = axes.imshow(
        image, aspect="auto", interpolation="nearest", cmap=_map(), norm=scale, origin="upper"
    )
    paint = np.zeros((rows, columns, 4))
    for mark in MARKS:
        paint[small.state == mark] = colors.to_rgba(COLOURS[mark])
    axes.imshow(paint, aspect="auto", interpolation="nearest", origin="upper")
    _shapes(figure, axes, small)

    _step_ticks(axes, small.steps, across)
    room = max(int((figure.get_figheight() - 1.2) * 8.2), 4)
    every = -(-rows // room)
    ticks = range(0, rows, every)
    labels, cut = shortened_together(small.labels, LEFT)
    axes.set_yticks(ticks, [labels[i].replace("$", r"\$") for i in ticks], fontsize=7)
    room_for_words = int(figure.get_figheight() * 9) - len(down) - 22
    down = f"{down} {plain(cut, room_for_words)}".strip() if room_for_words > 10 else down
    if every > 1 or rows < len(shown.labels):
        down = f"{down} ({len(shown.labels)}, labels thinned)".strip()
    axes.set_ylabel(down)
    for side in axes.spines.values():
        side.set_visible(True)
    if image.count():
        bar = figure.colorbar(drawn, ax=axes, pad=0.01, fraction=0.03, aspect=30)
        bar.set_label(label)
    _legend_of_marks(axes, [m for m in MARKS if shown.count(m)], heatmap=True)


def _map():
    import matplotlib

    return matplotlib.colormaps["viridis"]


def _scale(values: np.ndarray, log: bool):
    import numpy as np
    from matplotlib import colors

    positive = values[values > 0]
    if log and len(positive):
        low, high = positive.min(), positive.max()
        return colors.LogNorm(low, high if high > low else low * 1.01, clip=True)
    low, high = (values.min(), values.max()) if len(values) else (0.0, 1.0)
    if not np.isfinite(high - low):
        low, high = low / 2, high / 2
    return colors.Normalize(low, high if high > low else low + (abs(low) * 0.01 or 1.0))


def _marker(mark: int, size: float) -> dict:
    hollow = mark == ABSENT
    return {
        "marker": SHAPES[mark],
        "markersize": size if mark != DROPPED else size * 0.8,
        "markerfacecolor": "none" if hollow else COLOURS[mark],
        "markeredgecolor": "#808080" if hollow else COLOURS[mark],
        "markeredgewidth": 1.4 if mark == NAN else 0.7,
    }


def _on_colour(mark: int, size: float) -> dict:
    """A mark on a cell of its colour: the colour stays, for cells smaller than the mark."""
    style = _marker(mark, size)
    style["markeredgecolor"] = "black" if mark == NAN else "white"
    style["markeredgewidth"] = 0.7
    style["marker"] = {NAN: "X", DROPPED: "_"}.get(mark, SHAPES[mark])
    return style


def _shapes(figure, axes, small: Grid) -> None:
    """Over the colours of marked cells their shapes, where there is room for them."""
    import numpy as np

    rows, columns = small.state.shape
    cell = min(figure.get_figheight() * 50 / rows, figure.get_figwidth() * 50 / columns)
    for mark in (DROPPED, INF, NAN):
        y, x = np.nonzero(small.state == mark)
        crowded = len(x) > MARKERS and cell < 7
        if len(x) == 0 or crowded or (mark == DROPPED and cell < 4):
            continue
        style = _on_colour(mark, min(max(cell * 0.6, 5.5), 8.0))
        axes.plot(x, y, linestyle="", clip_on=True, **style)
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)


def _step_ticks(axes, steps: np.ndarray, across: str) -> None:
    import numpy as np
    from matplotlib.ticker import MaxNLocator

    round_ones = MaxNLocator(8, integer=True).tick_values(int(steps[0]), int(steps[-1]))
    inside = round_ones[(round_ones >= steps[0]) & (round_ones <= steps[-1])]
    axes.set_xticks(np.interp(inside, steps, np.arange(len(steps))), [f"{t:.0f}" for t in inside])
    axes.set_xlabel(across)


def _spread(steps: np.ndarray, most: int = 600) -> np.ndarray:
    """At most so many of the steps: more cannot be told apart."""
    import numpy as np

    if len(steps) <= most:
        return steps
    low, high = int(steps.min()), int(steps.max())
    width = max((high - low) // most, 1)
    return np.unique((steps - low) // width) * width + low


def _legend_of_marks(axes, marks: list[int], heatmap: bool = False) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if not marks:
        return
    handles = []
    for mark in marks:
        if heatmap:
            cell = Patch(facecolor=COLOURS[mark], edgecolor="#808080")
            if mark != ABSENT:
                cell = (cell, Line2D([], [], linestyle="", **_on_colour(mark, 6)))
            handles.append(cell)
        else:
            handles.append(Line2D([], [], linestyle="", **_marker(mark, 6)))
    axes.legend(
        handles, [NAMES[mark] for mark in marks], loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(marks),
        frameon=False, fontsize=8, handletextpad=0.4, columnspacing=1.2, borderaxespad=0.2,
    )  # fmt: skip
