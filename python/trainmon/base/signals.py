# Exceptions of the user's signal handlers, which run in the middle of whatever Python code is under way.
from __future__ import annotations

import os

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def pass_on(error: BaseException) -> None:
    """Raises again what a signal handler of the user's raised while our code ran. A limit of time
    is his, however deep in our hooks it came. To be called wherever we keep an exception to
    ourselves. Does nothing for what is ours."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        if _is_from_handler(found):
            raise found
        seen.add(id(found))
        found = found.__cause__ or found.__context__
        # What was being handled before our code began is no longer on its way.
        if found is not None and not _began_here(found):
            return


def _began_here(error: BaseException) -> bool:
    where = error.__traceback__
    return where is not None and where.tb_frame.f_code.co_filename.startswith(_OURS)


def _is_from_handler(error: BaseException) -> bool:
    where = error.__traceback__
    while where is not None:
        if _is_handler(where.tb_frame):
            return True
        where = where.tb_next
    return False


def _is_handler(frame) -> bool:
    """Whether a function was called with the number of a signal and the frame that runs it: as
    Python, and nobody else, calls handlers."""
    code = frame.f_code
    if frame.f_back is None or code.co_filename.startswith(_OURS):
        return False
    count = code.co_argcount
    values = frame.f_locals
    given = [values.get(name) for name in code.co_varnames[:count]]
    if code.co_flags & 0x04:  # *args
        given += values.get(code.co_varnames[count + code.co_kwonlyargcount]) or ()
    pairs = zip(given, given[1:])
    return any(isinstance(number, int) and seen is frame.f_back for number, seen in pairs)
