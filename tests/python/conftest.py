# Settings of the Python tests: one torch thread, so that results do not depend on the machine.
import faulthandler
import os
import pathlib
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
faulthandler.enable()
# Some tests take constants and functions of the programs that they start.
sys.path.append(str(pathlib.Path(__file__).parent / "programs"))
