# After the first value that is not finite, the next steps are recorded in full, whatever was asked for.
from __future__ import annotations

import json
import math
import time

from trainmon.base.parts import Part
from trainmon.torch.control import Control
from trainmon.torch.hooks.dynamo import compiles

STEPS = 8
MOST_NAMES = 1000
MORE = ("actv", "actv_grad")


class FullSteps(Control):
    """A change of what is recorded, as `trainmon ctl` makes one. It begins between two steps of
    the clock, and ends by itself or with the next change of control.json. Each rank decides for
    itself.

    An overflow that GradScaler skips is nothing to look into."""

    def __init__(self, adapter, say):
        super().__init__(adapter, lambda config, rows: None, say, None)
        self.part = Part(adapter.core, "full steps")
        self.found = False
        self.finite: set[str] = set()  # names of log()
        self.before: dict | None = None  # the configuration to go back to
        self.config: dict | None = None  # the one that holds meanwhile
        self.until = 0
        devices = {p.tensor.device.type for p in adapter.parameters}
        self.is_late = bool(devices - {"cpu"}) and not adapter.loss_scale.is_known()
        self.asked = time.monotonic()

    def window_ends(self, steps, skipped: bool) -> None:
        """Its rows are there, those of devices excepted."""
        if not (self.found or skipped):
            self.found = self.core.saw_non_finite(steps.index)

    def logged(self, name: str, value: float) -> None:
        """A loss that was finite before: the best one so far begins as infinity."""
        if math.isfinite(value):
            if len(self.finite) < MOST_NAMES:
                self.finite.add(name)
        elif name in self.finite and self.core.is_loss(name):
            self.found = True

    def look(self) -> None:
        """A step of the clock has ended and the next one has not begun."""
        if not self.part.on:
            return
        if self.until:
            if self.config is not None and self._step() >= self.until:
                self.when_idle(self._end)
            return
        if self.is_late and not self.found and time.monotonic() - self.asked > 1.0:
            self.asked = time.monotonic()
            self.found = self.core.health()["alerts"] > 0
        if self.found:
            self.when_idle(self._begin)

    def _step(self) -> int:
        return self.core.step(self.adapter.clock.index)

    def _begin(self) -> None:
        adapter = self.adapter
        if self.until or not self.part.on or adapter.clock is None:
            return
        try:
            step = self._step()
            self.until = step + STEPS
            if adapter.paused or not adapter.attached:
                return
            self.before = adapter.config
            config, how = dict(self.before), "activations included"
            if (
                config["budget"] is None
            ):  # else the governor records steps in a row, and stays itself
                config["every"] = 1
            if compiles():  # hooks would come too late, or have it compiled again
                adapter.coverage.not_covered("actv of the full steps", "torch.compile was used")
                how = "but for activations, as torch.compile was used"
            else:
                config["kinds"] = list(dict.fromkeys([*self.before["kinds"], *MORE]))
                config["modules"] = "all"
                config["sample"] = ""  # all of each tensor
            self._switch(config, True)
            self.config = adapter.config
            note = {"from_step": step, "steps": STEPS, "kinds": adapter.coverage.kinds()}
            self.core.set_note("full_steps", json.dumps(note))
            self.say(
                f"a value was not finite: {STEPS} steps from step {step} on are recorded in full, {how}"
            )
        except Exception as error:
            self.part.failed(error)

    def _end(self) -> None:
        adapter, config, self.config = self.adapter, self.config, None
        if (
            adapter.clock is None or adapter.config is not config
        ):  # stopped, or told otherwise since
            return
        try:
            self._switch(self.before, adapter.attached)
        except Exception as error:
            self.part.failed(error)
