# Modules that msprobe keeps under core/monitor.
