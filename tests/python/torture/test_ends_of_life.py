# Promise 2 at the end of a process: it ends when and as it would have ended without a monitor.
import shutil
import signal

import numpy as np
import pytest

import ends_run
import trainmon
from long_form import campaign, dice, how_often
from warm import Warm

SIGNALS = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM}
ENDINGS = [*(ending.__name__ for ending in ends_run.ENDINGS), *SIGNALS]
CODES = {
    "exception": 1, "exception_in_with": 1, "sys_exit": 3, "os_exit": 4,
    "interrupt": -signal.SIGINT, "terminate": -signal.SIGTERM,
}  # fmt: skip
LOSE_THE_LAST_FLUSH = {"os_exit", "terminate"}


def check(out, ending):
    """Every step before the end is there, and no sequence number is missing."""
    if ending in LOSE_THE_LAST_FLUSH and not any(out.rglob("*.tmlog")):
        return
    table = trainmon.read_table(str(out))
    assert table.damage == []
    seq = np.sort(np.asarray(table["seq"]))
    assert seq.tolist() == list(range(1, len(seq) + 1))
    steps = set(table["step"].tolist())
    assert steps == set(range(len(steps)))
    assert ending in LOSE_THE_LAST_FLUSH or len(steps) >= ends_run.STEPS


@pytest.mark.filterwarnings("ignore:incomplete:RuntimeWarning")
def test_a_process_ends_as_without_a_monitor(tmp_path):
    lives, numbers = how_often(short=3, long=1000), dice("ends")
    # The one that aborted comes first, the others in any order.
    order = sorted(ENDINGS, key=lambda e: (e != "in_the_middle_of_a_flush", numbers.random()))
    bare = {}
    what = "a process ends: normally, by exceptions, exits and signals, with threads and flushes under way"
    with campaign("ends_of_life", what, "ends") as count, Warm("ends_run.py", tmp_path) as warm:

        def live(ending, watched):
            job = {"ending": ending if ending not in SIGNALS else "go_on", "watched": watched}
            job["out"] = str(tmp_path / "run")
            when = {}
            if ending in SIGNALS:
                when = {"kill_after": numbers.uniform(0.0, 0.05), "number": SIGNALS[ending]}
            return warm.live(job, **when)

        for number in range(lives):
            ending = order[number % len(order)]
            if ending not in bare:
                bare[ending] = live(ending, False)
            life = live(ending, True)
            for one in (bare[ending], life):
                as_expected = one.code == CODES.get(ending, 0) and one.said == ["ready"]
                if one.hung or not as_expected or "Fatal Python" in one.err:
                    count.fail((ending, one))
            check(tmp_path / "run", ending)
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
            count.done += 1
