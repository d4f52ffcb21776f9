# Modules that msprobe keeps under core/monitor_v2.
from trainmon.compat.msprobe.core.monitor_v2.trainer import TrainerMonitorV2

__all__ = ["TrainerMonitorV2"]
