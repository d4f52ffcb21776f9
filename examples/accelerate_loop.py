# An Accelerate loop on two processes: trainmon takes what prepare() gives back.
"""python examples/accelerate_loop.py [--out DIR] [--steps N]; or `accelerate launch` it."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from small_text import build_gpt, loss_of, show, start, texts

from trainmon.integrations.accelerate import TrainmonTracker

BATCH, MICRO_STEPS, LENGTH = 8, 2, 64


def train(out, steps):
    tracker = TrainmonTracker(kinds=["grads", "weights", "moments"], out=out)
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=MICRO_STEPS, log_with=tracker, mixed_precision="bf16"
    )
    set_seed(0)
    model = build_gpt(width=96, heads=4, depth=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    count = steps * MICRO_STEPS * BATCH * accelerator.num_processes
    data = torch.utils.data.DataLoader(texts(LENGTH, count), batch_size=BATCH)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)

    accelerator.init_trackers("trainmon")
    tracker.watch(model, optimizer)  # or: trainmon.watch(model, optimizer, ...) without a tracker
    for index, piece in enumerate(data):
        with accelerator.accumulate(model):
            loss = loss_of(model(piece[:, :-1]), piece[:, 1:])
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                show(accelerator.process_index, index // MICRO_STEPS, loss.item())
            optimizer.step()
            optimizer.zero_grad()
        accelerator.log({"loss": loss.item()})
    tracker.finish()  # end_training() ends it on the main process only
    accelerator.end_training()


if __name__ == "__main__":
    sys.exit(start(train, __doc__, steps=30))
