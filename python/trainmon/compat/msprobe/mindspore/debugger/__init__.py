# What `from msprobe.mindspore.debugger import ...` gives.
from trainmon.compat.msprobe.mindspore.precision_debugger import PrecisionDebugger

__all__ = ["PrecisionDebugger"]
