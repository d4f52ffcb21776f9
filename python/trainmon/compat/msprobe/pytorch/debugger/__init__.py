# Where msprobe keeps PrecisionDebugger.
