# Lightning: Trainer(callbacks=[TrainmonCallback(every=10)]), Fabric(callbacks=[FabricCallback(...)]).
# With TRAINMON_CONFIG=file.json in the environment both are there by themselves (entry points).
from __future__ import annotations

import sys
from typing import Any

from trainmon.base.console import log
from trainmon.integrations import VARIABLE, configured

_classes: dict[str, type] = {}
_has_started = False  # a run in this process, by TRAINMON_CONFIG


def __getattr__(name: str):
    if name == "TrainmonCallback":
        return _make("pytorch_lightning" if _is_older() else "lightning.pytorch")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _is_older() -> bool:
    """Whether the script imports Lightning under its older name, whose classes are others."""
    return "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules


def _make(package: str) -> type:
    """The callback class for one of Lightning's two packages, made on first use."""
    if package in _classes:
        return _classes[package]
    import importlib

    class TrainmonCallback(importlib.import_module(package).Callback):
        """Watches Trainer.fit(). Takes the settings of trainmon.watch.

        `monitor` is the Watch while training runs and after it; loss and learning rate are recorded
        every `log_every_n_steps`, as the Trainer logs.
        """

        def __init__(self, **settings: Any):
            self.settings = settings
            self.monitor = None
            self.from_environment = False
            self._says_global_step = False  # from the first difference on
            self._seen = 0  # the global step after the last batch
            self._stepped = 0  # batches in which it moved; it adds up the steps of all optimizers

        def on_train_start(self, trainer, pl_module):
            self.monitor = None
            others = [c for c in trainer.callbacks if isinstance(c, TrainmonCallback)]
            if self.from_environment and len(others) > 1:
                log.warning("trainmon: the script has a TrainmonCallback: %s is unused", VARIABLE)
                return
            optimizers = trainer.optimizers
            settings = {
                "grad_acc_steps": trainer.accumulate_grad_batches,
                "scaler": getattr(trainer.precision_plugin, "scaler", None),
            }
            self._seen, self._stepped = trainer.global_step, 0
            self._says_global_step = False
            if len(optimizers) == 1:
                settings["start_iteration"] = self._stepped = trainer.global_step
            settings.update(self.settings)
            # The strategy's model is the module, in what spreads it over processes.
            model = trainer.strategy.model or pl_module
            self.monitor = _start(self, model, optimizers, settings)

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            step = trainer.global_step
            if self.monitor is None or step == self._seen:  # in the middle of an accumulation
                return
            self._seen = step
            self._stepped += 1
            if self._stepped % max(trainer.log_every_n_steps, 1):
                return
            scalars = _scalars(trainer, pl_module, outputs)
            if len(trainer.optimizers) == 1 and self._drifts(step):
                scalars["global_step"] = step
            self.monitor.log(**scalars)

        def _drifts(self, step: int) -> bool:
            """Whether the optimizer has taken another number of steps than the Trainer counts."""
            taken = self.monitor._core.step(0)
            if taken == step or self._says_global_step:
                return self._says_global_step
            self._says_global_step = True
            log.warning(
                "trainmon: the optimizer has taken %s steps where trainer.global_step is %s (a step was "
                "skipped, or optimizer_step left it out). Rows count the optimizer's, the scalar "
                "global_step is the Trainer's",
                taken,
                step,
            )
            return True

        def on_train_end(self, trainer, pl_module):
            if self.monitor is not None:
                self.monitor.stop()

        def on_exception(self, trainer, pl_module, exception):
            self.on_train_end(trainer, pl_module)

    TrainmonCallback.__module__, TrainmonCallback.__qualname__ = __name__, "TrainmonCallback"
    _classes[package] = TrainmonCallback
    return TrainmonCallback


def _scalars(trainer, pl_module, outputs) -> dict[str, Any]:
    """The loss of a batch and the learning rates, as far as there are any."""
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
    if loss is not None and pl_module.automatic_optimization:
        loss = loss * trainer.accumulate_grad_batches  # the Trainer has divided by it
    scalars = {} if loss is None else {"loss": loss}
    for index, optimizer in enumerate(trainer.optimizers):
        name = f"lr.{index}" if len(trainer.optimizers) > 1 else "lr"
        # The stand-in for no optimizer has no group, and a group of the user's no "lr".
        for group in optimizer.param_groups[:1]:
            if "lr" in group:
                scalars[name] = group["lr"]
    return scalars


class FabricCallback:
    """Watches what Fabric.setup(module, optimizers) is given. Takes the settings of trainmon.watch.

    `monitor` is the Watch from then on; `fabric.call("on_train_end")` stops it, or the end of the
    process. After setup_module() and setup_optimizers(), which call nobody, use trainmon.watch.
    """

    def __init__(self, **settings: Any):
        self.settings = settings
        self.monitor = None
        self.from_environment = False

    def on_after_setup(self, fabric, module):
        others = [c for c in fabric._callbacks if isinstance(c, FabricCallback)]
        if self.from_environment and len(others) > 1:
            log.warning("trainmon: the script has a FabricCallback: %s is unused", VARIABLE)
            return
        if self.monitor is not None:
            log.warning("trainmon: only the first module that Fabric sets up is watched")
            return
        optimizers = _optimizers_of(module)
        if not optimizers:
            log.warning("trainmon: Fabric sets up a module without an optimizer: not watched")
            return
        self.monitor = _start(self, module, optimizers, self.settings)

    def on_train_end(self, **kwargs):
        if self.monitor is not None:
            self.monitor.stop()


def _start(callback, model, optimizers, settings: dict):
    """trainmon.watch(). Under TRAINMON_CONFIG it may fail before the first run of a process.
    Later ones, which nobody may have thought of, then go on without a Watch."""
    global _has_started
    import trainmon

    try:
        monitor = trainmon.watch(model, optimizers, **settings)
    except Exception as error:
        if not (callback.from_environment and _has_started):
            raise
        _say_unwatched(error)
        return None
    _has_started = _has_started or callback.from_environment
    return monitor


def _say_unwatched(error: Exception) -> None:
    log.warning(
        "trainmon: this training is not watched, unlike the one that %s watched before it in this "
        "process: %s. A callback in the script, with settings of its own, would watch it",
        VARIABLE,
        error,
    )


def _optimizers_of(module) -> list:
    """The torch optimizers that hold a parameter of the module: Fabric does not say which they are.
    What was there before gc.freeze() is not found: then a stand-in, in whose place the first one comes
    that steps the module's parameters."""
    import gc

    import torch

    class NotYetKnown(torch.optim.SGD):
        pass

    mine = {id(p) for p in module.parameters()}
    found = [
        one
        for one in gc.get_objects()
        if issubclass(type(one), torch.optim.Optimizer)
        and "param_groups" in vars(one)  # not one that merely forwards to it
        and any(id(p) in mine for group in one.param_groups for p in group["params"])
    ]
    if found or not mine or not gc.get_freeze_count():
        return found
    return [NotYetKnown(module.parameters(), lr=0.0)]


# --- entry points --------------------------------------------------------------------------------


def _from_environment(make) -> list:
    try:
        settings = configured()
    except ValueError as error:
        if not _has_started:
            raise
        _say_unwatched(error)
        return []
    if settings is None:
        return []
    callback = make()(config=settings)
    callback.from_environment = True
    return [callback]


def for_lightning() -> list:
    return _from_environment(lambda: _make("lightning.pytorch"))


def for_pytorch_lightning() -> list:
    return _from_environment(lambda: _make("pytorch_lightning"))


def for_fabric() -> list:
    return _from_environment(lambda: FabricCallback)
