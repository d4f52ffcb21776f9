# Promise A7: no collective of ours, whatever the ranks of a job are watched with.
import json

import launch
import trainmon


def test_ranks_make_the_calls_of_a_bare_training_and_no_other(tmp_path):
    launch.run("quiet_run.py", tmp_path, ranks=2, timeout=300)
    for rank in range(2):
        calls = json.loads((tmp_path / f"{rank}.json").read_text())
        bare = calls.pop("bare")
        # The counter sees the reductions that DDP makes in C++: one bucket each step.
        assert bare.count("allreduce") >= 6
        assert calls == dict.fromkeys(["alike", "different", "alone", "other_alone"], bare)
    ranks = {case: trainmon.read_table(str(tmp_path / case)) for case in calls}
    assert {case: set(table["rank"].tolist()) for case, table in ranks.items()} == {
        "alike": {0, 1},
        "different": {0, 1},
        "alone": {0},
        "other_alone": {1},
    }
