# What losses are multiplied by: by a GradScaler, or by the framework that a wrapper knows.
from __future__ import annotations

from trainmon.torch.steps.calls import scaler_of
from trainmon.torch.steps.optimizers import grad_scaler


class LossScale:
    def __init__(self, adapter, scaler):
        self.adapter, self.scaler = adapter, scaler

    def is_known(self) -> bool:
        """Whether losses are scaled, by somebody who is known."""
        scales = (wrapper.loss_scale() for wrapper in self.adapter.wrappers)
        return self.scaler is not None or any(scale is not None for scale in scales)

    def now(self):
        """A number, or a tensor on a device that must not be waited for."""
        if self.scaler is None:
            scales = (wrapper.loss_scale() for wrapper in self.adapter.wrappers)
            return next((scale for scale in scales if scale is not None), 1.0)
        scale = getattr(self.scaler, "_get_scale_async", lambda: None)()
        if scale is None:
            return 1.0  # nothing was scaled yet
        return float(scale) if scale.device.type == "cpu" else scale.clone()

    def look_for_scaler(self, caller) -> None:
        """`caller` runs a step(): for a GradScaler that watch() was not shown."""
        if self.is_known():
            return
        found = scaler_of(caller)
        self.scaler = None if found is None else grad_scaler(found)
        if self.scaler is not None:
            for steps in self.adapter.steps:
                steps.scales()
