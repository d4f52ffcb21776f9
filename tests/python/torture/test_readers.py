# Promise E3: whoever reads while a training goes on sees whole records, a prefix that only grows.
import contextlib
import shutil

import numpy as np
import pytest

import trainmon
from long_form import campaign, how_often

PATIENCE = 50  # readings of one run
WHOLE = 12  # rows of a step of chain_run.py


def prefix(table, before):
    """The steps of which all rows are there; `before`: those that an earlier reading saw."""
    assert table.damage == []
    seq = np.sort(np.asarray(table["seq"]))
    assert seq.tolist() == list(range(1, len(seq) + 1)), "a hole or a repeat"
    steps, counts = np.unique(np.asarray(table["step"]), return_counts=True)
    assert steps.tolist() == list(range(len(steps)))
    assert set(counts[:-1].tolist()) <= {WHOLE}
    assert len(seq) >= before, "rows that an earlier reading had are gone"
    return len(seq)


@pytest.mark.filterwarnings("ignore:incomplete:RuntimeWarning")
def test_each_reading_beside_a_writer_is_a_consistent_prefix(tmp_path, chains):
    readings, most = how_often(short=8, long=1000), 0
    what = "readings of a run that a training writes to, each a prefix that holds the one before"
    with campaign("readers", what, "readings") as count:
        while count.done < readings:
            run = tmp_path / "run"
            job = {"out": str(run), "checkpoint": str(tmp_path / "none"), "flush_seconds": 0.002}
            job["segment_mb"] = 0.01  # new segments come and go under the readers
            with chains.beside(job, kill_after=2.0) as life:
                seen, again = 0, 0
                while not life(0) and (again < PATIENCE or seen <= WHOLE):
                    with contextlib.suppress(FileNotFoundError):  # not yet
                        table = trainmon.read_table(str(run))
                        seen, again = prefix(table, seen), again + 1
                        count.done += 1
            most = max(most, seen)
            shutil.rmtree(run)
            (tmp_path / "none").unlink(missing_ok=True)
    assert most > WHOLE
