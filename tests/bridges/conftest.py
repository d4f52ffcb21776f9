# Tests beside the trackers' own libraries, in an environment that has them (make test-bridges).
import os
import pathlib
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))
