"""Runs written by the core through its own binding, with NumPy arrays for tensors."""

from __future__ import annotations

import json
from pathlib import Path

from trainmon import _core


class WrittenRank:
    """One rank of a run; keeps every array it observed, for the test to compare with."""

    def __init__(self, out: Path, rank: int = 0, world_size: int = 1, **config):
        config = {"out": str(out), "every": 1, **config}
        identity = {"rank": rank, "world_size": world_size, "run_id": "test"}
        self.monitor = _core.Monitor(json.dumps(config), json.dumps(identity))
        self.monitor.add_optimizer(0)
        self.directory = Path(self.monitor.directory)
        self.seen = []  # (series arguments, window, accum, call, array)

    def observe(self, array, kind, name, window, accum=0, call=0, **series):
        series = {"dtype": str(array.dtype), **series}
        number = self.monitor.add_series(kind, name, **series)
        handle = self.monitor.handle
        assert _core.observe_at(handle, number, array, window, accum, call) == 0
        self.seen.append(((kind, name, series), window, accum, call, array.copy()))

    def end_step(self, fate="taken", loss_scale=1.0):
        self.monitor.begin_attempt(0)
        self.monitor.end_attempt(0, fate, loss_scale)
        self.monitor.seal("after_step")

    def stop(self):
        self.monitor.stop()
