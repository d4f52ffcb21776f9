# The arguments of set_monitor(), in either of the orders that scripts use.
from __future__ import annotations

import numbers

from trainmon.base.console import log


def arguments(args: tuple, keys: dict) -> dict:
    """Arguments after `model`, in the order of the manual or in that of the code."""
    names = ("optimizer", "grad_acc_steps", "tp_group", "dp_group", "start_iteration")
    first = args[0] if args else keys.get("grad_acc_steps")
    if args and isinstance(first, numbers.Number):
        names = ("grad_acc_steps", "optimizer", "dp_group", "tp_group", "start_iteration")
    if len(args) > len(names):
        raise TypeError(f"set_monitor() takes at most {len(names) + 1} arguments")
    taken = dict(zip(names, args))
    for key, value in keys.items():
        if key not in names:
            raise TypeError(f"set_monitor() has no argument {key!r}: {', '.join(names)}")
        if key in taken:
            raise TypeError(f"set_monitor() got {key!r} twice")
        taken[key] = value
    taken = {**dict.fromkeys(names), **taken}
    for key, least in (("grad_acc_steps", 1), ("start_iteration", 0)):
        value = taken[key]
        if value is None:
            taken[key] = least
        elif not _is_count(value, least):
            what = type(value).__name__ if len(repr(value)) > 40 else repr(value)
            log.warning("trainmon: %s should be an int >= %d, not %s", key, least, what)
            taken[key] = least
        else:
            taken[key] = int(value)
    return taken


def _is_count(value, least: int) -> bool:
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return is_integer and least <= value <= 2**53
