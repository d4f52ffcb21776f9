"""What a spread model's rows of buffers and inputs must be, by what torch said on each rank."""

import json

import pytest

import trainmon

RANKS = 2


def check(folder, how):
    rows = trainmon.read(folder / how, kinds=["buffer", "input"], stats=["norm", "min", "max"])
    for rank in range(RANKS):
        seen = json.loads((folder / f"{how}.{rank}.json").read_text())
        own = rows[rows["rank"] == rank]
        for step, expected in enumerate(seen):
            now = own[own["step"] == step]
            buffers = now[now["kind"] == "buffer"]
            found = dict(zip(buffers["name"], buffers["norm"], strict=True))
            assert found == pytest.approx(expected["buffers"], rel=1e-12), (rank, step)
            (ids,) = now[now["kind"] == "input"].to_dict("records")
            assert ids["element"] == "input.0"
            assert [ids["min"], ids["max"]] == expected["ids"], (rank, step)
        assert len(own) == 5 * len(seen) > 0
    answer = trainmon.diagnose(folder / how)
    assert answer["findings"] == [] and answer["left_history"] is None
    assert answer["checked"]["input"] == RANKS * len(seen)
