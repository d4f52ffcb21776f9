# Pictures of a comparison of directions: one per parameter and one of all together.
from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from trainmon.direction_results import DirectionsComparison, RankComparison

FOLDER = "similarities_picture"
SUMMARY = "summary_similarities"
RULE = 0.97
LINE, BAD = "#0072B2", "#D55E00"
# Where the axis of similarities begins: the highest of these that shows everything.
FLOORS = (0.94, 0.8, 0.5, 0.0)
SIZE, DPI = (6.4, 4.0), 100


class _Paper:
    """One figure for many pictures: axes and labels are drawn once, then only what differs."""

    def __init__(self, steps: list[int], floor: float):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
        self.canvas = FigureCanvasAgg(figure)
        self.axes = figure.subplots()
        self.title = self.axes.set_title(" ", loc="left", animated=True)
        (self.line,) = self.axes.plot([], [], ".-", color=LINE, animated=True, markersize=4)
        self.bad = self.axes.axvline(0, color=BAD, linestyle=":", animated=True)
        self.axes.axhline(RULE, color="#808080", linestyle="--", linewidth=0.8)
        self.axes.text(1.0, RULE, f" {RULE}", transform=self.axes.get_yaxis_transform(),
                       va="center", fontsize=7, color="#808080")  # fmt: skip
        room = max((steps[-1] - steps[0]) * 0.03, 0.5)
        self.axes.set_xlim(steps[0] - room, steps[-1] + room)
        self.axes.set_ylim(floor - (1 - floor) * 0.03, 1 + (1 - floor) * 0.03)
        self.axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        self.axes.set_xlabel("step")
        self.axes.set_ylabel("similarity")
        self.canvas.draw()
        self.empty = self.canvas.copy_from_bbox(figure.bbox)

    def draw(self, steps: list[int], values: np.ndarray, title: str, bad: int | None) -> np.ndarray:
        """The pixels, RGBA, valid until the next call."""
        self.canvas.restore_region(self.empty)
        self.line.set_data(steps, values)
        self.title.set_text(title)
        if bad is not None:
            self.bad.set_xdata([bad, bad])
            self.axes.draw_artist(self.bad)
        self.axes.draw_artist(self.line)
        self.axes.draw_artist(self.title)
        return self.canvas.buffer_rgba()


def _pictures(rank: RankComparison) -> Iterator[tuple[str, str, np.ndarray, int | None]]:
    """(title, file name without .png, similarities, bad step)"""
    bad = {one.parameter: one.step for one in rank.suspicions}
    for name, values in zip(rank.parameters, rank.similarity):
        yield name, _file_name(name, rank.parameters), values, bad.get(name)
    yield SUMMARY, SUMMARY, rank.summary, rank.first_bad_step


def _file_name(name: str, taken: Collection[str]) -> str:
    """The parameter's, but for one named like the picture of all together: that has a ~ behind it."""
    if name != SUMMARY:
        return name
    while name == SUMMARY or name in taken:
        name += "~"
    return name


def _draw_rank(rank: RankComparison, done: Callable[[], None]) -> None:
    import numpy as np
    from matplotlib.image import imsave

    from trainmon.drawing import plain

    folder = os.path.join(rank.out, FOLDER)
    os.makedirs(folder, mode=0o750, exist_ok=True)
    papers = {}
    for name, file_name, values, bad in _pictures(rank):
        known = values[~np.isnan(values)]
        lowest = known.min() if len(known) else 1.0
        floor = next(floor for floor in FLOORS if lowest >= floor)
        if floor not in papers:
            papers[floor] = _Paper(rank.steps, floor)
        title = plain(name, 70) + (f", suspicious at step {bad}" if bad is not None else "")
        pixels = papers[floor].draw(rank.steps, values, title, bad)
        out = os.path.join(folder, f"{file_name}.png")
        beside = os.path.join(folder, f".{os.getpid()}.tmp")
        try:
            imsave(beside, pixels, format="png", pil_kwargs={"compress_level": 1})
            os.replace(beside, out)
        except BaseException as error:
            if os.path.lexists(beside):
                os.unlink(beside)
            if isinstance(error, OSError):
                what = f"the picture cannot be written: {error.strerror}"
                raise OSError(error.errno, what, out) from None
            raise
        done()


def draw(comparison: DirectionsComparison, progress: Callable[[int, int], Any] | None) -> None:
    """Writes similarities_picture/{parameter}.png and summary_similarities.png of every rank."""
    import matplotlib

    from trainmon.drawing import STYLE

    ranks = [rank for rank in comparison.ranks if rank.out]
    total = sum(len(rank.parameters) + 1 for rank in ranks)
    drawn = 0

    def done():
        nonlocal drawn
        drawn += 1
        if progress is not None:
            progress(drawn, total)

    # Names may have characters that the font lacks: boxes, not warnings.
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        for rank in ranks:
            _draw_rank(rank, done)
