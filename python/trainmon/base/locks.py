# Locks that no forked process finds locked.
from __future__ import annotations

import os
import threading
import weakref

_made = weakref.WeakSet()


def fork_safe_lock():
    """An RLock. A thread may hold it in the moment of a fork, and that thread is not in the child:
    there the lock is free. What it guards may be half changed, and is not used in a child."""
    lock = threading.RLock()
    _made.add(lock)
    return lock


def _free_all() -> None:
    for lock in list(_made):
        lock._at_fork_reinit()  # as threading and logging do with theirs


os.register_at_fork(after_in_child=_free_all)
