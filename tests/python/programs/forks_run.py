# Forks a watched process at the very moments in which another thread of it holds a lock of ours.
"""forks_run.py OUT FORKS LIBRARY: FORKS for each place of our code that locks. Prints a JSON object. LIBRARY is
test_forks.py's, which is preloaded, too: a thread that has just locked waits in it until the fork is over."""

import ctypes
import json
import os
import sys
import threading
import time

import torch

import children
import trainmon

OUT, FORKS, LIBRARY = sys.argv[1], int(sys.argv[2]), sys.argv[3]
HANGS_AFTER = 60.0
library = ctypes.CDLL(LIBRARY)
over = is_child = False


class Scale(torch.nn.Module):
    """No matrix is multiplied: the libraries that do it have locks of their own, which no fork respects. Nor does
    a child compute with a weight, for torch locks each tensor that autograd knows."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4,), 0.5))

    def forward(self, given):
        return given * (0.5 if is_child else self.weight)


def training():
    model = torch.nn.Sequential(Scale(), Scale())
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def backward(model):
    (model(torch.ones(2, 4)) - 1.0).square().mean().backward()


def go_on(model, optimizer, monitor):
    while not over:
        backward(model)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)  # no gradient is replaced while a process is forked
        time.sleep(0.001)


def ask(monitor):
    while not over:
        monitor.flush(1.0)
        monitor.health()
        monitor.latest()
        time.sleep(0.0005)


def child(model, optimizer, monitor):
    """Whatever a forked process may do with the objects it got."""
    global is_child
    is_child = True
    optimizer.zero_grad(set_to_none=True)  # step() has hooks, and no weight to move
    with torch.no_grad():
        model(torch.ones(2, 4))
        optimizer.step()
    monitor.log(loss=2.0)
    monitor.flush(0.05)
    monitor.health()
    monitor.latest()
    monitor.stop()
    os._exit(0)


def fork_often(given):
    """By place, how many forks there were while a thread was there; and how children ended."""
    forks, ends, idle = {}, {}, 0
    while idle < 40:
        place = library.wait_for_holder(FORKS, 30)
        idle += 1
        if place < 0:
            continue
        pid = os.fork()
        if pid == 0:
            library.leave_locks_alone()
            child(*given)
        if library.release():  # it held the lock all the time
            forks[place] = forks.get(place, 0) + 1
            idle = 0
        end = children.ended(pid, HANGS_AFTER)
        ends[str(end)] = ends.get(str(end), 0) + 1
    return forks, ends


def main():
    global over
    torch.set_num_threads(1)
    model, optimizer = training()
    monitor = trainmon.watch(
        model, optimizer, kinds=["grads", "weights"], every=1, out=OUT, flush_seconds=0.002, stop_timeout_seconds=30,
        recorder_mb=1, sinks=["log", "csv"], retention_mb=2, segment_mb=0.5,
    )  # fmt: skip
    given = (model, optimizer, monitor)
    backward(model)
    threads = [
        threading.Thread(target=go_on, args=given),
        threading.Thread(target=ask, args=(monitor,)),
    ]
    for thread in threads:
        thread.start()
    forks, ends = fork_often(given)
    over = True
    for thread in threads:
        thread.join()
    health = monitor.stop()
    print(json.dumps({"forks": forks, "ends": ends, "health": health}))


main()
