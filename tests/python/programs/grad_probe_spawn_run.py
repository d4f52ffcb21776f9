# Two processes that know of no rank yet make a gradient probe each in one directory.
"""grad_probe_spawn_run.py OUT: files ended0 and ended1 say how it went."""

import os
import pathlib
import sys

import torch
import torch.multiprocessing

import trainmon


def probe(index, out, barrier):
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    model = torch.nn.Linear(3, 2)
    barrier.wait()
    try:
        with trainmon.GradProbe(model, out=out) as made:
            ended = f"wrote {made.rank}"
            barrier.wait()
    except RuntimeError as error:
        ended = f"refused: {error}"
        barrier.wait()
    pathlib.Path(out, f"ended{index}").write_text(ended)


if __name__ == "__main__":
    barrier = torch.multiprocessing.get_context("spawn").Barrier(2)
    torch.multiprocessing.spawn(probe, (sys.argv[1], barrier), nprocs=2)
