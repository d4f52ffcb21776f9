# The first line of a run: what is watched, where it goes, and what is not covered.
from __future__ import annotations

from trainmon.stop_line import percent, shell_word
from trainmon.volume import Volume, in_bytes


def start_line(core, config: dict, coverage, volume: Volume, directory: str) -> str:
    text = f"watching {' '.join(coverage.kinds())} into {shell_word(directory)}"
    if core.restart > 0:
        text += f" (restart {core.restart} of the run there)"
    if volume.per_day > 0:
        files = volume.files_per_day
        text += (
            f", about {in_bytes(volume.per_day)} in {files:.0f} files a day at one step a second"
        )
    if config["budget"] is not None:
        text += f"; for at most {percent(config['budget'])} of the step's time"
    text += coverage.followed()
    absent = [str(rank) for rank in config["ranks"] if rank >= core.world_size]
    if absent:
        text += f"; ranks {', '.join(absent)} do not exist: there are {core.world_size}"
    missing = [f"{what} ({why})" for what, why in sorted(coverage.missing)]
    if missing:
        text += f"; not covered: {', '.join(missing[:5])}"
        text += f" and {len(missing) - 5} more (run.json)" if len(missing) > 5 else ""
    return text
