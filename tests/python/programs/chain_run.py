# Trainings that go on from their checkpoint until somebody kills them; warm.py forks them.
"""The step says everything: step s has the same batch, gradients and weights however often it is gone
through."""

import os
import sys
import tempfile

import torch

import trainmon
import warm

SAVED_EVERY = 3  # steps
KINDS = ["grads", "weights"]


def training():
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def backward(model, step):
    numbers = torch.Generator().manual_seed(1000 + step)
    model(torch.randn(3, 4, generator=numbers)).square().sum().backward()


def step_of(model, optimizer, step):
    backward(model, step)
    optimizer.step()
    optimizer.zero_grad()


def say(*words):
    print(*words, flush=True)


def chain(out, checkpoint, **keys):
    """Each step is said when it is over; "flushed S": so far everything must outlive a kill."""
    model, optimizer = training()
    step = 0
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    say("begins", step)
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, every=1, out=out, **keys)
    while True:
        step_of(model, optimizer, step)
        say("step", step)
        step += 1
        # Whoever wants no hole after a restart writes the rows before the checkpoint.
        if step % SAVED_EVERY == 0 and monitor.flush(10.0):
            say("flushed", step - 1)
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**states, "step": step}, checkpoint + ".tmp")
            os.replace(checkpoint + ".tmp", checkpoint)
            say("saved", step)


def warm_up():
    """What watch() and the first of everything import is there for all children."""
    import trainmon.torch.adapter  # noqa: F401

    torch.set_num_threads(1)
    model, optimizer = training()
    step_of(model, optimizer, 0)
    with tempfile.NamedTemporaryFile() as file:
        torch.save(optimizer.state_dict(), file.name)
        torch.load(file.name)


def main():
    warm_up()
    if job := warm.serve():
        chain(**job)


if __name__ == "__main__":
    sys.exit(main())
