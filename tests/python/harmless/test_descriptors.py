"""Somebody who closes all descriptors and opens files of his own: nothing of ours is written into them."""

import json

import pytest

import launch
import trainmon

PROGRAM = """
import json, os, sys, torch, trainmon
out, sinks = sys.argv[1], sys.argv[2].split(",")
model = torch.nn.Linear(6, 4)
optimizer = torch.optim.AdamW(model.parameters())
mon = trainmon.watch(model, optimizer, every=1, out=out + "/run", sinks=sinks, flush_seconds=0.01, recorder_mb=1)
def train(steps):
    for _ in range(steps):
        model(torch.ones(2, 6)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        mon.log(loss=1.0)
    mon.flush(5)
train(30)
os.closerange(3, 200)
files = [os.open(f"{out}/own_{i}", os.O_RDWR | os.O_CREAT) for i in range(30)]
for file in files:
    os.write(file, b"mine")
train(30)
mon.stop()
for file in files:
    assert os.fstat(file).st_size == 4
"""


@pytest.mark.parametrize("sinks", ["log", "log,sqlite", "log,csv", "log,tensorboard"])
def test_files_of_the_training_stay_as_they_are(sinks, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = launch.finish(launch.start(tmp_path / "program.py", tmp_path, sinks), 120)
    assert ended.code == 0, ended.err
    for place in tmp_path.glob("own_*"):
        assert place.read_bytes() == b"mine", place.name
    assert "somebody closed" in ended.err
    health = json.loads(next(tmp_path.rglob("health.json")).read_text())
    for sink in health["sinks"]:
        dropped = sum(sink["rows_dropped"].values())
        assert sink["rows_written"] + dropped == health["rows_produced"], sink
        if sink["name"] == "sqlite":
            assert sink["rows_dropped"]["descriptor"] > 0
    assert trainmon.read_table(str(tmp_path / "run")).num_rows == health["rows_produced"]
