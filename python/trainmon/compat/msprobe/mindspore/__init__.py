# What `from msprobe.mindspore import ...` gives.
from trainmon.compat.msprobe.mindspore.precision_debugger import PrecisionDebugger
from trainmon.compat.msprobe.mindspore.trainer_mon import TrainerMon

__all__ = ["PrecisionDebugger", "TrainerMon"]
