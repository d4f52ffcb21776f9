# What `trainmon push` runs: steps of a run, chosen and read by C++, for one of the bridges beside.
from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

from trainmon import _core
from trainmon.base.console import say
from trainmon.bridges.steps import Asked, Series, Step, Target
from trainmon.reading import diagnose

BATCH = 100  # steps handed over at a time
TRIES = 5  # of a target that does not answer, without --follow
PAUSES = (1.0, 60.0)  # seconds after the first try, and at most
VERDICT_PAUSE = (
    10.0  # seconds between two verdicts, at least; and twenty times as long as one takes
)
QUIET_LOOKS = 5  # that find nothing: the end of what there is, for now
SECRET = re.compile(r"KEY|TOKEN|PASSWORD|SECRET|HEADERS|CREDENTIAL")
NAMED = 3  # tensors of a verdict
PARTIAL, INTERRUPTED, USAGE = 3, 130, 2


def redacted(text: str) -> str:
    """Without passwords of addresses, and without the values of variables that hold secrets."""
    for name, value in os.environ.items():
        if SECRET.search(name.upper()) and len(value) >= 4:
            text = text.replace(value, "***")
            for part in re.split(r"[,=\s]", value):  # headers hold several
                text = text.replace(part, "***") if len(part) >= 8 else text
    return re.sub(r"(://)[^/@\s]+@", r"\1***@", text)


def default_state(run: str, to: str, project: str) -> str:
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    whole = "\n".join((os.path.realpath(run), to, project))
    digest = hashlib.sha256(os.fsencode(whole)).hexdigest()[:16]
    return os.path.join(home, "trainmon", "push", f"{to}-{digest}")


def verdict_text(finding: dict) -> str:
    ranks = (" or " if finding["one_of_ranks"] else " ").join(map(str, finding["ranks"][:8]))
    parts = [f"step {finding['step']}", finding["stage"], f"rank {ranks}"]
    parts += finding["tensors"][:NAMED]
    if (more := len(finding["tensors"]) - NAMED) > 0:
        parts.append(f"and {more} more tensors")
    return f"{', '.join(parts)}: {finding['text']}"


class Forgotten(Exception):
    """The target may have lost what it was sent and had not settled."""


class Push:
    """One run, one target. `stop` is set by Ctrl-C."""

    def __init__(self, asked: argparse.Namespace, target: Target, stop: threading.Event):
        self.asked, self.target, self.stop = asked, target, stop
        self.verdict_due = 0.0
        self.is_partial = False
        self.times_forgotten = 0
        self.begin()

    def begin(self) -> None:
        """Behind the steps that are settled."""
        asked, newest_only = self.asked, self.target.newest_only
        state = asked.state or default_state(asked.run, asked.to, asked.project)
        self.steps: Any = None  # which holds the folder of the position
        self.steps = _core.PushedSteps(
            os.fsencode(asked.run),
            asked.series,
            asked.rank,
            newest_only,
            None if newest_only else os.fsencode(state),
        )
        self.series: list[Series] = []
        self.last: Step | None = None  # that was sent
        self.sent = 0
        self.unsettled = 0.0  # when the first of the steps was sent that are not settled; 0: none
        self.verdict = self.steps.verdict
        self.is_refused = False  # something, and nobody waits any longer

    def run(self) -> int:
        while True:
            try:
                return self.push()
            except Forgotten:
                self.begin()

    def push(self) -> int:
        quiet_looks = 0
        while not self.stop.is_set():
            found = self.look()
            if found:
                quiet_looks = 0
                if not self.deliver(lambda steps=found: self.target.send(steps), found):
                    return self.end()
                self.sent, self.last = self.sent + len(found), found[-1]
                self.unsettled = self.unsettled or time.monotonic()
            if not found and not self.say_verdict():
                return self.end()
            if not self.settle(is_idle=not found):
                return self.end()
            if found:
                continue
            quiet_looks += 1
            if not self.asked.follow and (self.steps.is_over or quiet_looks >= QUIET_LOOKS):
                return self.end()
            self.stop.wait(self.asked.interval)
        return self.end()

    def look(self) -> list[Step]:
        found = self.steps.look(BATCH)
        for file, at, what in self.steps.damage():
            self.is_partial = True
            say(f"trainmon: not used: {file} at byte {at}: {what}")
        self.series += [Series(*one) for one in self.steps.series_from(len(self.series))]
        return [
            Step(*place, [(self.series[number], value) for number, value in values])
            for *place, values in found
        ]

    def deliver(self, call: Callable[[], None], steps: list[Step]) -> bool:
        """False where the target did not take it, and nobody waits any longer."""
        first, most = PAUSES
        pause = min(first * 2**self.times_forgotten, most)
        what = f"steps {steps[0].number} to {steps[-1].number}" if steps else "what it was sent"
        for attempt in range(1, sys.maxsize):
            try:
                call()
                return True
            except Exception as error:
                text = redacted(f"{type(error).__name__}: {error}").strip().splitlines()[0]
                is_last = attempt == TRIES and not self.asked.follow
                then = "no further try" if is_last else f"next try in {pause:g} s"
                say(f"trainmon: {self.asked.to} did not take {what}: {text}; {then}")
                if is_last or self.stop.wait(pause):
                    break
                if self.unsettled and self.target.forgets:
                    self.times_forgotten += 1
                    if self.asked.follow or self.times_forgotten < TRIES:
                        raise Forgotten from None
                    break
                pause = min(2 * pause, most)
        self.is_refused = True
        return False

    def settle(self, is_idle: bool) -> bool:
        """Moves the position behind what was sent, as soon as the target allows it."""
        if not self.unsettled:
            return True
        waited = time.monotonic() - self.unsettled
        is_end = is_idle and not self.asked.follow
        if waited < self.target.settle_seconds and not is_end and not self.stop.is_set():
            return True
        if not self.deliver(self.target.settle, []):
            return False
        self.unsettled = 0.0
        self.steps.done(self.verdict)
        return True

    def say_verdict(self) -> bool:
        """Says what diagnose finds, of steps that came since it last looked."""
        last = self.last
        if self.asked.no_verdict or last is None or time.monotonic() < self.verdict_due:
            return True
        begin = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damage, which is said already
            found = diagnose(self.asked.run)["verdict"]
        took = time.monotonic() - begin
        self.verdict_due = time.monotonic() + max(VERDICT_PAUSE, 20 * took)
        if found is None:
            return True
        text = verdict_text(found)
        if text == self.verdict:
            return True
        if not self.deliver(lambda: self.target.say_verdict(text, last), [last]):
            return False
        self.verdict = text
        self.unsettled = self.unsettled or time.monotonic()
        return True

    def end(self) -> int:
        # Steps that were read and refused must not count as sent.
        if self.unsettled and self.stop.is_set() and not self.is_refused:
            self.settle(is_idle=True)
        is_over = self.steps.is_over and not (self.is_partial or self.is_refused)
        if not self.deliver(lambda: self.target.close(is_over), []):
            return PARTIAL
        for sentence in self.steps.expired():
            say(f"trainmon: {sentence}")
        for sentence in self.steps.incomplete():
            self.is_partial = True
            say(f"trainmon: incomplete: {sentence}")
        if self.steps.late:
            self.is_partial = True
            say(f"trainmon: {self.steps.late} rows came after their step was sent")
        if not self.asked.quiet:
            left = [f"{count} of {family}" for family, count in self.steps.left_out.items()]
            say(
                f"{self.sent} steps sent, {len(self.series)} series; left out: "
                + (f"{', '.join(left)} (--series {self.asked.series})" if left else "none")
            )
        if self.stop.is_set() and not self.asked.follow:
            return INTERRUPTED
        return PARTIAL if self.is_partial or self.is_refused else 0


def interruptible() -> threading.Event:
    """Set by Ctrl-C and SIGTERM; a second one ends what is being waited for."""
    stop = threading.Event()

    def called_off(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    signal.signal(signal.SIGINT, called_off)
    signal.signal(signal.SIGTERM, called_off)
    return stop


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="trainmon push")
    parser.add_argument("run")
    parser.add_argument("--to", required=True)
    parser.add_argument("--project", default="trainmon")
    parser.add_argument("--state")
    parser.add_argument("--series", type=int, default=100)
    parser.add_argument("--rank", type=int, action="append", default=[])
    parser.add_argument("--port", type=int, default=9464)
    parser.add_argument("--interval", type=float, default=0.5)
    for flag in ("--follow", "--no-verdict", "--quiet"):
        parser.add_argument(flag, action="store_true")
    asked = parser.parse_args(arguments)
    stop = interruptible()
    os.nice(10)  # training comes first
    try:
        bridge = importlib.import_module(f"trainmon.bridges.{asked.to}").Bridge
        if bridge.newest_only and not asked.follow:
            raise ValueError(f"--to {asked.to} serves the newest values while it runs: it needs -f")
        name = os.path.basename(os.path.realpath(asked.run)).encode(errors="replace").decode()
        push = Push(asked, bridge(Asked(name, asked.project, asked.port)), stop)
        if asked.follow and not asked.quiet:
            say("following; Ctrl-C ends")
        return push.run()
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ModuleNotFoundError, ValueError, OSError, RuntimeError) as error:
        say(f"trainmon: {redacted(str(error))}")
        return USAGE


if __name__ == "__main__":
    sys.exit(main())
