# msprobe's CSV files as one SQLite database.
from __future__ import annotations

import os
from dataclasses import dataclass

from trainmon.compat.msprobe import conversion

_FILE = "monitor_metrics.db"
_LEAST_PARTITION, _MOST_PARTITION = 10, 10_000_000


@dataclass
class CSV2DBConfig:
    """What csv2db converts.

    monitor_path    output directory of a TrainerMon, ours or msprobe's
    time_start, time_end   which runs: times of their directories, closed ("Dec03_21-34-40")
    process_num     1 to 128: threads that read
    data_type_list  types to convert; default all of conversion.TYPES and "other"
    output_dirpath  default MONITOR_PATH/{now}_csv2db
    step_partition  10 to 10,000,000: steps per table
    """

    monitor_path: str
    time_start: str | None = None
    time_end: str | None = None
    process_num: int = 1
    data_type_list: list[str] | None = None
    output_dirpath: str | None = None
    step_partition: int = 500


def csv2db(config: CSV2DBConfig) -> None:
    """Writes OUT/monitor_metrics.db, in place of an older one.

    Raises ValueError, TypeError or FileNotFoundError naming the field; rows that cannot be used are
    logged. Several directories of one rank: a later one wins, step by step.
    """
    threads = conversion.checked_process_num(config.process_num)
    partition = config.step_partition
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise TypeError(f"step_partition must be an int, not {type(partition).__name__}")
    if not _LEAST_PARTITION <= partition <= _MOST_PARTITION:
        raise ValueError(
            f"step_partition must be from {_LEAST_PARTITION} to {_MOST_PARTITION}, not {partition}"
        )
    types = conversion.checked_types(config.data_type_list, [*conversion.TYPES, "other"])
    source = conversion.checked_directory(config.monitor_path)
    if config.output_dirpath is None:
        out = os.path.join(source, f"{conversion.now()}_csv2db")
    else:
        out = conversion.checked_path("output_dirpath", config.output_dirpath)
    file = os.path.join(out, _FILE)
    if os.path.lexists(file):
        conversion.log.warning("%s is replaced", file)
    conversion.convert(
        source,
        file,
        "msprobe_db",
        types,
        time_start=conversion.checked_time("time_start", config.time_start),
        time_end=conversion.checked_time("time_end", config.time_end),
        threads=threads,
        step_partition=partition,
        overwrite=True,
    )
    conversion.log.info("output has been saved to: %s", out)
