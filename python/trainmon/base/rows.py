# What the core is told of a series that has no rows, and what it answers of a tensor.
from __future__ import annotations

NO_SERIES = -1
# Flags of a row (include/trainmon/record.h).
BEFORE_STEP, BY_OPERATIONS = 1024, 2048
ELSEWHERE = 2  # on a device that the core does not measure itself: framework operations do
REFUSED = 3  # of a dtype or layout that is not measured


def elsewhere(handle, series, tensor, *_) -> int:
    """observe_at() of the setting backend="ops": the core measures nothing."""
    return 1 if tensor is None else ELSEWHERE
