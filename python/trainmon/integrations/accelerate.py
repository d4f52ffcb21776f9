# An Accelerate tracker: Accelerator(log_with=TrainmonTracker(model, optimizer, every=10)).
# trainmon.watch() itself takes objects that were prepared, and those that will be.
from __future__ import annotations

from typing import Any

_tracker: type | None = None


def __getattr__(name: str):
    if name == "TrainmonTracker":
        return _make()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _is_number(value) -> bool:
    return isinstance(value, (int, float)) or hasattr(value, "item")


def _make() -> type:
    """The class, made on first use: only then is accelerate imported."""
    global _tracker
    if _tracker is not None:
        return _tracker
    from accelerate.tracking import GeneralTracker

    import trainmon

    class TrainmonTracker(GeneralTracker):
        """Watches from accelerator.init_trackers() to accelerator.end_training(), on every process.
        Takes the settings of trainmon.watch.

        Where model and optimizer are made after the Accelerator: TrainmonTracker(every=10), and
        tracker.watch(model, optimizer) once they are there. Numbers given to accelerator.log() are
        recorded as scalars.
        """

        name = "trainmon"
        requires_logging_directory = False
        main_process_only = False

        def __init__(self, model=None, optimizer=None, **settings: Any):
            super().__init__()
            self.model, self.optimizer, self.settings = model, optimizer, settings
            self.monitor = None

        @property
        def tracker(self):
            """The Watch, None before there is one."""
            return self.monitor

        def start(self):
            if self.model is not None:
                self.watch(self.model, self.optimizer)

        def watch(self, model, optimizer):
            self.monitor = trainmon.watch(model, optimizer, **self.settings)
            self.model = self.optimizer = None
            return self.monitor

        def store_init_configuration(self, values: dict):
            pass  # run.json says what ran

        def log(self, values: dict, step: int | None = None, **kwargs):
            if self.monitor is not None:
                scalars = {k: v for k, v in values.items() if _is_number(v)}
                self.monitor.log(**scalars)

        def finish(self):
            if self.monitor is not None:
                self.monitor.stop()

    TrainmonTracker.__module__, TrainmonTracker.__qualname__ = __name__, "TrainmonTracker"
    _tracker = TrainmonTracker
    return _tracker
