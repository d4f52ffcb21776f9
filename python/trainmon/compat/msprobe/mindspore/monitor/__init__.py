# What `from msprobe.mindspore.monitor import ...` gives.
from trainmon.compat.msprobe.mindspore.trainer_mon import TrainerMon

__all__ = ["TrainerMon"]
