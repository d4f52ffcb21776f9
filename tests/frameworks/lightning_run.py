# Lightning and Fabric on a small model, on one or two ranks, each case bare and watched.
"""lightning_run.py OUT CASE...: OUT/CASE/<rank>.pt holds what the user and the optimizers saw."""

import logging
import os
import pathlib
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if RANKS == 1:
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        del os.environ[variable]

import lightning as L  # noqa: E402
from lightning.pytorch.plugins import MixedPrecision  # noqa: E402
from seeing import seeing  # noqa: E402

from trainmon.integrations.lightning import FabricCallback, TrainmonCallback  # noqa: E402

STEPS, MICROS, BATCH = 3, 2, 4
KINDS = ["grads", "grad_unreduced", "weights", "moments", "activations"]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 3))


def data(count):
    generator = torch.Generator().manual_seed(10 + RANK)
    rows = torch.randn(count * BATCH, 6, generator=generator)
    return torch.utils.data.DataLoader(rows, batch_size=BATCH)


class Module(L.LightningModule):
    """Automatic optimization: accumulation and clipping are the Trainer's."""

    bad = None  # the batch whose loss is infinite

    def __init__(self, **settings):
        super().__init__()
        self.net = net()
        self.settings = settings
        self.losses, self.local = [], []

    def configure_optimizers(self):
        self.optimizer = seeing(self.parameters(), lr=0.01, **self.settings)
        schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.5**step)
        return [self.optimizer], [{"scheduler": schedule, "interval": "step"}]

    def training_step(self, batch, index):
        loss = self.net(batch).pow(2).mean()
        if index == self.bad:
            loss = loss * torch.inf
        else:  # this rank's own gradient, by a way that passes no hook of DDP
            gradients = torch.autograd.grad(loss, list(self.parameters()), retain_graph=True)
            self.local.append(gradients)
        self.losses.append(loss.detach())
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.net(batch).pow(2).mean())


class Adversaries(L.LightningModule):
    """Manual optimization: two optimizers in turn, one of them every other batch."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.one, self.two = net(), net()
        self.losses = []

    def configure_optimizers(self):
        self.opts = [seeing(self.one.parameters(), lr=0.01), seeing(self.two.parameters(), lr=0.02)]
        return self.opts, []

    def training_step(self, batch, index):
        one, two = self.optimizers()
        self.toggle_optimizer(one)
        loss = self.one(batch).pow(2).mean()
        self.manual_backward(loss)
        self.clip_gradients(one, gradient_clip_val=0.05, gradient_clip_algorithm="norm")
        one.step()
        one.zero_grad()
        self.untoggle_optimizer(one)
        self.losses.append(loss.detach())
        if index % 2 == 0:
            self.toggle_optimizer(two)
            loss = self.two(batch).add(1).pow(2).mean()
            self.manual_backward(loss)
            two.step()
            two.zero_grad()
            self.untoggle_optimizer(two)
            self.losses.append(loss.detach())


def trainer(out, callbacks, **settings):
    return L.Trainer(
        accelerator="cpu",
        devices=max(RANKS, 1),
        default_root_dir=out,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        log_every_n_steps=1,
        callbacks=callbacks,
        **{"strategy": "ddp" if RANKS > 1 else "auto", **settings},
    )


def automatic(out, callbacks):
    module = Module()
    settings = {"accumulate_grad_batches": MICROS, "gradient_clip_val": 0.05, "max_epochs": 1}
    fit = trainer(out, callbacks, val_check_interval=2, num_sanity_val_steps=1, **settings)
    fit.fit(module, data(STEPS * MICROS), data(2))
    return module, [module.optimizer]


def manual(out, callbacks):
    module = Adversaries()
    strategy = "ddp_find_unused_parameters_true" if RANKS > 1 else "auto"
    trainer(out, callbacks, max_epochs=1, strategy=strategy).fit(module, data(4))
    return module, module.opts


def scaled(out, callbacks, fused=False):
    """The second of four losses is infinite: GradScaler skips that step."""
    module = Module(fused=fused)
    module.bad = 1
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    plugin = MixedPrecision("16-mixed", device="cpu", scaler=scaler)
    trainer(out, callbacks, max_epochs=1, plugins=[plugin]).fit(module, data(4))
    return module, [module.optimizer]


def fused(out, callbacks):
    return scaled(out, callbacks, fused=True)


def resumed(out, callbacks):
    module = Module()
    first = trainer(out, callbacks, max_steps=2)
    first.fit(module, data(4))
    first.save_checkpoint(out / "middle.ckpt")
    again = Module()
    second = trainer(out, callbacks, max_steps=4)
    second.fit(again, data(4), ckpt_path=out / "middle.ckpt", weights_only=False)
    again.losses = module.losses + again.losses
    again.optimizer.seen = module.optimizer.seen + again.optimizer.seen
    return again, [again.optimizer]


def fabric(out, callbacks):
    fabric = L.Fabric(
        accelerator="cpu",
        devices=max(RANKS, 1),
        strategy="ddp" if RANKS > 1 else "auto",
        callbacks=callbacks,
    )
    fabric.launch()
    bare = net()
    optimizer = seeing(bare.parameters(), lr=0.01)
    model, prepared = fabric.setup(bare, optimizer)
    bare.losses = []
    for index, batch in enumerate(data(STEPS * MICROS)):
        last = index % MICROS == MICROS - 1
        with fabric.no_backward_sync(model, enabled=not last and RANKS > 1):
            loss = model(batch).pow(2).mean() / MICROS
            fabric.backward(loss)
        bare.losses.append(loss.detach())
        if last:
            fabric.clip_gradients(model, prepared, max_norm=0.05)
            prepared.step()
            prepared.zero_grad()
    fabric.call("on_train_end")
    return bare, [optimizer]


CASES = {
    function.__name__: function for function in (automatic, manual, scaled, fused, resumed, fabric)
}


def main():
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    if RANKS > 1:
        dist.init_process_group(
            "gloo", init_method=os.environ["MEETING_POINT"], rank=RANK, world_size=RANKS
        )
    for case in sys.argv[2:]:
        out = pathlib.Path(sys.argv[1]) / case
        out.mkdir(exist_ok=True)
        ends = []
        for watched in (False, True):
            kind = FabricCallback if case == "fabric" else TrainmonCallback
            callbacks = [kind(kinds=KINDS, out=out / "run", every=1)] if watched else []
            torch.manual_seed(5)
            module, optimizers = CASES[case](out, list(callbacks))
            weights = {n: p.detach().clone() for n, p in module.named_parameters()}
            ends.append([*module.losses, *weights.values()])
        names = {id(p): n for n, p in module.named_parameters()}
        torch.save(
            {
                "same": len(ends[0]) == len(ends[1])
                and all(torch.equal(a, b) for a, b in zip(*ends)),
                "names": [[names[id(p)] for p in o.param_groups[0]["params"]] for o in optimizers],
                "seen": [o.seen for o in optimizers],
                "local": getattr(module, "local", []),
                "losses": module.losses,
                "health": callbacks[0].monitor.health(),
            },
            out / f"{RANK}.pt",
        )
    if RANKS > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
