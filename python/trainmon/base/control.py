# Follows RUN/control.json, as the core has read it, at the boundary between two steps of the clock.
from __future__ import annotations

import json

from trainmon import _core
from trainmon.base.console import log
from trainmon.base.parts import Part
from trainmon.base.signals import pass_on

OF_HOOKS = frozenset(k["name"] for k in _core.config_keys() if k["follower"] == "hooks")
MOST_TOLD = 100  # changes that run.json lists, the newest


class ControlBase:
    """`allowed(config, rows)` raises ValueError for what must not be; `say` tells a person;
    `changed(new_hooks)` is called when a change holds."""

    def __init__(self, adapter, allowed, say, changed):
        self.adapter, self.core, self.part = adapter, adapter.core, Part(adapter.core, "control")
        self.allowed, self.say, self.changed = allowed, say, changed
        self.versions = 0  # of the file that were taken in
        self.waiting: tuple | None = None  # the change whose step has not come
        self.told: dict = {"number": 0, "changes": []}

    def begin(self) -> None:
        """A restart follows what its run was told before, from the first step."""
        self._follow(begins=True)

    def look(self) -> None:
        """A step of the clock has ended and the next one has not begun."""
        if self.waiting is None and self.core.control_versions() == self.versions:
            return
        self.when_idle(self._follow)

    def when_idle(self, act) -> None:
        act()

    def find_parameters(self) -> None:
        """Before hooks are put on again: parameters may have been replaced."""

    def _follow(self, begins: bool = False) -> None:
        if not self.part.on or self.adapter.clock is None:  # failed, or stopped since
            return
        try:
            self._take_in(begins)
        except Exception as error:
            self.part.failed(error)

    def _take_in(self, begins: bool) -> None:
        versions = self.core.control_versions()
        is_new = versions != self.versions
        if is_new:
            self.versions, self.waiting = versions, self.core.control()
        if self.waiting is None:
            return
        number, on, at, settings, config = self.waiting
        step = self.core.step(self.adapter.clock.index)
        if at is not None and step < at:
            if is_new:
                self._tell(waiting=number)
            return
        self.waiting = None
        try:
            new_hooks = self._switch(json.loads(config), on)
        except Exception as error:
            pass_on(error)
            text = f"{type(error).__name__}: {error}"
            self._tell(refused=number, why=text)
            log.warning("trainmon: change %d of control.json is not followed: %s", number, text)
            return
        change = {"number": number, "on": on, "set": json.loads(settings), "from_step": step}
        self.told["changes"] = [*self.told["changes"][1 - MOST_TOLD :], change]
        self.told.update(number=number, since_step=step)
        self._tell()
        self.changed(new_hooks)
        late = is_new and not begins and at is not None and step > at
        passed = f" (step {at} had passed)" if late else ""
        self.say(f"change {number} of control.json from step {step}{passed}: {_text(on, change)}")

    def _switch(self, config: dict, on: bool) -> bool:
        """Another configuration, or no hooks; whether there are new ones. Other optimizers than the
        clock's follow in their next window. When it raises, everything is as before."""
        adapter = self.adapter
        before, was_on = adapter.config, adapter.attached
        changed = any(config[key] != before[key] for key in OF_HOOKS)
        try:
            if changed or not (on and was_on):
                self._rehook(config, on)
            else:
                self.allowed(config, adapter.prepare(config))
        except Exception:
            self._rehook(before, was_on)
            raise
        self.core.follow(json.dumps(config))
        adapter.clock.refresh()
        return on and (changed or not was_on)

    def _rehook(self, config: dict, on: bool) -> None:
        adapter = self.adapter
        adapter.detach()
        is_whole = False
        try:
            self.find_parameters()
            self.allowed(config, adapter.prepare(config))
            if on:
                adapter.attach()
                adapter.clock.refresh()
                is_whole = True
        finally:
            if not is_whole:
                adapter.detach()

    def _tell(self, **more) -> None:
        note = {**self.told, "on": self.adapter.attached, **more}
        self.core.set_note("control", json.dumps(note))


def _text(on: bool, change: dict) -> str:
    settings = [f"{key}={json.dumps(value)}" for key, value in change["set"].items()]
    return " ".join(["on" if on else "off", *settings])
