# Trains, reads and converts what is sound and what is damaged, and tells of everything that was executed or opened.
"""opened_run.py DAMAGED OUT: writes OUT/events.json, the audit events of Python while a run was written and
all readers ran over everything; and what such an event looks like."""

import contextlib
import io
import json
import pathlib
import pickle
import shutil
import socket
import sys
import warnings

import torch

import trainmon

TELLING = ("exec", "compile", "pickle.", "marshal.", "socket.", "os.system", "os.exec", "os.posix_spawn", "os.fork",
           "subprocess.", "ctypes.", "shutil.unpack", "urllib.", "http.")  # fmt: skip
KINDS = {"log": "log", "csv": "csv", "sqlite": "sqlite", "run_json": "log", "health_json": "log"}


def train(out):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    sinks = ["log", "csv", "sqlite", "tensorboard"]
    keys = {"kinds": "all", "checks": True, "every": 1, "recorder_mb": 1, "sinks": sinks}
    with trainmon.watch(model, optimizer, out=str(out), **keys) as monitor:
        for step in range(4):
            value = float("nan") if step == 3 else 1.0
            model(torch.full((2, 4), value)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.log(loss=value)


def damaged_runs(place, out):
    """Each damaged file in a run of its own, beside sound ones, and its format."""
    for kind, cases in json.loads((place / "expected.json").read_text()).items():
        if kind not in KINDS:
            continue
        for name, case in cases.items():
            run = out / kind / name
            folder = run / "rank_00000" / "restart_0000"
            folder.mkdir(parents=True)
            for file in (place / "base").iterdir():
                shutil.copyfile(file, folder / file.name)
            for target, source in case["files"].items():
                (folder / target).unlink(missing_ok=True)
                if source:
                    shutil.copyfile(place / source, folder / target)
            yield run, KINDS[kind]


def read(run, format, out):
    """How many of the readers gave an answer."""
    answers = 0
    for call in (
        lambda: trainmon.read_table(run).num_rows,
        lambda: trainmon.diagnose(run),
        lambda: trainmon.first_bad(run),
        lambda: trainmon.top(run),
        lambda: trainmon.query(run, "SELECT count(*) FROM stats"),
        lambda: trainmon.report(run).save(out / "page.html"),
        *(
            lambda to=to: trainmon.convert(run, out / to, to, format=format, overwrite=True)
            for to in ("csv", "jsonl", "sqlite", "tensorboard", "msprobe_db")
        ),
    ):
        with contextlib.suppress(RuntimeError, ValueError, OSError, TypeError):
            call()
            answers += 1
    return answers


class Event:
    """What is seen while `within` says what is going on; an audit hook cannot be taken off."""

    def __init__(self):
        self.seen, self.within = [], None
        sys.addaudithook(self)

    def __call__(self, name, given):
        if self.within and name.startswith(TELLING):
            self.seen.append((self.within, name, repr(given)[:200]))


def main():
    warnings.simplefilter("ignore")
    place, out = map(pathlib.Path, sys.argv[1:])
    runs = list(damaged_runs(place, out))
    train(out / "first")  # imports are over after it
    made = out / "made"  # a conversion refuses what lies inside of the run
    made.mkdir()
    read(out / "first", "auto", made)
    event = Event()
    event.within = "train"
    train(out / "run")
    event.within = "read"
    assert read(out / "run", "auto", made) == 11
    for run, format in runs:
        event.within = f"read {run.parent.name}/{run.name}"
        read(run, format, made)
    event.within = "control"
    pickle.load(io.BytesIO(pickle.dumps(pathlib.Path)))
    eval("1")
    socket.socket().close()
    event.within = None
    found = {"runs": len(runs), "events": event.seen}
    (out / "events.json").write_text(json.dumps(found))


main()
