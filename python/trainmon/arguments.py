# What the commands written in Python share: which rows are meant, what is said, how they end.
from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from trainmon import _core, reading
from trainmon.base.names import visible
from trainmon.checks.selection import texts

# As of the C++ commands.
OK, USAGE, PARTIAL, INTERNAL, INTERRUPTED = 0, 2, 3, 70, 130


class UsageError(Exception):
    """What was asked for cannot be done; the text says what could."""


def add_selection(parser: argparse.ArgumentParser, runs: str | None = None) -> None:
    if runs is None:
        parser.add_argument("run", metavar="RUN", help="run directory (`out` of trainmon.watch)")
    else:
        parser.add_argument("run", metavar="RUN", nargs="+", help=runs)
    parser.add_argument("-q", "--quiet", action="store_true", help="no remarks on stderr")
    which = parser.add_argument_group("which rows")
    add = which.add_argument
    add(
        "--kind",
        "--kinds",
        action="append",
        metavar="KIND",
        help="kind or group of kinds (repeatable)",
    )
    add("--name", "--include", action="append", metavar="PATTERN", help="name pattern (repeatable)")
    add("--exclude", action="append", metavar="PATTERN", help="names left out (repeatable)")
    add("--rank", "--ranks", action="append", type=int, metavar="N", help="rank (repeatable)")
    add("--steps", metavar="A:B", help="A:B (inclusive), A:, :B or A")
    add("--all-restarts", action="store_true", help="also rows that a restart replaced")
    add("--merged", action="store_true", help="merge shards over ranks (then rank is -1)")


def selection(options: argparse.Namespace) -> dict:
    """The options as keyword arguments of trainmon.read_table."""
    return {
        "kinds": options.kind,
        "include": options.name,
        "exclude": options.exclude,
        "ranks": options.rank,
        "steps": _steps(options.steps),
        "all_restarts": options.all_restarts,
        "merged": options.merged,
    }


def _steps(text: str | None) -> tuple[int | None, int | None] | None:
    if text is None:
        return None
    first, colon, last = text.partition(":")
    try:
        ends = [int(end) if end else None for end in (first, last if colon else first)]
    except ValueError:
        ends = [None, None]
        colon = ""
    if ends == [None, None] and colon != ":":
        raise UsageError(f"--steps: {text!r} is not A:B, A:, :B or A with whole numbers")
    if None not in ends and ends[1] < ends[0]:
        raise UsageError(f"--steps: {text} ends before it begins")
    return ends[0], ends[1]


class Reader:
    """Reads runs and remembers whether anything was missing or unusable; says each thing once."""

    def __init__(self, program: str, quiet: bool = False):
        self.program = program
        self.quiet = quiet
        self.exit_code = OK
        self._said = set()

    def say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            print(f"{self.program}: {visible(text)}", file=sys.stderr)

    def remark(self, text: str) -> None:
        """What is worth knowing and no fault."""
        if not self.quiet:
            self.say(text)

    def __call__(self, run: str, **arguments) -> reading.RunTable:
        return self.heard(lambda: reading.read_table(run, **arguments))

    def heard(self, read: Callable[[], Any]) -> Any:
        """What `read` gives. Its warnings are said, and a fault of its arguments is a UsageError."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                found = read()
            except (OSError, ValueError, TypeError) as error:
                raise UsageError(str(error)) from None
        for warning in caught:
            self.exit_code = PARTIAL
            self.say(str(warning.message))
        return found

    def attempt(self, work: Callable[[], Any]) -> Any:
        """What `work` gives. Ends the program where it cannot be done, and says why."""
        try:
            return work()
        except (UsageError, OSError, ValueError) as error:
            why, code = str(error), USAGE
        except MemoryError:
            why, code = "there is not enough memory; nothing was written", INTERNAL
        except KeyboardInterrupt:
            why, code = "interrupted; nothing was written", INTERRUPTED
        self.say(why)
        sys.exit(code)


def taken(present: list[str], asked: str | Iterable[str] | None) -> list[str]:
    """Those of the kinds of a run that kinds and groups take; all where none are asked for."""
    names = texts("kinds", asked)
    selected = _core.kind_selected
    return [k for k in present if selected(k.encode("utf-8", "surrogateescape"), names)]


def what_there_is(run: str, arguments: dict, reader: Reader) -> str:
    """For an answer that came out empty: what the run holds."""
    rest = {"all_restarts": arguments.get("all_restarts", False)}
    table = reader(run, stats=[], **rest)
    kinds = arguments.get("kinds")
    if kinds and not taken(table.distinct("kind"), kinds):
        return (
            f"no row matches; {run} has kinds {_listed(table.kinds)}, ranks {_listed(table.ranks)}"
        )
    if kinds:
        table = reader(run, stats=[], kinds=kinds, **rest)
    names = table.distinct("name")
    steps = table["step"]
    span = f", steps {steps.min()} to {steps.max()}" if len(steps) else ""
    return (
        f"no row matches; {run} has kinds {_listed(table.kinds)}, "
        f"ranks {_listed(table.ranks)}{span}, names {_listed(names)}"
    )


def _listed(values: list, count: int = 12) -> str:
    shown = ", ".join(str(value) for value in values[:count])
    return shown + (f" and {len(values) - count} more" if len(values) > count else "") or "none"
