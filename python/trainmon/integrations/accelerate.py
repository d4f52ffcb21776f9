# An Accelerate tracker: Accelerator(log_with=TrainmonTracker(every=10)), and tracker.watch(model,
# optimizer) after prepare(). trainmon.watch() itself takes prepared objects, too.
from __future__ import annotations

from typing import Any

from trainmon.integrations import numbers

_tracker: type | None = None


def __getattr__(name: str):
    if name == "TrainmonTracker":
        return _make()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _make() -> type:
    """The class, made on first use: only then is accelerate imported."""
    global _tracker
    if _tracker is not None:
        return _tracker
    from accelerate.tracking import GeneralTracker

    import trainmon

    class TrainmonTracker(GeneralTracker):
        """Numbers given to accelerator.log() become scalars of the run, and end_training() ends it.
        Takes the settings of trainmon.watch.

        Call watch(model, optimizer) on every process, after prepare(): Accelerate tells trackers
        of nothing but numbers, and those of the main process only.
        """

        name = "trainmon"
        requires_logging_directory = False
        main_process_only = False

        def __init__(self, **settings: Any):
            super().__init__()
            self.settings = settings
            self.monitor = None

        @property
        def tracker(self):
            """The Watch, None before there is one."""
            return self.monitor

        def watch(self, model, optimizer):
            self.monitor = trainmon.watch(model, optimizer, **self.settings)
            return self.monitor

        def log(self, values: dict, step: int | None = None, **kwargs):
            if self.monitor is not None:
                self.monitor.log(**numbers(values))

        def finish(self):
            if self.monitor is not None:
                self.monitor.stop()

    TrainmonTracker.__module__, TrainmonTracker.__qualname__ = __name__, "TrainmonTracker"
    _tracker = TrainmonTracker
    return _tracker
