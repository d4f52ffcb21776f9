# What the tests of torture/ share: how often each goes round, and the line that tells what it did.
"""`make torture` sets TRAINMON_WHOLE to 1, for the long form of each (0.1: a tenth of it), and
TRAINMON_CAMPAIGN to the file that scripts/reliability_doc.py takes figures from."""

import contextlib
import json
import os
import random
import time


def how_often(short, long):
    """`short`, or as much of `long` as TRAINMON_WHOLE says, and never less than `short`."""
    return max(short, round(long * float(os.environ.get("TRAINMON_WHOLE") or 0)))


def dice(name):
    """Random numbers of a seed that is printed, so that pytest shows it when a test fails."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"{name}: seed {seed}")
    return random.Random(seed)


class Count:
    def __init__(self):
        self.done = 0
        self.failures = []

    def fail(self, what):
        self.failures.append(what)


@contextlib.contextmanager
def campaign(name, what, unit):
    """Gives a Count to fill, appends its line, and fails if it has failures."""
    began = time.monotonic()
    count = Count()
    try:
        yield count
    except BaseException as error:
        count.fail(repr(error))
        raise
    finally:
        tell(name, what, unit, count, time.monotonic() - began)
    assert not count.failures, f"{len(count.failures)} of {count.done}: {count.failures[:5]}"
    assert count.done


def tell(name, what, unit, count, seconds):
    if not (path := os.environ.get("TRAINMON_CAMPAIGN")):
        return
    line = {
        "campaign": name,
        "what": what,
        "count": count.done,
        "unit": unit,
        "failures": len(count.failures),
        "seconds": round(seconds, 1),
    }
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
