# A step in a few floats, for whoever logs it somewhere else.
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

MOST_FLOATS = 19  # the twentieth is for failed checks


def floats_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Of the rows of one step, as Watch.latest() gives them. Each kind (in order of name, as many
    as fit) has the norm over all tensors and the largest norm of one. It also has how many
    elements were not finite."""
    kinds: dict[str, list[float]] = {}
    last: dict[tuple, dict] = {}
    non_finite = 0.0
    for row in rows:
        non_finite += row["nans"] + row["infs"]
        # Of the running sums of an accumulation only the last counts.
        last[tuple(row[k] for k in ("kind", "name", "element", "chunk", "call"))] = row
    for row in last.values():
        kinds.setdefault(row["kind"], []).append(row["norm"])
    floats = {"non_finite": non_finite}
    for kind in sorted(kinds)[: (MOST_FLOATS - 1) // 2]:
        norms = kinds[kind]
        floats[f"{kind}/norm"] = math.sqrt(sum(norm * norm for norm in norms))
        floats[f"{kind}/largest"] = math.nan if any(map(math.isnan, norms)) else max(norms)
    return floats
