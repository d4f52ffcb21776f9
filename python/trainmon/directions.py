# Directions of two dumps compared: the work is done in C++, pictures by matplotlib.
from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainmon import _core
from trainmon.checks import arguments as checks

if TYPE_CHECKING:
    import numpy as np

USEFUL_THREADS = 16
MOST_NAMED = 5  # parameters in a line of the verdict


@dataclasses.dataclass(frozen=True)
class Remark:
    """What could not be compared, or was and is in doubt."""

    rank: int | None  # where a whole rank was not
    parameter: str  # "": whole steps, or the whole rank
    steps: list[int]
    what: str

    def __str__(self) -> str:
        place = [self.parameter] if self.parameter else []
        if self.rank is not None:
            place.append(f"rank {self.rank}")
        if self.steps:
            place.append(f"step{'s' if len(self.steps) > 1 else ''} {_spans(self.steps)}")
        return f"{' at '.join(place)}: {self.what}" if place else self.what


@dataclasses.dataclass(frozen=True)
class Suspicion:
    """A parameter's first bad step by the manual's rule."""

    parameter: str
    step: int
    rule: str  # "first_step": below 0.97 at its first step; "drop": more than 0.03 less than before
    similarity: float
    before: float | None  # the step before a drop

    def __str__(self) -> str:
        before = "" if self.before is None else f" after {self.before:.4g}"
        return f"{self.parameter} {self.similarity:.4g}{before}"


@dataclasses.dataclass(frozen=True)
class RankComparison:
    rank: int | None  # None: dumps of one card, without that level
    out: str  # the directory with similarities.csv and verdict.json; "": nothing could be compared
    steps: list[int]
    parameters: list[str]  # in the order of the summaries
    equal: np.ndarray  # int64 [parameter, step]: elements of one sign
    elements: np.ndarray  # int64 [parameter, step]; -1 where nothing was compared
    similarity: np.ndarray  # float64 [parameter, step]; NaN where nothing was compared
    summary: np.ndarray  # float64 [step]: all elements together
    suspicions: list[Suspicion]  # by step, then in backward order; one per parameter at most
    not_compared: list[Remark]
    doubts: list[Remark]  # compared, but NaN, or of two files one

    @property
    def first_bad_step(self) -> int | None:
        return self.suspicions[0].step if self.suspicions else None

    def __str__(self) -> str:
        place = "" if self.rank is None else f"rank {self.rank}: "
        if not self.parameters:
            return f"{place}nothing could be compared"
        if not self.suspicions:
            return (
                f"{place}nothing suspicious in {_counted(len(self.parameters), 'parameter')}"
                f" and {_counted(len(self.steps), 'step')}"
            )
        step = self.first_bad_step
        bad = [one for one in self.suspicions if one.step == step]
        named = ", ".join(str(one) for one in bad[:MOST_NAMED])
        more = f" and {len(bad) - MOST_NAMED} more" if len(bad) > MOST_NAMED else ""
        return f"{place}suspicious at step {step}, in backward order: {named}{more}"


@dataclasses.dataclass(frozen=True)
class DirectionsComparison:
    """str() of it is the verdict, a line per rank."""

    ranks: list[RankComparison]
    not_compared: list[Remark]  # ranks that only one dump has

    @property
    def first_bad_step(self) -> int | None:
        steps = [rank.first_bad_step for rank in self.ranks if rank.suspicions]
        return min(steps, default=None)

    def remarks(self) -> list[str]:
        """A line for everything that could not be compared, or is in doubt."""
        found = [f"not compared: {one}" for one in self.not_compared]
        for what, field in (("not compared", "not_compared"), ("in doubt", "doubts")):
            for rank in self.ranks:
                place = "" if rank.rank is None else f"rank {rank.rank}: "
                found += [f"{what}: {place}{one}" for one in getattr(rank, field)]
        return found

    def __str__(self) -> str:
        return "\n".join(str(rank) for rank in self.ranks)


def compare_directions(
    path1: str | os.PathLike,
    path2: str | os.PathLike,
    out: str | os.PathLike,
    *,
    threads: int | None = None,
    pictures: bool = True,
    progress: Callable[[int, int], Any] | None = None,
) -> DirectionsComparison:
    """How far the gradient directions of two dumps of grad_probe agree, ours or msprobe's.

    path1, path2   dumps: rank{r}/step{n}/{parameter}.npy or .sign; or the directories of one rank
    out            similarities.csv, verdict.json and similarities_picture, of each rank in rank{r}
    threads        default: one per processor, 16 at most; 256 are the most
    pictures       False: none are drawn (they need matplotlib)
    progress       called with files compared and in all, from any thread

    Whatever can be compared is; the rest is a RuntimeWarning and stands in verdict.json, and so does
    what is in doubt: gradients with NaN, and one parameter in two files. Raises FileNotFoundError for a
    path that is no directory, RuntimeError where nothing at all can be compared, TypeError or ValueError
    naming the argument, OSError when the output cannot be written.

    >>> for out in ("dump_a", "dump_b"):
    ...     model = torch.nn.Linear(4, 2)
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     with trainmon.GradProbe(model, optimizer, out=out):
    ...         (model(torch.ones(1, 4)).sum() * (1 if out == "dump_a" else -1)).backward()
    ...         optimizer.step()
    >>> found = trainmon.compare_directions("dump_a", "dump_b", "similarities", pictures=False)
    >>> found.first_bad_step, found.ranks[0].parameters, found.ranks[0].similarity.tolist()
    (0, ['weight', 'bias'], [[0.0], [0.0]])
    """
    path1, path2 = checks.directory("path1", path1), checks.directory("path2", path2)
    pictures = checks.flag("pictures", pictures)
    comparison = count_agreements(path1, path2, out, threads=threads, progress=progress)
    remarks = comparison.remarks()
    if remarks:
        more = f" and {len(remarks) - 1} more (verdict.json)" if len(remarks) > 1 else ""
        warnings.warn(f"{remarks[0]}{more}", RuntimeWarning, stacklevel=2)
    if pictures:
        from trainmon import direction_pictures

        direction_pictures.draw(comparison, None)
    return comparison


def count_agreements(path1, path2, out, *, threads, progress) -> DirectionsComparison:
    """compare_directions without pictures and without warning; the paths are of directories."""
    import numpy as np

    out = checks.path("out", out)
    if threads is None:
        threads = min(len(os.sched_getaffinity(0)), USEFUL_THREADS)
    found, missing = _core.compare_directions(
        os.fsencode(path1),
        os.fsencode(path2),
        os.fsencode(out),
        checks.threads(threads),
        checks.called("progress", progress),
    )
    ranks = []
    for one in found:
        (summary,) = _quotients(np, one.pop("summary_equal"), one.pop("summary_elements"))
        one["suspicions"] = [Suspicion(*each) for each in one["suspicions"]]
        for field in ("not_compared", "doubts"):
            one[field] = [Remark(*each) for each in one[field]]
        similarity = _quotients(np, one["equal"], one["elements"])
        ranks.append(RankComparison(similarity=similarity, summary=summary, **one))
    return DirectionsComparison(ranks, [Remark(*each) for each in missing])


def _quotients(np, equal, elements):
    """NaN where nothing was compared, 0 of no elements."""
    quotients = equal / np.maximum(elements, 1)
    return np.where(elements < 0, np.nan, quotients)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _spans(steps: list[int]) -> str:
    """[1, 3, 4, 5] is "1, 3 to 5", shortened beyond a few."""
    spans = []
    for step in steps:
        if spans and step == spans[-1][1] + 1:
            spans[-1][1] = step
        else:
            spans.append([step, step])
    shown = [f"{a}" if a == b else f"{a} to {b}" for a, b in spans[:8]]
    return ", ".join(shown) + (", ..." if len(spans) > 8 else "")
