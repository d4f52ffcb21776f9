# Directions of two dumps compared: the work is done in C++, pictures by matplotlib.
from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

from trainmon import _core
from trainmon.checks import arguments as checks
from trainmon.direction_results import DirectionsComparison, RankComparison, Remark, Suspicion

USEFUL_THREADS = 16


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

    Whatever can be compared is. The rest is a RuntimeWarning and stands in verdict.json. So does what
    is in doubt: gradients with NaN, and one parameter in two files.

    Raises FileNotFoundError for a path that is no directory, and RuntimeError where nothing at all can
    be compared. Raises TypeError or ValueError naming the argument, and OSError when the output cannot
    be written.

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
