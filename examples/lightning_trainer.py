# Lightning's Trainer on two processes, with clipping, accumulation and validation.
"""python examples/lightning_trainer.py [--out DIR] [--steps N]; or start it with torchrun.

Without the callback in the script, TRAINMON_CONFIG=file.json in the environment does the same.
"""

import sys

import lightning as L
import torch
import torch.distributed as dist
from small_text import build_gpt, loss_of, start, texts

from trainmon.integrations.lightning import TrainmonCallback

BATCH, MICRO_STEPS, LENGTH = 8, 2, 64


class ByteGpt(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.gpt = build_gpt(width=96, heads=4, depth=3)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def training_step(self, piece, index):
        return loss_of(self.gpt(piece[:, :-1]), piece[:, 1:])

    def validation_step(self, piece, index):
        loss = loss_of(self.gpt(piece[:, :-1]), piece[:, 1:])
        self.log("val_loss", loss, sync_dist=True)


def train(out, steps):
    L.seed_everything(0)
    pieces = texts(LENGTH, steps * MICRO_STEPS * BATCH * 2 + 32)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        accumulate_grad_batches=MICRO_STEPS,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        log_every_n_steps=1,
        callbacks=[TrainmonCallback(kinds=["grads", "weights", "moments"], out=out)],
    )
    training = torch.utils.data.DataLoader(pieces[32:], batch_size=BATCH)
    validation = torch.utils.data.DataLoader(pieces[:32], batch_size=BATCH)
    trainer.fit(ByteGpt(), training, validation)
    if trainer.is_global_zero:
        print(f"val_loss {trainer.callback_metrics['val_loss']:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(start(train, __doc__, steps=30))
