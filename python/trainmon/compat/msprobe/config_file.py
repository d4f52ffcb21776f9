# The configuration file as people edit it while training runs: looked at once per step.
from __future__ import annotations

import json
import os
import time

from trainmon.base.console import log
from trainmon.base.settings_file import content_of
from trainmon.compat.msprobe import config as fields

RACY = 2.0  # seconds in which a file system may give two versions of a file the same time


class ConfigFile:
    """The last version that was valid. One stat() per look; a version that is torn or wrong is said
    once, and looked at again until the file changes or becomes valid."""

    def __init__(self, path):
        self.path = path
        self.seen = None  # (mtime, size, inode) of the content below, None: look again
        self.content = None  # bytes last judged
        self.said = None

    def changed(self) -> dict | None:
        """A valid configuration that was not there at the last look, else None."""
        try:
            status = os.stat(self.path)
            mark = (status.st_mtime_ns, status.st_size, status.st_ino)
            if mark == self.seen:
                return None
            content = content_of(self.path)
            after = os.stat(self.path)
            if (after.st_mtime_ns, after.st_size, after.st_ino) != mark:
                self.seen = None  # written meanwhile: it may be of two versions
                return None
            # While a file is fresh, the next version may bear the same time.
            old = time.time() - status.st_mtime > RACY
            if content == self.content:
                self.seen = mark if old else None
                return None
            config = fields.checked(_object(content))
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            if self.said != str(error):
                self.said = str(error)
                log.error("trainmon: %s is not taken over: %s", self.path, error)
            return None
        self.content, self.said = content, None
        self.seen = mark if old else None
        return config

    def switch_off(self) -> None:
        """Writes dynamic_on: false, unless somebody has changed the file since."""
        try:
            if content_of(self.path) != self.content:
                return
            given = {**_object(self.content), "dynamic_on": False}
            text = json.dumps(given, indent=2, ensure_ascii=False).encode()
            temporary = f"{self.path}.{os.getpid()}.tmp"
            with open(temporary, "wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, os.stat(self.path).st_mode & 0o777)
            os.replace(temporary, self.path)
            self.content, self.seen = text, None
        except (OSError, ValueError) as error:
            log.error("trainmon: cannot set dynamic_on to false in %s: %s", self.path, error)


def _object(content: bytes) -> dict:
    found = json.loads(content)
    if not isinstance(found, dict):
        raise TypeError("it holds no JSON object")
    return found
