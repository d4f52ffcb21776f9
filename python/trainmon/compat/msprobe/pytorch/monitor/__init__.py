# Modules that msprobe keeps under pytorch/monitor.
