# Where a gradient probe writes: of which rank it is, and that nobody else writes there.
from __future__ import annotations

import contextlib
import fcntl
import os
import weakref

import torch


def rank_and_world() -> tuple[int, int]:
    """(rank, number of ranks), from the launcher's environment before there is a process group."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    ranks = os.environ.get("WORLD_SIZE", ""), os.environ.get("RANK", "")
    if all(text.isdecimal() for text in ranks) and int(ranks[0]) > 1:
        return int(ranks[1]), int(ranks[0])
    return 0, 1


def claim(probe, directory: str):
    """Keeps others from writing the directory as long as the probe lives; the call that ends this.
    Where a file system has no locks nothing is kept."""
    try:
        os.makedirs(directory, exist_ok=True)
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # who makes the files says what is wrong
        return lambda: None
    close = weakref.finalize(probe, os.close, lock)
    close.atexit = False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        close()
        raise RuntimeError(
            f"{directory} is being written by another live probe: stop() it, or give each its own "
            "out; of several ranks, make the probe after init_process_group()"
        ) from None
    except OSError:
        pass

    def release() -> None:
        if close.alive:
            with contextlib.suppress(OSError):  # children of a fork have the lock, too
                fcntl.flock(lock, fcntl.LOCK_UN)
            close()

    return release
