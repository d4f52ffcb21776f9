# Settings of the MindSpore tests, which run in an environment without torch (scripts/test_mindspore.sh).
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GLOG_v", "3")  # MindSpore logs its deprecations as warnings

import mindspore

mindspore.set_device("CPU")
