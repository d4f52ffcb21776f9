# What `from msprobe.pytorch.debugger.precision_debugger import ...` gives.
from trainmon.compat.msprobe.precision_debugger import PrecisionDebugger

__all__ = ["PrecisionDebugger"]
