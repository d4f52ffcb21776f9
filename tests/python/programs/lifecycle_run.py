# One short watched training that ends the way its first argument says.
"""lifecycle_run.py ENDING OUT; prints "step N" after each step, so that a parent can act."""

import contextlib
import os
import random
import signal
import sys
import threading
import time

import torch

import models
import trainmon

STEPS = 12


def say(text):
    print(text, flush=True)


class Text(torch.utils.data.Dataset):
    """Each item comes from a worker process, which itself runs the watched model."""

    def __init__(self, model=None):
        self.model = model

    def __len__(self):
        return 2 * STEPS

    def __getitem__(self, index):
        ids, target = models.text_batch(1)
        if self.model is not None:
            self.model(ids)
        return ids[0], target[0]


def step_of(model, optimizer, data):
    ids, target = data
    models.loss_of(model(ids), target).backward()
    optimizer.step()
    optimizer.zero_grad()


class Boom(Exception):
    pass


def fail_in_backward(model):
    def hook(gradient):
        raise Boom("in backward")

    model.tokens.register_forward_hook(lambda m, a, out: out.register_hook(hook) and None)


def worker_data(model, ending):
    context = "fork"
    dataset = Text(model if ending == "workers_use_model" else None)
    return torch.utils.data.DataLoader(
        dataset, batch_size=2, num_workers=2, multiprocessing_context=context
    )


def fork_in_step(model, optimizer, number):
    """Children that use the watched objects and end in three ways."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            step_of(model, optimizer, models.text_batch())
            code = 0
        finally:
            if number % 3 == 0:
                os._exit(code)
            sys.exit(code) if number % 3 == 1 else os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    ended = os.waitstatus_to_exitcode(status)
    assert ended in (0, -signal.SIGKILL), f"child ended with {ended}"


def main():
    ending, out = sys.argv[1:]
    torch.set_num_threads(1)
    models.seed(5)
    model = models.build("gpt")
    optimizer = torch.optim.AdamW(model.parameters())
    if ending == "closed_stderr":  # as in `2>&-`: the next file that is opened gets its descriptor
        sys.stderr = None
        os.close(2)
    monitor = trainmon.watch(
        model,
        optimizer,
        kinds=["grads", "grad_unreduced", "weights", "moments", "activations"],
        every=1,
        out=out,
    )
    say("watching")
    loader = worker_data(model, ending) if ending.startswith("workers") else None
    data = iter(loader) if loader else (models.text_batch() for _ in range(10**9))
    if ending == "daemon_thread":
        threading.Thread(
            target=lambda: [random.random() for _ in iter(int, 1)], daemon=True
        ).start()
    for step, batch in zip(range(STEPS if ending != "forever" else 10**9), data):
        if ending == "fork" and step % 2:
            for number in range(5):
                fork_in_step(model, optimizer, number)
        if ending == "exception_in_backward" and step == STEPS - 2:
            fail_in_backward(model)
        step_of(model, optimizer, batch)
        say(f"step {step}")
        if ending == "closed_stderr":  # what libraries say
            with contextlib.suppress(OSError):
                os.write(2, b"a warning of some library, as long as the beginning of a segment\n")
    if ending == "hold":  # everything sealed reaches the disk without any further call
        time.sleep(2.5)
        say("held")
        os.kill(os.getpid(), signal.SIGKILL)
    if ending == "os_exit":
        os._exit(0)
    if ending == "exception":
        raise Boom("after the loop")
    if ending == "sys_exit":
        sys.exit(3)
    if ending == "in_context":
        with monitor:
            raise Boom("inside the with block")
    if ending.startswith("workers") or ending == "stop":
        monitor.stop()
        monitor.stop()
        health = monitor.health()
        assert health["rows_produced"] == sum(s["rows_written"] for s in health["sinks"])
    if ending == "fork_after_stop":
        monitor.stop()
        fork_in_step(model, optimizer, 1)
    if ending == "no_reference":
        del monitor, model, optimizer


if __name__ == "__main__":
    main()
