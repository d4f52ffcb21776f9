# What `from msprobe.pytorch import ...` gives.
from trainmon.compat.msprobe.precision_debugger import PrecisionDebugger
from trainmon.compat.msprobe.trainer_mon import TrainerMon

__all__ = ["PrecisionDebugger", "TrainerMon"]
