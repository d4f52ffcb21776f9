# What `from msprobe.pytorch.debugger.precision_debugger import ...` gives.
from trainmon.compat.msprobe.pytorch.grad_probe import PrecisionDebugger

__all__ = ["PrecisionDebugger"]
