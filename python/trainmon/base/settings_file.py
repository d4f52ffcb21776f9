# The file of a configuration, whoever's it is.
from __future__ import annotations

import os
import stat

MOST_BYTES = 2**20  # as the command line takes (src/config)


class NoSettings(OSError):
    """It is no file, or too large to be one of settings."""


def content_of(path: str | os.PathLike[str]) -> bytes:
    """What a file holds. NoSettings for one larger than 1 MiB, and for what is no file: a pipe would
    wait for its writer."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise NoSettings(f"{os.fspath(path)} is not a file")
    with open(path, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise NoSettings(f"{os.fspath(path)} is larger than 1 MiB")
    return content
