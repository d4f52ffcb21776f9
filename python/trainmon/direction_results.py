# What a comparison of directions found: counts, similarities, and the verdict as text.
from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

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
        """A line for everything that could not be compared, or is in doubt.

        >>> for out, features in (("small", 4), ("large", 5)):
        ...     model = torch.nn.Linear(features, 2)
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ...     with trainmon.GradProbe(model, optimizer, out=out):
        ...         model(torch.ones(1, features)).sum().backward()
        ...         optimizer.step()
        >>> found = trainmon.compare_directions("small", "large", "sizes", pictures=False)
        >>> found.remarks()
        ['not compared: rank 0: weight at step 0: sizes [2, 4] against [2, 5]']
        """
        found = [f"not compared: {one}" for one in self.not_compared]
        for what, field in (("not compared", "not_compared"), ("in doubt", "doubts")):
            for rank in self.ranks:
                place = "" if rank.rank is None else f"rank {rank.rank}: "
                found += [f"{what}: {place}{one}" for one in getattr(rank, field)]
        return found

    def __str__(self) -> str:
        return "\n".join(str(rank) for rank in self.ranks)


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
