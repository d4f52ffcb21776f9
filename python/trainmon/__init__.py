"""trainmon watches the state of a neural-network training run."""

from __future__ import annotations

# Names resolve on first use, so that `import trainmon` loads no framework and no NumPy, and entry
# points of frameworks cost next to nothing where trainmon is not configured.
_HOME = {
    "__version__": "trainmon._core",
    "watch": "trainmon.monitor",
    "Watch": "trainmon.monitor",
    "GradProbe": "trainmon.torch.probe.grad_probe",
    "tensor_stats": "trainmon.stats",
    "probe_tensor": "trainmon.stats",
    "read": "trainmon.reading",
    "read_table": "trainmon.reading",
    "first_bad": "trainmon.reading",
    "top": "trainmon.reading",
    "compare": "trainmon.comparison",
    "convert": "trainmon.conversion",
    "compare_directions": "trainmon.directions",
    "describe": "trainmon.torch.describe",
    "ConfigError": "trainmon.config",
}

__all__ = [*_HOME]


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'trainmon' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
