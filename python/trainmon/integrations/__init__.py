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
        return json.loads(config_json(_found(path)))
    except (ConfigError, OSError) as error:
        raise ConfigError(f"{VARIABLE}: {error}") from None


def _found(path: str) -> str:
    """A relative path is one of the working directory. Where a launcher has changed that, it is
    one of the directory from which the command was typed, which shells leave in PWD."""
    if os.path.isabs(path) or os.path.exists(path):
        return path
    tried = [os.getcwd()]
    typed_in = os.environ.get("PWD", "")
    if os.path.isabs(typed_in) and os.path.realpath(typed_in) != os.path.realpath(tried[0]):
        tried.append(typed_in)
        if os.path.exists(os.path.join(typed_in, path)):
            return os.path.join(typed_in, path)
    raise FileNotFoundError(
        f"there is no {path!r} in {' nor in '.join(tried)}; "
        "an absolute path does not depend on where a launcher starts its processes"
    )


def numbers(values: dict) -> dict:
    """Those that can be scalars of the run: scalars of tensors and arrays, too."""
    return {
        str(key): value
        for key, value in values.items()
        if isinstance(value, (int, float)) or hasattr(value, "item")
    }
