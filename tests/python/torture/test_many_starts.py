# Promise E1: processes that begin at the same instant in one directory share no file and lose no row.
import collections
import json

import numpy as np

import launch
import trainmon
from long_form import campaign, how_often

STEPS, WHOLE = 3, 12


def test_processes_begin_in_one_directory(tmp_path):
    rounds = how_often(short=1, long=100)
    ranks = 64 if rounds > 1 else 16
    what = f"rounds of {ranks} processes that begin at the same instant in one directory"
    with campaign("many_starts", what, "rounds") as count:
        ended = launch.finish(
            launch.start("starts_run.py", tmp_path / "run", ranks, rounds), timeout=3000
        )
        assert ended.code == 0, ended.err
        assert json.loads(ended.out) == {"0": ranks * rounds}, ended.err[-3000:]
        table = trainmon.read_table(str(tmp_path / "run"), all_restarts=True)
        assert table.damage == []
        rows = collections.Counter(zip(table["rank"].tolist(), table["restart"].tolist()))
        starts = collections.Counter(rank for rank, _ in rows)
        assert starts == dict.fromkeys(range(ranks), rounds)  # each start has a directory
        assert set(rows.values()) == {STEPS * WHOLE}
        assert (np.asarray(table["seq"]) <= STEPS * WHOLE).all()
        count.done = rounds
