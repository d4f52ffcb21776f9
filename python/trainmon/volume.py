# How much a watched run writes: told at its start, and refused where it is too much.
from __future__ import annotations

import os

ROW_BYTES = {"log": 45, "csv": 260, "sqlite": 110}  # seen: 19 to 43, 150 to 240, 92
CHECK_BYTES = 44  # of the fingerprint and the sketch of a row; the log alone keeps them
CURVE_BYTES = 60  # of one point of a curve in an event file, with its tag; a row has up to four
DAY = 86400
MOST_PER_DAY = 50e9  # bytes; more must be asked for with allow_volume


class Volume:
    """Of a configuration that gives so many rows a step, on all ranks of the run that `who` is in.
    ValueError where that is more than MOST_PER_DAY at one step a second, unless allow_volume is set."""

    def __init__(self, config: dict, rows: int, who: dict):
        identity = {"world_size": _launched(), **who}
        ranks = len(config["ranks"]) or identity["world_size"]
        every = config["every"] or (1 if identity["world_size"] <= 4 else 10)
        row_bytes = sum(ROW_BYTES.get(sink, 0) for sink in config["sinks"])
        row_bytes += CHECK_BYTES if config["checks"] and "log" in config["sinks"] else 0
        curves = config["tensorboard_tags"] if "tensorboard" in config["sinks"] else 0
        per_step = rows * row_bytes + min(curves, 4 * rows) * CURVE_BYTES
        self.ranks, self.every = ranks, every
        self.per_row = per_step / rows if rows else 0.0  # bytes, of all sinks
        self.per_day = per_step * ranks / every * DAY  # bytes, at one step a second
        self.files_per_day = ranks + self.per_day / (config["segment_mb"] * 2**20)
        self._is_bounded = not config["allow_volume"] and per_step > 0
        if self._is_bounded and self.per_day > MOST_PER_DAY:
            raise ValueError(
                f"this would write about {in_bytes(self.per_day)} a day at one step a second ({rows} rows "
                f"a step on {ranks} ranks, every {every} steps). That is more than {in_bytes(MOST_PER_DAY)}: watch "
                "fewer kinds or names, raise `every`, or pass allow_volume=True"
            )

    def warning(self, seconds: float) -> str:
        """What is to be said where a step takes so long; "" if nothing is."""
        seconds = max(seconds, 1e-6)
        per_day = self.per_day / seconds
        if not self._is_bounded or per_day <= MOST_PER_DAY:
            return ""
        return (
            f"at {1 / seconds:.1f} steps a second this writes about {in_bytes(per_day)} a day; a larger "
            "`every` makes it less, `retention_mb` keeps the newest"
        )


def in_bytes(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return (
                f"{count:.0f} {unit}" if count >= 10 or unit == "bytes" else f"{count:.1f} {unit}"
            )
        count /= 1000
    return ""


def _launched() -> int:
    """Ranks of the launcher; 1 where its variable is no number, as in the core."""
    try:
        return max(1, int(os.environ.get("WORLD_SIZE", "")))
    except ValueError:
        return 1
