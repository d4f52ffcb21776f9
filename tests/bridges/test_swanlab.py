"""SwanLab's offline store, read back with its own reader. (`swanlab sync` sends such folders, those of
one run id as one run.)"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from pushes import OF_NOW, killed_again_and_again, push, same, write, write_restarted
from swanlab.proto.swanlab.record.v1.record_pb2 import Record
from swanlab.sdk.internal.core_python.store import DataStoreReader

OFFLINE = {"SWANLAB_MODE": "offline"}


class Store:
    def __init__(self, folder):
        self.steps, self.copies, self.texts, starts = {}, Counter(), [], {}
        for path in sorted(folder.glob("swanlog/run-*/*.swanlab")):
            if path.stat().st_size == 0:  # of a push that was killed before it wrote anything
                continue
            reader = DataStoreReader()
            reader.open(path)
            for data in reader:
                record = Record.FromString(data)
                kind = record.WhichOneof("record_type")
                if kind == "start":
                    restart = int(record.start.name.partition(" restart ")[2] or 0)
                    assert starts.setdefault(restart, record.start.id) == record.start.id
                elif kind == "scalar":
                    place, value = (restart, record.scalar.step), record.scalar.value.number
                    key = record.scalar.key
                    before = self.steps.setdefault(place, {}).setdefault(key, value)
                    if not key.endswith(OF_NOW):
                        np.testing.assert_equal(before, value, "twice, and not the same")
                    self.copies[path, place, record.scalar.key] += 1
                elif kind == "media":
                    media = path.parent / "media" / "text" / record.media.value.items[0].filename
                    self.texts.append((record.media.key, media.read_text()))
            reader.close()


@pytest.mark.parametrize("mode", ["offline", "local"])
def test_what_was_pushed_and_the_verdict(tmp_path, mode):
    run = tmp_path / "run"
    write_restarted(run)
    assert "18 steps sent" in push(run, "--to", "swanlab", SWANLAB_MODE=mode)
    store = Store(tmp_path)
    assert same(store.steps, run) and max(store.copies.values()) == 1
    ((key, text),) = store.texts
    assert key == "trainmon/verdict" and "step 7" in text and "layers.2.weight" in text
    assert "0 steps sent" in push(run, "--to", "swanlab", SWANLAB_MODE=mode)
    assert same(Store(tmp_path).steps, run)


def test_killed_at_any_time_every_step_is_there(tmp_path):
    run = tmp_path / "run"
    killed_again_and_again(run, "--to", "swanlab", times=4, within=4.0, **OFFLINE)
    store = Store(tmp_path)
    # What was sent again has the same steps and values: the same points.
    assert len(store.steps) == 160 and same(store.steps, run)
    assert max(store.copies.values()) == 1


def test_without_a_key_it_says_what_is_missing(tmp_path):
    write(tmp_path / "run", steps=3).stop()
    environment = {"SWANLAB_MODE": "online", "SWANLAB_API_KEY": "", "HOME": str(tmp_path)}
    said = push(tmp_path / "run", "--to", "swanlab", code=3, **environment)
    assert "did not take steps 0 to 2" in said and "Traceback" not in said
