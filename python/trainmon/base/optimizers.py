# The optimizers that watch() was given, before a framework looks at them.
from __future__ import annotations


def by_name(given) -> dict:
    """One, a list or a dict of them, in the order given. TypeError where there is none."""
    if isinstance(given, dict):
        found = {str(name): optimizer for name, optimizer in given.items()}
    elif isinstance(given, (list, tuple)):
        found = {str(index): optimizer for index, optimizer in enumerate(given)}
    else:
        found = {"0": given}
    if not found:
        raise TypeError("optimizer must be an optimizer, a list or a dict of them, not empty")
    return found
