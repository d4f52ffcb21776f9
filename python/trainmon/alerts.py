# What happens on an alert: a callable or a command of the user's, on a thread of its own.
from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from trainmon.base.console import log

OnAlert = Callable[[dict[str, Any]], Any] | Sequence[str]
WAIT = 0.5  # seconds between looks at whether to end
LONGEST = 60.0  # seconds that a command may run
LEFT = 2.0  # seconds that stop() waits for alerts still being told


def checked(on_alert) -> OnAlert | None:
    """TypeError for what is neither a callable nor a command."""
    if on_alert is None or callable(on_alert):
        return on_alert
    words = isinstance(on_alert, (list, tuple)) and all(isinstance(w, str) for w in on_alert)
    if words and on_alert:
        return list(on_alert)
    raise TypeError(f"on_alert must be a callable or a command as a list of str, not {on_alert!r}")


class AlertThread:
    """Waits, without the GIL, for alerts of one monitor and hands each to `on_alert`. A callable
    gets a dict {rule, kind, name, element, chunk, step, stat, value, expected, count, message}. A
    command gets the same as JSON on its standard input. Repeats that come while one is being told
    are one alert with their count. What goes wrong here is logged once and stays here."""

    def __init__(self, core, on_alert: OnAlert):
        self.core, self.on_alert = core, on_alert
        self.is_ending = threading.Event()
        self.process = os.getpid()
        self.has_failed = False
        self.thread = threading.Thread(target=self._run, name="trainmon alerts", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.is_ending.is_set():
            self._tell(WAIT)
        self._tell(0.0)

    def _tell(self, seconds: float) -> None:
        events, untold = self.core.alerts(seconds)
        if untold:
            log.warning("trainmon: %d alerts were too many for on_alert", untold)
        for event in events:
            try:
                if callable(self.on_alert):
                    self.on_alert(event)
                else:
                    import subprocess  # rarely needed, and slow to import

                    text = json.dumps(event)
                    # Not to the training's standard output: whoever reads that waits for its end.
                    subprocess.run(
                        self.on_alert, input=text, text=True, timeout=LONGEST, check=True,
                        stdout=2 if _is_open(2) else subprocess.DEVNULL,
                    )  # fmt: skip
            except Exception as error:
                if not self.has_failed:
                    self.has_failed = True
                    log.warning("trainmon: on_alert failed: %s: %s", type(error).__name__, error)

    def finish(self) -> None:
        """After the monitor has stopped: tells what is left, but waits no longer than LEFT."""
        self.is_ending.set()
        if os.getpid() == self.process and threading.current_thread() is not self.thread:
            self.thread.join(LEFT)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
