# msprobe: names, arguments and files of its monitor and of grad_probe.
from trainmon.compat.msprobe.core.grad_probe.grad_compare import GradComparator

__all__ = ["GradComparator"]
