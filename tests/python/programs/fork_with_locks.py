# Forks while another thread holds every lock of trainmon's Python code; the child goes on with the model.
"""fork_with_locks.py OUT: prints the exit code of the child, or null where it hangs."""

import contextlib
import json
import os
import sys
import threading

import torch

import children
import trainmon
from trainmon.base import locks

HANGS_AFTER = 30.0


class Scale(torch.nn.Module):
    """A child computes with no weight, for torch locks each tensor that autograd knows."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4,), 0.5))

    def forward(self, given):
        return given * self.weight if torch.is_grad_enabled() else given * 0.5


def child(model, optimizer, monitor):
    optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        model(torch.ones(2, 4))
        optimizer.step()
    monitor.log(loss=2.0)
    monitor.stop()
    os._exit(0)


def hold_all(held, over):
    with contextlib.ExitStack() as stack:
        for lock in list(locks._made):
            stack.enter_context(lock)
        held.set()
        over.wait()


def main():
    torch.set_num_threads(1)
    model = torch.nn.Sequential(Scale(), Scale())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = trainmon.watch(model, optimizer, kinds=["grads", "actv"], every=1, out=sys.argv[1])
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    held, over = threading.Event(), threading.Event()
    thread = threading.Thread(target=hold_all, args=(held, over))
    thread.start()
    held.wait()
    pid = os.fork()
    if pid == 0:
        child(model, optimizer, monitor)
    code = children.ended(pid, HANGS_AFTER)
    over.set()
    thread.join()
    optimizer.step()
    monitor.stop()
    print(json.dumps(code))


main()
