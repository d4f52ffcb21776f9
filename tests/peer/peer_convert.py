# Runs msprobe's own converters: peer_convert.py csv2db|csv2tb|data2db MONITOR_PATH OUT PROCESSES
# Prints the seconds that the call took.
import os
import sys
import time

import numpy

if not hasattr(numpy, "unicode_"):  # 8.3.3 is older than NumPy 2
    numpy.unicode_ = numpy.str_


def main():
    what, source, out, processes = sys.argv[1:5]
    if what == "csv2db":
        from msprobe.core.monitor.csv2db import CSV2DBConfig, csv2db

        config = CSV2DBConfig(source, process_num=int(processes), output_dirpath=out)
        call = lambda: csv2db(config)  # noqa: E731
    elif what == "csv2tb":
        from msprobe.pytorch.monitor.csv2tb import csv2tensorboard_by_step

        call = lambda: csv2tensorboard_by_step(  # noqa: E731
            source, process_num=int(processes), output_dirpath=out
        )
    else:
        from msprobe.core.compare.data2db import DBImporter

        os.makedirs(out, exist_ok=True)
        call = DBImporter(
            db_path=out,
            data_path=source,
            format="monitor",
            micro_step="true",
            process_num=int(processes),
        ).import_data
    begin = time.perf_counter()
    call()
    print("seconds", time.perf_counter() - begin)


if __name__ == "__main__":
    main()
