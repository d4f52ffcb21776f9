# Odd but legal trainings under the trainers' callbacks: nothing raises into them, and no row is wrong.
import copy
import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import trainmon
from adapter_rows import keys


class Points(Dataset):
    size = 8

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return {"x": torch.randn(4, generator=generator), "labels": torch.zeros(2)}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x, labels=None):
        return {"loss": ((self.linear(x) - labels) ** 2).mean()}


class WithoutLr(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"speed": 0.1})

    def step(self, closure=None):
        loss = closure()
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.sub_(self.param_groups[0]["speed"] * p.grad)
        return loss


# --- Transformers --------------------------------------------------------------------------------


def trainer(directory, callbacks):
    import transformers

    torch.manual_seed(0)
    arguments = transformers.TrainingArguments(
        output_dir=str(directory / "hf"), max_steps=3, per_device_train_batch_size=4,
        report_to=[], logging_steps=1, save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    return transformers.Trainer(Net(), arguments, train_dataset=Points(), callbacks=callbacks)


def test_a_train_that_was_interrupted_leaves_no_watch_behind(tmp_path):
    from transformers import TrainerCallback

    from trainmon.integrations.transformers import TrainmonCallback

    class Interrupt(TrainerCallback):
        calls = 0

        def on_step_end(self, *_, **__):
            self.calls += 1
            if self.calls == 2:
                raise KeyboardInterrupt

    callback = TrainmonCallback(out=str(tmp_path / "run"))
    training = trainer(tmp_path, [callback, Interrupt()])
    with pytest.raises(KeyboardInterrupt):
        training.train()
    training.train()
    found = keys(tmp_path / "run", "restart", "step", kind="grad_reduced", name="linear.weight")
    assert found == [(1, 0), (1, 1), (1, 2)]  # the second train() begins at 0 again, and is newer


def test_a_metric_may_have_any_name(tmp_path, monkeypatch):
    from trainmon.integrations.transformers import TrainmonCallback

    training = trainer(tmp_path, [TrainmonCallback(out=str(tmp_path / "run"))])
    log = training.log
    monkeypatch.setattr(training, "log", lambda logs, *a: log({**logs, "self": 2.0}, *a))
    training.train()
    scalars = trainmon.read_table(str(tmp_path / "run")).scalars
    assert list(scalars["value"][scalars["name"] == "self"])[:3] == [2.0, 2.0, 2.0]


def test_a_metric_may_be_a_scalar_of_torch_or_numpy(tmp_path, monkeypatch):
    from trainmon.integrations.transformers import TrainmonCallback

    training = trainer(tmp_path, [TrainmonCallback(out=str(tmp_path / "run"))])
    more = {"tensor": torch.tensor(1.5), "float": np.float32(2.5), "int": np.int64(4), "text": "no"}
    call = training.callback_handler.on_log
    monkeypatch.setattr(
        training.callback_handler, "on_log", lambda a, s, c, logs: call(a, s, c, {**logs, **more})
    )
    training.train()
    scalars = trainmon.read_table(str(tmp_path / "run")).scalars
    named = dict(zip(scalars["name"], scalars["value"], strict=True))
    assert {name: named.get(name) for name in more} == {
        "tensor": 1.5, "float": 2.5, "int": 4.0, "text": None,
    }  # fmt: skip


# --- Accelerate ----------------------------------------------------------------------------------


def test_a_tracker_takes_any_key(tmp_path):
    from trainmon.integrations.accelerate import TrainmonTracker

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracker = TrainmonTracker(out=str(tmp_path / "run"))
    tracker.watch(model, optimizer)
    model(torch.ones(1, 4), torch.zeros(1, 2))["loss"].backward()
    tracker.log({0: 1.5, "self": 2.5, "text": "no number"})
    optimizer.step()
    tracker.finish()
    scalars = trainmon.read_table(str(tmp_path / "run")).scalars
    assert dict(zip(scalars["name"], scalars["value"], strict=True)) == {"0": 1.5, "self": 2.5}


# --- Lightning -----------------------------------------------------------------------------------


def lightning_module(make):
    """A LightningModule of one Net; `make` gives the optimizer of its parameters."""
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, index):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return make(self.parameters())

    return Module


def fit(module, callbacks, size=8, **settings):
    import lightning.pytorch as pl

    points = Points()
    points.size = size
    torch.manual_seed(0)
    pl.Trainer(
        logger=False, enable_checkpointing=False, enable_progress_bar=False, devices=1,
        enable_model_summary=False, accelerator="cpu", callbacks=callbacks, **settings,
    ).fit(module, DataLoader(points, 4))  # fmt: skip


@pytest.mark.parametrize("make", [WithoutLr, lambda parameters: None], ids=["no lr", "none"])
def test_an_optimizer_without_a_learning_rate(make, tmp_path):
    from trainmon.integrations.lightning import TrainmonCallback

    weights = []
    for callbacks in ([], [TrainmonCallback(out=str(tmp_path / "run"))]):
        torch.manual_seed(0)
        module = lightning_module(make)()
        fit(module, callbacks, max_epochs=2, log_every_n_steps=1)
        weights.append(module.net.linear.weight.detach().clone())
    assert torch.equal(*weights)
    scalars = trainmon.read_table(str(tmp_path / "run")).scalars
    # Without an optimizer nobody clears gradients, either.
    logged = [name for name in scalars["name"] if name != "trainmon/uncleared"]
    assert logged == ["loss"] * 4


def not_covered(run):
    (path,) = run.glob("rank_00000/restart_*/run.json")
    return json.loads(path.read_text())["not_covered"]


def test_an_optimizer_that_is_replaced_is_followed(tmp_path, caplog):
    from trainmon.integrations.lightning import TrainmonCallback

    class Stages(lightning_module(lambda parameters: torch.optim.Adam(parameters, lr=0.1))):
        def on_train_epoch_start(self):
            if self.current_epoch:
                self.trainer.optimizers = [torch.optim.SGD(self.parameters(), lr=0.2)]

    bare = Stages()
    watched = copy.deepcopy(bare)
    callback = TrainmonCallback(out=str(tmp_path / "run"))
    fit(bare, [], max_epochs=3)
    fit(watched, [callback], max_epochs=3, log_every_n_steps=1)
    assert torch.equal(bare.net.linear.weight, watched.net.linear.weight)
    (said,) = (r.getMessage() for r in caplog.records if "was replaced" in r.getMessage())
    assert "from step 2 on SGD is followed in the place of Adam" in said
    found = keys(tmp_path / "run", "step", "attempt", kind="grad_reduced", name="net.linear.weight")
    assert found == [(step, 0) for step in range(6)]
    scalars = trainmon.read_table(str(tmp_path / "run")).scalars
    for name, values in {"loss": None, "lr": [0.1, 0.1, 0.2, 0.2, 0.2, 0.2]}.items():
        mine = scalars["name"] == name
        assert list(scalars["step"][mine]) == list(range(6))
        assert values is None or list(scalars["value"][mine]) == values

    class AfterStop(Stages):
        def on_train_epoch_start(self):
            stopped.monitor.stop()
            super().on_train_epoch_start()

    stopped = TrainmonCallback(out=str(tmp_path / "stopped"))
    fit(AfterStop(), [stopped], max_epochs=2)


@pytest.mark.parametrize("first_waits", [False, True])
def test_losses_are_counted_in_batches_not_in_steps_of_optimizers(first_waits, tmp_path):
    import lightning.pytorch as pl

    from trainmon.integrations.lightning import TrainmonCallback

    class Two(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.one, self.two = Net(), Net()

        def configure_optimizers(self):
            return [torch.optim.SGD(net.parameters(), lr=0.1) for net in (self.one, self.two)]

        def training_step(self, batch, index):
            for optimizer, net in zip(self.optimizers(), (self.one, self.two), strict=True):
                loss = net(**batch)["loss"]
                optimizer.zero_grad()
                self.manual_backward(loss)
                if net is self.two or index or not first_waits:
                    optimizer.step()
            return loss

    callback = TrainmonCallback(out=str(tmp_path / "run"))
    fit(Two(), [callback], size=64, max_epochs=1, log_every_n_steps=2)
    names = trainmon.read_table(str(tmp_path / "run")).scalars["name"]
    assert list(names).count("loss") == 8


def test_a_module_whose_own_forward_is_not_called(tmp_path):
    from trainmon.integrations.lightning import TrainmonCallback

    module = lightning_module(lambda parameters: torch.optim.SGD(parameters, lr=0.1))()
    fit(module, [TrainmonCallback(out=str(tmp_path / "run"), kinds=["actv"])], max_epochs=1)
    assert "forward is called later, or never" in not_covered(tmp_path / "run")["actv of model"]


def test_steps_that_the_module_leaves_out_are_told_beside_the_global_step(tmp_path, caplog):
    from trainmon.integrations.lightning import TrainmonCallback

    class EverySecond(lightning_module(lambda parameters: torch.optim.SGD(parameters, lr=0.1))):
        def optimizer_step(self, epoch, index, optimizer, optimizer_closure=None):
            if index % 2 == 0:
                optimizer.step(closure=optimizer_closure)
            else:
                optimizer_closure()

    callback = TrainmonCallback(out=str(tmp_path / "run"))
    fit(EverySecond(), [callback], size=24, max_epochs=1, log_every_n_steps=1)
    steps = keys(tmp_path / "run", "step", kind="grad_reduced", name="net.linear.weight")
    assert steps == [(0,), (1,), (2,)]  # of six batches
    scalars = trainmon.read_table(str(tmp_path / "run")).scalars
    mine = scalars["name"] == "global_step"
    told = list(zip(scalars["step"][mine], scalars["value"][mine], strict=True))
    assert {(1, 3.0), (2, 5.0)} <= set(told)  # after the third and the fifth batch
    assert caplog.text.count("scalar global_step") == 1


FROZEN = """
import gc, torch, lightning as L, trainmon
from trainmon.integrations.lightning import FabricCallback
callback = FabricCallback(kinds=["grad_reduced", "moments"], out={out!r})
fabric = L.Fabric(accelerator="cpu", callbacks=[callback])
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.Adam(model.parameters())
gc.collect()
gc.freeze()
model, optimizer = fabric.setup(model, optimizer)
for step in range(3):
    fabric.backward(model(torch.ones(4, 3)).pow(2).mean())
    optimizer.step()
    optimizer.zero_grad()
fabric.call("on_train_end")
"""


def test_fabric_after_the_garbage_collector_was_frozen(tmp_path):
    import subprocess
    import sys

    script = FROZEN.format(out=str(tmp_path / "run"))
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "replaced" not in ended.stderr and "not watched" not in ended.stderr
    for kind in ("grad_reduced", "exp_avg"):
        found = keys(tmp_path / "run", "step", "attempt", kind=kind, name="weight")
        assert found == [(0, 0), (1, 0), (2, 0)]
