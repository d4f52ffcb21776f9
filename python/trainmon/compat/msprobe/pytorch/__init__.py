# What `from msprobe.pytorch import ...` gives.
from trainmon.compat.msprobe.trainer_mon import TrainerMon

__all__ = ["TrainerMon"]
