# Trainers that own the training loop, one file each; here what their entry points share.
from __future__ import annotations

import os

VARIABLE = "TRAINMON_CONFIG"


def configured() -> str | None:
    """The settings file that the environment names, checked; None, and nothing imported, if none."""
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    from trainmon.config import ConfigError, config_json

    try:
        config_json(path)
    except (ConfigError, OSError) as error:
        raise ConfigError(f"{VARIABLE}: {error}") from None
    return path
