# Two ranks train with a flight recorder and reduce their gradients; one of them does not follow.
"""flight_run.py OUT CASE: whole, sleeps, other_call, killed, waits, receives, anew. The last steps of rank 1 differ
from step 3 on."""

import os
import pathlib
import signal
import sys
import time

import torch
import torch.distributed as dist

import launch
import trainmon

OUT, CASE = sys.argv[1:]
STEPS, ODD_STEP = 6, 3
rank, ranks = launch.join()
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
monitor = trainmon.watch(model, optimizer, out=OUT, recorder_mb=1, every=100)
half = dist.new_group([0])  # rank 1 is not in it
used = None
if CASE == "anew":  # after calls of one rank alone, of a group with the name of a later one
    for _ in range(5 if rank == 0 else 0):
        dist.barrier(group=half)
    dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()
    os.environ["MEETING_POINT"] += ".anew"
    launch.join()
    used, half = dist.new_group([0, 1]), dist.new_group([0])
for step in range(STEPS):
    is_odd = rank == 1 and step == ODD_STEP
    loss = model(torch.full((2, 8), float(step + rank))).sum()
    loss.backward()
    if step == ODD_STEP and rank == 0 and CASE == "receives":
        operation = dist.P2POp(dist.irecv, torch.empty(4), 1)
        for work in dist.batch_isend_irecv([operation]):
            work.wait()
    if is_odd and CASE in ("sleeps", "receives", "anew"):
        pathlib.Path(OUT, "odd").touch()
        time.sleep(600)
    if is_odd and CASE == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    for parameter in model.parameters():
        if is_odd and CASE == "other_call":
            pathlib.Path(OUT, "odd").touch()
            dist.broadcast(parameter.grad, src=0)
        elif CASE == "waits":
            if is_odd:
                pathlib.Path(OUT, "odd").touch()
                time.sleep(600)
            dist.all_reduce(parameter.grad, async_op=True).wait()
        else:
            dist.all_reduce(parameter.grad, group=used)
    if rank == 0:
        dist.barrier(group=half)
    optimizer.step()
    optimizer.zero_grad()
    monitor.log(loss=loss.item())
monitor.stop()
dist.destroy_process_group()
