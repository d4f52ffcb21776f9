# States of rows as vectors of float64: what the core says of their columns.
"""FIELDS are the names. A tensor times c has the field times c^degree (DEGREES). EMPTY is the state
of a tensor without elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainmon import _core

FIELDS, DEGREES, EMPTY = zip(*_core.state_fields(), strict=True)
COUNT = FIELDS.index("count")


def ordered(values: dict[str, Any], constant: Callable[[float], Any]) -> list:
    """The values of fields in the order of FIELDS. constant() makes those that are not given."""
    unknown = values.keys() - set(FIELDS)
    if unknown:
        raise KeyError(f"no field of a state: {', '.join(sorted(unknown))}")
    return [
        values[name] if name in values else constant(empty)
        for name, empty in zip(FIELDS, EMPTY, strict=True)
    ]
