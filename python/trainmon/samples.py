# The rows of a run that are estimates, with their errors.
from __future__ import annotations

import os
from collections.abc import Iterable

from trainmon import _core
from trainmon.checks import arguments as checks
from trainmon.reading import _call, _checked, _warn
from trainmon.table import Table


def read_samples(
    run: str | os.PathLike,
    *,
    kinds: str | Iterable[str] | None = None,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    ranks: int | Iterable[int] | None = None,
    steps: int | tuple[int | None, int | None] | None = None,
    all_restarts: bool = False,
) -> Table:
    """The rows that were estimated from a sample of blocks (key `sample`), as a Table. After the key
    columns come the estimates norm, mean and std, and count. Then there is of each sample:

    elements    how many elements of the tensor were read
    norm_error, mean_error    one standard error of norm and mean; NaN where those are not finite
    sample_min, sample_max    the extremes among the finite elements that were read
    sample_nans, sample_infs, sample_zeros, sample_subnormals    how many of those that were read

    The tensor itself may have other extremes, and more elements that are not finite. Arguments,
    warnings and errors as for read().

    >>> trainmon.read_samples("trainmon_runs/local").num_rows
    0
    """
    path, asked = _checked(run, kinds, include, exclude, ranks, steps)
    flag = checks.flag("all_restarts", all_restarts)
    facts, columns = _call(_core.read_samples, path, *asked, flag)
    _warn(path, facts, 3)
    return Table(columns, ("norm", "mean", "std", "count"))
