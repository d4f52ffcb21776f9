# What `from msprobe.pytorch import ...` gives.
from trainmon.compat.msprobe.pytorch.grad_probe import PrecisionDebugger
from trainmon.compat.msprobe.pytorch.trainer_mon import TrainerMon

__all__ = ["PrecisionDebugger", "TrainerMon"]
