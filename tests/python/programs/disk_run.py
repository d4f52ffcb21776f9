# Trains watched while the disk misbehaves as the first argument says; prints one line of facts.
"""disk_run.py FAULT OUT. Prints JSON: health before, during and after the fault, and the losses."""

import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import threading
import time

import torch

import models
import trainmon


class Training:
    def __init__(self, out=None):
        models.seed(9)
        self.model = models.build("gpt")
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.losses, self.monitor = [], None
        if out:
            self.monitor = trainmon.watch(
                self.model,
                self.optimizer,
                kinds=["grads", "grad_unreduced", "weights", "moments", "activations"],
                every=1,
                out=str(out),
                segment_mb=0.0625,
                flush_seconds=0.1,
            )

    def steps(self, count):
        for _ in range(count):
            data, target = models.draw("gpt")
            loss = models.loss_of(self.model(data), target)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(loss.item())

    def settle(self):
        """Health once the writer has seen to everything produced, or after five seconds."""
        deadline = time.monotonic() + 5
        while self.monitor.health()["rows_pending"] and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        return self.monitor.health()


def full(out, on):
    ballast = out / "ballast"
    if not on:
        ballast.unlink()
        return
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 1024)
        except OSError:
            pass


def too_large(out, on):
    limit = 4096 if on else resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def read_only(out, on):
    """A read-only view over the directory: descriptors already open go on writing."""
    run = str(out / "run")
    steps = (["mount", "--bind", run], ["mount", "-o", "remount,bind,ro"]) if on else (["umount"],)
    for step in steps:
        subprocess.run([*step, run], check=True)


def deleted(out, on):
    if on:  # at once: the monitor makes anew what it misses, and rmtree would meet that half-way
        os.rename(out / "run", out / "gone")
        shutil.rmtree(out / "gone")


class Greedy(threading.Thread):
    """Takes every descriptor there is, also those given back later."""

    def __init__(self):
        super().__init__(daemon=True)
        self.held, self.going, self.full = [], True, threading.Event()

    def run(self):
        while self.going:
            try:
                self.held.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                self.full.set()
                time.sleep(0.0005)
        for descriptor in self.held:
            os.close(descriptor)


def no_descriptors(out, on):
    if on:
        limit = len(os.listdir("/proc/self/fd")) + 20
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, no_descriptors.hard))
        no_descriptors.greedy = Greedy()
        no_descriptors.greedy.start()
        no_descriptors.greedy.full.wait()
    else:
        no_descriptors.greedy.going = False
        no_descriptors.greedy.join()
        resource.setrlimit(resource.RLIMIT_NOFILE, (no_descriptors.hard,) * 2)


no_descriptors.hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
FAULTS = {f.__name__: f for f in (full, too_large, read_only, deleted, no_descriptors)}


def main():
    fault, out = FAULTS[sys.argv[1]], pathlib.Path(sys.argv[2])
    torch.set_num_threads(1)
    bare = Training()
    bare.steps(60)
    watched = Training(out / "run")
    report = {}
    watched.steps(20)
    report["before"] = watched.settle()
    fault(out, True)
    watched.steps(20)
    report["during"] = watched.settle()
    fault(out, False)
    watched.steps(5)
    watched.settle()
    time.sleep(1.5)  # a sink may wait before it tries again
    watched.steps(15)
    report["after"] = watched.settle()
    began = time.monotonic()
    watched.monitor.stop()
    report["stop_seconds"] = time.monotonic() - began
    report["end"] = watched.monitor.health()
    table = trainmon.read_table(str(out / "run"))
    report["read"] = [table["step"].tolist(), table["seq"].tolist()]
    report["fates"] = sorted(set(table["fate"]))
    report["gaps"] = [[gap["reason"], gap["rows"]] for gap in table.gaps]
    report["same_losses"] = bare.losses == watched.losses
    print(json.dumps(report, default=str))


if __name__ == "__main__":
    main()
