# Settings of the Python tests: one torch thread, so that results do not depend on the machine.
import faulthandler
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
faulthandler.enable()
