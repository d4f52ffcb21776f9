"""The files that W&B writes offline, which `wandb sync` sends: records of its own format, decoded with
its own classes."""

from __future__ import annotations

import json
import struct
import time
from collections import Counter

import numpy as np
from pushes import OF_NOW, expected, killed_again_and_again, push, same, write, write_restarted
from wandb.proto.wandb_internal_pb2 import Record

OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
BLOCK, HEADER = 32768, 7  # of the log format of LevelDB, behind 7 bytes that name the file


def records(path):
    """Whole ones; W&B's Python has no reader of its files any more."""
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    at, parts = HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        if kind == 0 or at + HEADER + size > len(data):
            return
        parts += data[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


class Files:
    def __init__(self, folder):
        self.steps, self.copies, self.alerts, self.summary, ids = {}, Counter(), [], {}, {}
        for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
            for record in records(path):
                kind = record.WhichOneof("record_type")
                if kind == "run":
                    restart = int(record.run.display_name.partition(" restart ")[2] or 0)
                    assert ids.setdefault(restart, record.run.run_id) == record.run.run_id
                    assert record.run.project == "trainmon" and record.run.run_group == "run"
                elif kind == "history":
                    items = {
                        i.key or ".".join(i.nested_key): json.loads(i.value_json)
                        for i in record.history.item
                    }
                    place = (restart, items.pop("_step"))
                    values = {k: float(v) for k, v in items.items() if k[0] != "_"}
                    sure = {k: v for k, v in values.items() if not k.endswith(OF_NOW)}
                    before = self.steps.setdefault(place, sure)
                    np.testing.assert_equal(before, sure, "twice, and not the same")
                    self.copies[path, place] += 1
                elif kind == "alert":
                    self.alerts.append(record.alert.text)
                elif kind == "summary":
                    for item in record.summary.update:
                        self.summary[item.key or ".".join(item.nested_key)] = item.value_json


def test_what_was_pushed_and_the_verdict(tmp_path):
    run = tmp_path / "run"
    write_restarted(run)
    assert "18 steps sent" in push(run, "--to", "wandb", **OFFLINE)
    files = Files(tmp_path)
    assert same(files.steps, run) and max(files.copies.values()) == 1
    (alert,) = files.alerts
    assert "step 7" in alert and "layers.2.weight" in alert
    assert alert in json.loads(files.summary["trainmon/verdict"])
    assert "0 steps sent" in push(run, "--to", "wandb", **OFFLINE)
    assert same(Files(tmp_path).steps, run)


def test_killed_at_any_time_every_step_is_there(tmp_path):
    run = tmp_path / "run"
    killed_again_and_again(run, "--to", "wandb", times=6, within=4.0, **OFFLINE)
    count = len(expected(run))
    for _ in range(300):  # its service outlives a push that was killed, and writes what it has
        files = Files(tmp_path)
        if len(files.steps) == count:
            break
        time.sleep(0.1)
    # What was sent again has the same steps and values, in a file of its own.
    assert count == 240 and same(files.steps, run) and max(files.copies.values()) == 1


def test_without_a_key_it_says_what_is_missing(tmp_path):
    write(tmp_path / "run", steps=3).stop()
    environment = {"WANDB_MODE": "online", "WANDB_API_KEY": "", "HOME": str(tmp_path)}
    said = push(tmp_path / "run", "--to", "wandb", code=3, **environment)
    assert "did not take steps 0 to 2" in said and "Traceback" not in said
