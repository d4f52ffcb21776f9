# msprobe's CSV files for TensorBoard.
from __future__ import annotations

import os

from trainmon.compat.msprobe import conversion


def csv2tensorboard_by_step(
    monitor_path,
    time_start=None,
    time_end=None,
    process_num=1,
    data_type_list=None,
    output_dirpath=None,
) -> None:
    """Writes OUT/rank{r}/{type}/ with one event file each, tags `vp{stage}:{name}[:micro{m}]/{op}`.

    monitor_path    output directory of a TrainerMon, ours or msprobe's
    time_start, time_end   which runs: times of their directories, closed ("Dec03_21-34-40")
    process_num     1 to 128: threads that convert
    data_type_list  types to convert; default all of conversion.TYPES
    output_dirpath  default MONITOR_PATH/{now}_csv2tensorboard_by_step

    A folder {type} that is there already is replaced. Where several directories of one rank are
    within the times, a later one takes the place of an earlier one step by step. Raises ValueError,
    TypeError or FileNotFoundError naming the argument; rows that cannot be used are logged.
    """
    threads = conversion.checked_process_num(process_num)
    types = conversion.checked_types(data_type_list, conversion.TYPES)
    source = conversion.checked_directory(monitor_path)
    if output_dirpath is None:
        out = os.path.join(source, f"{conversion.now()}_csv2tensorboard_by_step")
    else:
        out = conversion.checked_path("output_dirpath", output_dirpath)
    options = {
        "time_start": conversion.checked_time("time_start", time_start),
        "time_end": conversion.checked_time("time_end", time_end),
        "threads": threads,
    }
    if not os.path.lexists(out):
        conversion.convert(source, out, "tensorboard", types, **options)
    else:
        staged = os.path.join(out, f".csv2tb-{os.getpid()}")
        conversion.convert(source, staged, "tensorboard", types, overwrite=True, **options)
        conversion.merge_into(staged, out)
    conversion.log.info("output has been saved to: %s", out)
