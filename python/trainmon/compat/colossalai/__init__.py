# ColossalAIMonitor: gradients before and after their reduction, in two CSV files.
from trainmon.compat.colossalai.monitor import ColossalAIMonitor

__all__ = ["ColossalAIMonitor"]
