# The training of the equality table under trainers that own its loop or wrap its objects.
"""equality_trainers_run.py OUT ROW: bare, then watched; losses and weights go to OUT/<how>.<rank>.pt."""

import logging
import os
import pathlib
import sys
import warnings

import torch
import torch.distributed as dist

import equality_gpt as gpt
import trainmon

RANK = int(os.environ["RANK"])
os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29500")  # accelerate wants them to be there
SETTINGS = {"kinds": ["grad_unreduced", "grad_reduced", "weights", "moments"], "every": 1}


class Batches(torch.utils.data.Dataset):
    """Those of this rank, one micro step each."""

    def __len__(self):
        return gpt.STEPS * gpt.MICRO_STEPS

    def __getitem__(self, index):
        ids, targets = gpt.batch(RANK, *divmod(index, gpt.MICRO_STEPS))
        return {"ids": ids, "targets": targets}


def loader():
    return torch.utils.data.DataLoader(Batches(), batch_size=None)


def trainer(out, callback):
    from transformers import Trainer, TrainingArguments

    class Mine(Trainer):
        def get_train_dataloader(self):
            return loader()

        def compute_loss(self, model, inputs, return_outputs=False, **settings):
            loss = gpt.loss_of(model(inputs["ids"]), inputs["targets"])
            losses.append(loss.detach())
            return loss

    model, losses = gpt.make(), []
    optimizer = torch.optim.AdamW(model.parameters(), **gpt.ADAMW)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    arguments = TrainingArguments(
        output_dir=str(out / "trainer"),
        use_cpu=True,
        ddp_backend="gloo",
        max_steps=gpt.STEPS,
        gradient_accumulation_steps=gpt.MICRO_STEPS,
        max_grad_norm=0,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        seed=1234,
    )
    Mine(
        model=model,
        args=arguments,
        train_dataset=Batches(),
        optimizers=(optimizer, constant),
        callbacks=callback("transformers"),
    ).train()
    return model, losses


def accelerate(out, callback):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=gpt.MICRO_STEPS)
    bare = gpt.make()
    model, optimizer = accelerator.prepare(bare, torch.optim.AdamW(bare.parameters(), **gpt.ADAMW))
    monitor = callback(None, model, optimizer)
    losses = []
    for batch in loader():
        with accelerator.accumulate(model):
            loss = gpt.loss_of(model(batch["ids"]), batch["targets"])
            losses.append(loss.detach())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    if monitor is not None:
        monitor.stop()
    return bare, losses


def lightning(out, callback):
    import lightning

    class Mine(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.gpt = gpt.make()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), **gpt.ADAMW)

        def training_step(self, batch, index):
            loss = gpt.loss_of(self.gpt(batch["ids"]), batch["targets"])
            losses.append(loss.detach())
            return loss

    module, losses = Mine(), []
    lightning.Trainer(
        accelerator="cpu",
        devices=gpt.RANKS,
        strategy="ddp",
        max_epochs=1,
        accumulate_grad_batches=gpt.MICRO_STEPS,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callback("lightning"),
    ).fit(module, loader())
    return module.gpt, losses


def fabric(out, callback):
    import lightning

    fabric = lightning.Fabric(
        accelerator="cpu", devices=gpt.RANKS, strategy="ddp", callbacks=callback("fabric")
    )
    fabric.launch()
    bare = gpt.make()
    model, optimizer = fabric.setup(bare, torch.optim.AdamW(bare.parameters(), **gpt.ADAMW))
    losses = []
    for index, batch in enumerate(loader()):
        last = index % gpt.MICRO_STEPS == gpt.MICRO_STEPS - 1
        with fabric.no_backward_sync(model, enabled=not last):
            loss = gpt.loss_of(model(batch["ids"]), batch["targets"])
            losses.append(loss.detach())
            fabric.backward(loss / gpt.MICRO_STEPS)
        if last:
            optimizer.step()
            optimizer.zero_grad()
    fabric.call("on_train_end")
    return bare, losses


ROWS = {row.__name__: row for row in (trainer, accelerate, lightning, fabric)}


def main():
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    gpt.begin()
    for how in ("bare", "watched"):
        train(pathlib.Path(sys.argv[1]), sys.argv[2], how)
    dist.barrier()
    dist.destroy_process_group()


def train(out, row, how):
    settings = {**SETTINGS, "out": str(out / "run"), "grad_acc_steps": gpt.MICRO_STEPS}
    made = []

    def callback(where, model=None, optimizer=None):
        if where is None:
            watched = how == "watched"
            made.append(trainmon.watch(model, optimizer, **settings) if watched else None)
            return made[0]
        if how == "bare":
            return []
        if where == "transformers":
            from trainmon.integrations.transformers import TrainmonCallback as kind
        elif where == "lightning":
            from trainmon.integrations.lightning import TrainmonCallback as kind
        else:
            from trainmon.integrations.lightning import FabricCallback as kind
        made.append(kind(**settings))
        return list(made)

    model, losses = ROWS[row](out, callback)
    if how == "watched":
        health = getattr(made[0], "monitor", made[0]).health()
        assert health["parts_off"] == {} and health["errors"] == 0, health
        assert health["refused"] == {}, health
    final = [p.detach() for p in model.parameters()]
    torch.save({"losses": losses, "final": final}, out / f"{how}.{RANK}.pt")


if __name__ == "__main__":
    main()
