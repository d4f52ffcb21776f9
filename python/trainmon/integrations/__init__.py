# Trainers that own the training loop, one file each; here what their entry points share.
from __future__ import annotations

import json
import os

VARIABLE = "TRAINMON_CONFIG"


def configured() -> dict | None:
    """The settings of the file that the environment names, read now; None, and nothing imported, if
    none."""
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    from trainmon.config import ConfigError, config_json

    try:
        return json.loads(config_json(path))
    except (ConfigError, OSError) as error:
        raise ConfigError(f"{VARIABLE}: {error}") from None


def numbers(values: dict) -> dict:
    """Those that can be scalars of the run: scalars of tensors and arrays, too."""
    return {
        str(key): value
        for key, value in values.items()
        if isinstance(value, (int, float)) or hasattr(value, "item")
    }
