# Two ranks train under DDP over a process group that counts every call, watched alike, otherwise, or not.
"""quiet_run.py OUT: OUT/<rank>.json has, by case, the calls that this rank made."""

import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist

import trainmon

OUT = pathlib.Path(sys.argv[1])
RANK = int(os.environ["RANK"])
STEPS = 6
calls = []


class Counting(dist.ProcessGroup):
    """gloo, and a list of what was asked of it from Python and from C++."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self._inner = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self):
        return "counting"


def counted(name):
    def call(self, *given):
        calls.append(name)
        return getattr(self._inner, name)(*given)

    return call


for function in [
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
    "_allgather_base",
    "_reduce_scatter_base",
]:
    setattr(Counting, function, counted(function))


def change(monitor, step):
    """What somebody may ask of a running monitor, on one rank alone."""
    if step == 2:
        monitor.pause()
    elif step == 3:
        monitor.resume()
    elif step == 4:
        monitor.flush(1.0)
        monitor.summary()
        monitor.health()


# Of each case what rank 0 and rank 1 are watched with; None: not.
ALL = {"kinds": "all", "every": 1, "checks": True}
CASES = {
    "bare": (None, None),
    "alike": (ALL, ALL),
    "different": (ALL, {"kinds": ["grads"], "every": 4}),
    "alone": (ALL, None),
    "other_alone": (None, {"recorder_mb": 1, "every": 2}),
}


def train(name, keys):
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    calls.clear()
    monitor = trainmon.watch(model, optimizer, out=OUT / name, **keys) if keys else None
    for step in range(STEPS):
        model(torch.full((2, 6), step + RANK + 1.0)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if monitor and RANK == 0:
            change(monitor, step)
    if monitor:
        monitor.stop()
    return list(calls)


def main():
    dist.Backend.register_backend("counting", Counting, devices=["cpu"])
    dist.init_process_group(
        "counting", init_method=os.environ["MEETING_POINT"], rank=RANK, world_size=2
    )
    found = {name: train(name, keys[RANK]) for name, keys in CASES.items()}
    pathlib.Path(OUT, f"{RANK}.json").write_text(json.dumps(found))
    os._exit(0)  # a group of Python's does not outlive its interpreter


main()
