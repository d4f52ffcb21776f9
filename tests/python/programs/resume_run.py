# A training that is resumed from a checkpoint, and killed in its first step.
"""resume_run.py PART OUT CHECKPOINT; PART is "first", or where the optimizer's state is loaded: "before"
or "after" watch()."""

import os
import pathlib
import signal
import sys
import time

import torch

import models
import trainmon

STEPS = 5


def is_written(directory):
    """Whether rows are on the disk: nothing of the monitor is asked, that could write its files."""
    return any(
        b"tmFR" in content[content.find(b"tmFR") + 4 :]  # the first frame holds no rows
        for content in (p.read_bytes() for p in pathlib.Path(directory).rglob("*.tmlog"))
    )


def main():
    part, out, checkpoint = sys.argv[1:]
    torch.set_num_threads(1)
    models.seed(3)
    model = models.build("gpt")
    optimizer = torch.optim.AdamW(model.parameters())

    def load():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    if part == "before":
        load()
    monitor = trainmon.watch(
        model,
        optimizer,
        kinds=["grads", "activations"],
        every=1,
        out=out,
        flush_seconds=3600.0,
    )
    if part == "after":
        load()

    def heal(*_):
        """Before it does harm; gradients of activations have seen the NaN."""
        for parameter in model.parameters():
            parameter.grad.nan_to_num_()

    optimizer.register_step_pre_hook(heal)
    for step in range(STEPS):
        data, target = models.draw("gpt")
        loss = models.loss_of(model(data), target)
        if part == "first" and step == 0:
            loss = loss * float("nan")
        loss.backward()
        while part != "first":
            if is_written(pathlib.Path(out, "rank_00000", "restart_0001")):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.01)
        optimizer.step()
        optimizer.zero_grad()
    monitor.stop()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)


if __name__ == "__main__":
    main()
