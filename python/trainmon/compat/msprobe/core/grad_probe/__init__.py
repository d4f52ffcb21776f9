# Modules that msprobe keeps under core/grad_probe.
