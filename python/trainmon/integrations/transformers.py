# A Transformers TrainerCallback: trainer = Trainer(..., callbacks=[TrainmonCallback(every=10)]).
from __future__ import annotations

from typing import Any

from trainmon.integrations import numbers

_callback: type | None = None


def __getattr__(name: str):
    if name == "TrainmonCallback":
        return _make()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _make() -> type:
    """The class, made on first use: only then is transformers imported."""
    global _callback
    if _callback is not None:
        return _callback
    from transformers import TrainerCallback

    import trainmon

    class TrainmonCallback(TrainerCallback):
        """Watches a Trainer's run. Takes the settings of trainmon.watch.

        `monitor` is the Watch while training runs and after it; losses that the Trainer logs are
        recorded as scalars.
        """

        def __init__(self, **settings: Any):
            self.settings = settings
            self.monitor = None

        def on_train_begin(self, args, state, control, *, model=None, optimizer=None, **kwargs):
            self.on_train_end(args, state, control)  # that of a train() which raised
            settings = {"grad_acc_steps": args.gradient_accumulation_steps, **self.settings}
            settings.setdefault("start_iteration", state.global_step)
            self.monitor = trainmon.watch(model, optimizer, **settings)

        def on_log(self, args, state, control, logs=None, **kwargs):
            if self.monitor is not None:
                self.monitor.log(**numbers(logs or {}))

        def on_train_end(self, args, state, control, **kwargs):
            if self.monitor is not None:
                self.monitor.stop()

    TrainmonCallback.__module__, TrainmonCallback.__qualname__ = __name__, "TrainmonCallback"
    _callback = TrainmonCallback
    return _callback
