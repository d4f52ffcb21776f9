# The sorter of anomaly.json files under the name it had in earlier versions.
import sys

from trainmon.compat.msprobe.core.monitor.anomaly_processor import main

if __name__ == "__main__":
    sys.exit(main())
