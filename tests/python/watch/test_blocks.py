"""modules="blocks": activations of repeated blocks alone; "auto" takes them for large models."""

import collections

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import adapter_rows
import models
import trainmon
from trainmon.torch.modules import selection
from trainmon.torch.modules.blocks import blocks_of


class Residual(nn.Module):
    def __init__(self, width, out=None):
        super().__init__()
        self.norm = nn.GroupNorm(1, width)
        self.conv = nn.Conv2d(width, out or width, 3, padding=1)

    def forward(self, x):
        y = self.conv(self.norm(x))
        return y + x if y.shape == x.shape else y


class Down(nn.Module):
    """A stage of a UNet: blocks inside a block."""

    def __init__(self, width, out):
        super().__init__()
        self.residuals = nn.ModuleList([Residual(width), Residual(width, out)])

    def forward(self, x):
        for block in self.residuals:
            x = block(x)
        return x


class UNet(nn.Module):
    """Stages in lists, the deepest one alone; the way up in plain lists, which nobody calls."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.down = nn.ModuleList([Down(4, 8), Down(8, 8)])
        self.middle = Down(8, 8)
        ups = [[Residual(16, 8), Residual(8), nn.Conv2d(8, 8, 1)] for _ in range(2)]
        self.up = nn.ModuleList(nn.ModuleList(up) for up in ups)
        self.head = nn.Sequential(nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 3, 1))

    def forward(self, x):
        x, skips = self.stem(x), []
        for stage in self.down:
            x = stage(x)
            skips.append(x)
        x = self.middle(x)
        for (first, second, last), skip in zip(self.up, reversed(skips)):
            x = last(second(first(torch.cat([x, skip], 1))))
        return self.head(x)


class Dit(nn.Module):
    """A diffusion transformer: blocks that are given a condition, in a Sequential's place."""

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm, self.scale = nn.LayerNorm(width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

        def forward(self, x, condition):
            return x + self.mlp(self.norm(x) * self.scale(condition))

    def __init__(self, width=8, depth=3):
        super().__init__()
        self.embed = nn.Linear(3, width)
        self.blocks = nn.ModuleDict({f"b{i}": self.Block(width) for i in range(depth)})
        self.out = nn.Linear(width, 3)

    def forward(self, x):
        x = self.embed(x)
        condition = x.mean(1, keepdim=True)
        for block in self.blocks.values():
            x = block(x, condition)
        return self.out(x)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
        self.layer1 = nn.Sequential(Residual(4), Residual(4))
        self.layer2 = nn.Sequential(Residual(4, 8), Residual(8), Residual(8))

    def forward(self, x):
        return self.layer2(self.layer1(self.stem(x)))


IMAGES = (2, 3, 5, 5)
# Written down by hand: name -> (model, shape of its input, its blocks).
CASES = {
    "unet": (
        UNet,
        IMAGES,
        {"down.0", "down.1", "middle.residuals.0", "middle.residuals.1",
         *(f"up.{i}.{j}" for i in range(2) for j in range(3))},
    ),
    "dit": (Dit, (2, 5, 3), {"blocks.b0", "blocks.b1", "blocks.b2"}),
    "resnet": (ResNet, IMAGES, {"layer1.0", "layer1.1", "layer2.0", "layer2.1", "layer2.2"}),
    "stages in a Sequential": (
        lambda: nn.Sequential(nn.Sequential(Residual(3), Residual(3)), nn.Sequential(nn.ReLU())),
        IMAGES,
        {"0.0", "0.1", "1"},
    ),
}  # fmt: skip


def train(model, shape, out, **keys):
    torch.manual_seed(5)
    with trainmon.watch(
        model, torch.optim.SGD(model.parameters(), lr=0.01), out=str(out), **keys
    ) as monitor:
        model(torch.randn(shape)).square().mean().backward()
        monitor._adapter.steps[0].optimizer.step()
    assert monitor.health()["parts_off"] == {}
    return monitor


def names(out, kind="actv"):
    return set(collections.Counter(row["name"] for row in adapter_rows.rows(out, kind=kind)))


@pytest.mark.parametrize("name", CASES)
def test_blocks_of_models(name, tmp_path):
    make, shape, expected = CASES[name]
    model = make()
    assert blocks_of(model) == expected
    train(model, shape, tmp_path, kinds=["activations", "grads"], modules="blocks")
    assert names(tmp_path) == names(tmp_path, "actv_grad") == expected
    # Other kinds are of all that there is.
    assert names(tmp_path, "grad_reduced") == {name for name, _ in model.named_parameters()}


def test_rows_of_blocks_are_those_of_a_run_that_reads_everything(tmp_path):
    make, shape, expected = CASES["unet"]
    runs = {}
    for which in ("all", "blocks"):
        torch.manual_seed(3)
        train(make(), shape, tmp_path / which, kinds=["activations"], modules=which)
        rows = adapter_rows.rows(tmp_path / which)
        runs[which] = [
            [row[key] for key in (*adapter_rows.KEY, "norm", "mean", "max")]
            for row in rows
            if row["name"] in expected
        ]
    assert runs["all"] == runs["blocks"] and len(runs["all"]) >= 2 * len(expected)


@pytest.mark.parametrize("name", models.NAMES)
def test_blocks_of_the_models_of_other_tests(name):
    model = models.build(name)
    blocks = {"gpt": "Block", "cnn": "ConvBlock", "tied": "Sequential"}.get(name)
    expected = {key for key, module in model.named_modules() if type(module).__name__ == blocks} - {
        "stem"
    }
    assert blocks_of(model) == expected
    assert blocks_of(torch.compile(model)) == expected


def test_auto_takes_blocks_of_large_models_and_says_so(tmp_path, capfd, monkeypatch):
    make, shape, expected = CASES["unet"]
    count = sum(type(m) is not nn.ModuleList for m in make().modules())
    monkeypatch.setattr(selection, "MOST_MODULES", count)
    train(make(), shape, tmp_path / "small", kinds=["activations"])
    assert len(names(tmp_path / "small")) == count and "repeated" not in capfd.readouterr().err
    monkeypatch.setattr(selection, "MOST_MODULES", count - 1)
    train(make(), shape, tmp_path / "large", kinds=["activations"])
    assert names(tmp_path / "large") == expected
    said = capfd.readouterr().err
    assert f"activations of 10 repeated blocks, of {count} modules" in said
    assert 'modules="all" reads every one' in said
    train(make(), shape, tmp_path / "asked", kinds=["activations"], modules="all")
    assert len(names(tmp_path / "asked")) == count
    train(make(), shape, tmp_path / "grads", kinds=["grads"])
    assert "repeated" not in capfd.readouterr().err


def test_patterns_choose_among_blocks(tmp_path):
    make, shape, expected = CASES["resnet"]
    keys = {"kinds": ["actv"], "modules": "blocks", "include": ["layer2"], "exclude": ["layer2.1"]}
    train(make(), shape, tmp_path, **keys)
    assert names(tmp_path) == {"layer2.0", "layer2.2"}


def test_without_blocks_everything_is_read_and_it_is_said(tmp_path, capfd):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    monitor = train(model, (2, 3), tmp_path, kinds=["actv"], modules="blocks")
    assert names(tmp_path) == {"", "0", "1", "2"}
    why = "no list of repeated modules is watched: activations of all 4 modules are read"
    assert why in capfd.readouterr().err
    assert why in str(adapter_rows.run_json(monitor)["not_covered"])


def test_compiled_blocks_keep_their_names(tmp_path):
    model = models.build("gpt")
    model.blocks[0] = torch.compile(model.blocks[0], backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data, target = models.draw("gpt")
    with trainmon.watch(model, optimizer, out=str(tmp_path), kinds=["actv"], modules="blocks"):
        models.loss_of(model(data), target).backward()
        optimizer.step()
    torch._dynamo.utils.counters.clear()  # other tests of this process ask whether anything was compiled
    assert names(tmp_path) == {"blocks.0", "blocks.1"}


@pytest.mark.parametrize("how", ["ddp", "fsdp2", "checkpoint"])
def test_blocks_under_wrappers_keep_their_names(how, tmp_path):
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        model = models.build("gpt")
        if how == "ddp":
            model = nn.parallel.DistributedDataParallel(model)
        elif how == "fsdp2":
            for part in (*model.blocks, model):
                torch.distributed.fsdp.fully_shard(part)
        else:
            for i, block in enumerate(model.blocks):
                model.blocks[i] = checkpoint_wrapper(block)
        assert blocks_of(model) == {"blocks.0", "blocks.1"}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        data, target = models.draw("gpt")
        keys = {"kinds": ["activations"], "modules": "blocks"}
        with trainmon.watch(model, optimizer, out=str(tmp_path), **keys):
            models.loss_of(model(data), target).backward()
            optimizer.step()
    finally:
        torch.distributed.destroy_process_group()
    assert names(tmp_path) == names(tmp_path, "actv_grad") == {"blocks.0", "blocks.1"}


def test_full_steps_read_every_module(tmp_path, monkeypatch):
    # Another test of this process may have compiled something.
    monkeypatch.setattr("trainmon.torch.full_steps.compiles", lambda: False)
    model = models.build("gpt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data, target = models.draw("gpt")
    with trainmon.watch(
        model, optimizer, out=str(tmp_path), kinds=["actv"], modules="blocks"
    ) as mon:
        for number in range(5):
            models.loss_of(model(data), target).backward()
            optimizer.step()
            optimizer.zero_grad()
            mon.log(loss=float("nan") if number == 1 else 1.0)
    by_step = collections.defaultdict(set)
    for row in adapter_rows.rows(tmp_path, kind="actv"):
        by_step[row["step"]].add(row["name"])
    assert by_step[0] == {"blocks.0", "blocks.1"}
    assert {"tokens", "head", "blocks.0.up"} <= by_step[4]


def test_an_estimate_of_blocks_is_that_of_blocks():
    make, shape, expected = CASES["unet"]
    found = trainmon.estimate(make(), None, torch.zeros(shape), kinds=["actv"], modules="blocks")
    assert found.together.tensors == 2 * len(expected)


def test_another_word_is_refused():
    with pytest.raises(trainmon.ConfigError, match="modules.*layers.*blocks"):
        trainmon.watch(nn.Linear(2, 2), modules="layers")
