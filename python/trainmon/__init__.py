"""trainmon watches the state of a neural-network training run."""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for that of typing, which costs an import
if TYPE_CHECKING:  # they and editors follow no name that resolves on first use
    from trainmon._core import __version__ as __version__
    from trainmon.comparison import compare as compare
    from trainmon.config import ConfigError as ConfigError
    from trainmon.conversion import convert as convert
    from trainmon.cost import estimate as estimate
    from trainmon.directions import compare_directions as compare_directions
    from trainmon.monitor import Watch as Watch
    from trainmon.monitor import watch as watch
    from trainmon.page import report as report
    from trainmon.querying import query as query
    from trainmon.reading import diagnose as diagnose
    from trainmon.reading import first_bad as first_bad
    from trainmon.reading import read as read
    from trainmon.reading import read_table as read_table
    from trainmon.reading import top as top
    from trainmon.samples import read_samples as read_samples
    from trainmon.scanning import scan as scan
    from trainmon.stats import probe_tensor as probe_tensor
    from trainmon.stats import tensor_stats as tensor_stats
    from trainmon.torch.describe import describe as describe
    from trainmon.torch.probe.grad_probe import GradProbe as GradProbe
else:

    def __getattr__(name: str):
        if name not in _HOME:
            raise AttributeError(f"module 'trainmon' has no attribute {name!r}")
        import importlib

        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value


# Names resolve on first use, so that `import trainmon` loads no framework and no NumPy. Entry
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
    "diagnose": "trainmon.reading",
    "first_bad": "trainmon.reading",
    "top": "trainmon.reading",
    "scan": "trainmon.scanning",
    "read_samples": "trainmon.samples",
    "query": "trainmon.querying",
    "report": "trainmon.page",
    "compare": "trainmon.comparison",
    "convert": "trainmon.conversion",
    "compare_directions": "trainmon.directions",
    "describe": "trainmon.torch.describe",
    "estimate": "trainmon.cost",
    "ConfigError": "trainmon.config",
}

__all__ = [*_HOME]


def __dir__():
    return sorted({*globals(), *__all__})
