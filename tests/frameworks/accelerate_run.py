# An Accelerate loop on a small model, on one or two ranks, each case bare and watched.
"""accelerate_run.py OUT CASE...: OUT/CASE/<rank>.pt holds what the user and the optimizer saw."""

import itertools
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if RANKS == 1:
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        del os.environ[variable]
else:  # accelerate wants them to be there; the meeting point is a file
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29500")

from accelerate import Accelerator  # noqa: E402
from accelerate.optimizer import AcceleratedOptimizer  # noqa: E402
from accelerate.state import AcceleratorState  # noqa: E402
from seeing import seeing  # noqa: E402

import trainmon  # noqa: E402
from trainmon.integrations.accelerate import TrainmonTracker  # noqa: E402

STEPS, MICROS, BATCH = 3, 2, 4
SETTINGS = {"kinds": ["grads", "grad_unreduced", "weights", "moments", "activations"], "every": 1}


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 3))


def data(count):
    generator = torch.Generator().manual_seed(10)
    return torch.utils.data.DataLoader(
        torch.randn(count * BATCH * RANKS, 6, generator=generator), batch_size=BATCH
    )


def train(attach, **settings):
    """attach(bare, optimizer, prepared model, prepared optimizer, accelerator) gives a Watch."""
    AcceleratorState._shared_state.clear()  # it would hold for the process
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICROS, **settings)
    bare = net()
    optimizer = seeing(bare.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    model, prepared, batches, schedule = accelerator.prepare(
        bare, optimizer, data(STEPS * MICROS), schedule
    )
    torch.manual_seed(5)
    monitor = attach(bare, optimizer, model, prepared, accelerator)
    losses, local = [], []
    for batch in batches:
        with accelerator.accumulate(model):
            loss = model(batch).pow(2).mean()
            local.append(torch.autograd.grad(loss, list(bare.parameters()), retain_graph=True))
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.05)
            prepared.step()
            schedule.step()
            prepared.zero_grad()
        losses.append(loss.detach())
        accelerator.log({"loss": loss.item(), "note": "text"})
    for tracker in accelerator.trackers:  # as end_training(), which ends the process group, too
        tracker.finish()
    return bare, optimizer, losses, local, monitor


def nothing(*_):
    return None


def prepared(out):
    """trainmon.watch() with what prepare() gave back."""
    return train(lambda bare, optimizer, model, wrapped, _: watch(out, model, wrapped))


def given(out):
    """trainmon.watch() with what prepare() was given."""
    return train(lambda bare, optimizer, *_: watch(out, bare, optimizer))


def bf16(out):
    return train(
        lambda bare, optimizer, model, wrapped, _: watch(out, model, wrapped),
        mixed_precision="bf16",
    )


def tracker(out):
    """A GeneralTracker, told of the model after prepare()."""
    mine = TrainmonTracker(out=out / "run", **SETTINGS)

    def attach(bare, optimizer, model, wrapped, accelerator):
        accelerator.init_trackers("run", {"steps": STEPS})
        return mine.watch(model, wrapped)

    return train(attach, log_with=mine)


def scaled(out):
    """A prepared optimizer with a GradScaler; the second loss is infinite. (An Accelerator makes
    one on GPUs only.)"""
    Accelerator(cpu=True)
    bare = net()
    optimizer = seeing(bare.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    wrapped = AcceleratedOptimizer(optimizer, scaler=scaler)
    torch.manual_seed(5)
    monitor = watch(out, bare, wrapped)
    losses, local = [], []
    for index, batch in enumerate(itertools.islice(data(4), 4)):
        loss = bare(batch).pow(2).mean()
        if index == 1:
            loss = loss * torch.inf
        losses.append(loss.detach())
        scaler.scale(loss).backward()
        wrapped.step()
        wrapped.zero_grad()
    return bare, optimizer, losses, local, monitor


BARE = False


def watch(out, model, optimizer):
    return None if BARE else trainmon.watch(model, optimizer, out=out / "run", **SETTINGS)


CASES = {function.__name__: function for function in (prepared, given, bf16, tracker, scaled)}


def main():
    global BARE
    torch.set_num_threads(1)
    if RANKS > 1:
        dist.init_process_group(
            "gloo", init_method=os.environ["MEETING_POINT"], rank=RANK, world_size=RANKS
        )
    for case in sys.argv[2:]:
        out = pathlib.Path(sys.argv[1]) / case
        out.mkdir(exist_ok=True)
        ends = []
        for BARE in (True, False):
            bare_tracker = BARE and case == "tracker"
            result = train(nothing) if bare_tracker else CASES[case](out)
            bare, optimizer, losses, local, monitor = result
            ends.append([*losses, *(p.detach().clone() for p in bare.parameters())])
        health = monitor.stop()
        torch.save(
            {
                "same": len(ends[0]) == len(ends[1])
                and all(torch.equal(a, b) for a, b in zip(*ends)),
                "names": [name for name, _ in bare.named_parameters()],
                "seen": optimizer.seen,
                "local": local,
                "losses": losses,
                "health": health,
            },
            out / f"{RANK}.pt",
        )
    if RANKS > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
