"""Canaries: what a model computes changes in a step, and nothing else may look so; the training stays as it is."""

from __future__ import annotations

import gc
import json
import math
import random

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import launch
import trainmon

STEPS, AT = 40, 25


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, back):
        ctx.back = back
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.back, None


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.causal, self.scale = True, 0.25
        self.register_buffer("table", torch.cos(torch.arange(8.0))[:, None].expand(8, 16).clone())

    def forward(self, x):
        q, k, v = self.qkv(x * self.table).chunk(3, -1)
        scores = q @ k.mT * self.scale
        if self.causal:
            scores = scores.masked_fill(torch.ones(8, 8).triu(1).bool(), -math.inf)
        return self.out(scores.softmax(-1) @ v)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(16), Attention()
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.Dropout(0.2))
        self.back, self.recomputes = 2.0, False
        self.calls, self.seen = 0, []

    def inner(self, x):
        x = x + Scaled.apply(self.attention(self.norm(x)), self.back)
        return x + self.mlp(x)

    def forward(self, x):
        self.calls += 1
        self.newest = x
        return checkpoint(self.inner, x, use_reentrant=False) if self.recomputes else self.inner(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 16), nn.Linear(16, 11)
        self.batch_norm = nn.BatchNorm1d(8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.recurrent = nn.LSTM(16, 16, batch_first=True)
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, ids):
        x = self.batch_norm(self.embed(ids))
        x = x + 0.01 * torch.randn(x.shape, generator=self.generator)
        if random.random() < 0.5 or numpy.random.rand() < 0.5:
            x = x * 1.5
        for block in self.blocks:
            x = block(x)
        return self.head(self.recurrent(x)[0])


def train(out, change=None, at=AT, steps=STEPS, prepare=None, **how):
    """What is left behind: losses, weights, buffers, random numbers, attributes."""
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    model = Model()
    if prepare is not None:
        prepare(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    monitor = None
    if out is not None:
        options = {"kinds": ["actv", "canary"], "checks": True, "every": 1, "out": out, **how}
        monitor = trainmon.watch(model, optimizer, **options)
    losses = []
    for step in range(steps):
        if step == at and change is not None:
            change(model)
        ids = torch.randint(0, 11, (4, 8))
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if monitor is not None:
        monitor.stop()
    tensors = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]
    drawn = (
        torch.rand(3),
        random.random(),
        numpy.random.rand(),
        torch.rand(2, generator=model.generator),
    )
    kept = [(b.calls, b.newest.detach()) for b in model.blocks]
    return losses, [t.detach() for t in tensors], drawn, kept


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def of_canary(out):
    found = trainmon.diagnose(str(out))
    assert found["verdict"] is None, found["verdict"]
    return [one for one in found["findings"] if one["check"] == "canary"], found


def hold(module, name, value):
    return lambda model: setattr(model.get_submodule(module), name, value)


def rescale(model):
    with torch.no_grad():
        model.blocks[1].attention.table.copy_(torch.cos(0.5 * torch.arange(8.0))[:, None])


CHANGES = {
    "mask": (hold("blocks.1.attention", "causal", False), "blocks.1.attention.out", "forward"),
    "scale": (hold("blocks.0.attention", "scale", 0.2), "blocks.0.attention.out", "forward"),
    "eps": (hold("blocks.1.norm", "eps", 1e-4), "blocks.1.norm", "forward"),
    "dropout": (hold("blocks.0.mlp.3", "p", 0.0), "blocks.0.mlp.3", "forward"),
    "gelu": (hold("blocks.1.mlp.1", "approximate", "tanh"), "blocks.1.mlp.1", "forward"),
    "table": (rescale, "blocks.1.attention.qkv", "forward"),
    "backward": (hold("blocks.1", "back", 1.0), "blocks.1.attention.out.bias", "grad_unreduced"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_is_named_in_its_step_and_the_training_is_as_unwatched(tmp_path, name):
    change, place, stage = CHANGES[name]
    bare = train(None, change)
    assert equal(bare, train(str(tmp_path), change))
    (one,), found = of_canary(tmp_path)
    assert (one["step"], one["stage"], one["ranks"]) == (AT, stage, [0]), one
    assert one["tensors"] == [place] and not one["certain"], one
    assert found["checked"]["canary"] > 100


def test_one_step_is_enough(tmp_path):
    def change(model):
        attention = model.blocks[0].attention
        attention.causal = False
        model.register_forward_hook(lambda *_: setattr(attention, "causal", True))

    train(str(tmp_path), change)
    (one,), _ = of_canary(tmp_path)
    assert one["step"] == AT and one["tensors"] == ["blocks.0.attention.out"]


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"canary_every": 4},
        {"backend": "ops"},
        {"kinds": ["canary_actv"], "checks": False},
        {"kinds": ["canary_grad"]},
        {"modules": "blocks"},
    ],
    ids=str,
)
def test_a_sound_training_has_none_and_is_as_unwatched(tmp_path, how):
    assert equal(train(None), train(str(tmp_path), **how))
    none, found = of_canary(tmp_path)
    assert not none and found["checked"]["canary"] > 30
    rows = trainmon.read(str(tmp_path))
    rows = rows[rows.kind.str.startswith("canary")]
    assert set(rows.step) == set(range(4, STEPS, how.get("canary_every", 1)))
    assert (
        rows.groupby(["kind", "name", "element", "call"], observed=True).norm.nunique().max() == 1
    )


def test_recomputed_forwards_give_their_rows_once(tmp_path):
    def prepare(model):
        for block in model.blocks:
            block.recomputes = True

    assert equal(train(None, prepare=prepare), train(str(tmp_path), prepare=prepare))
    none, _ = of_canary(tmp_path)
    rows = trainmon.read(str(tmp_path))
    rows = rows[(rows.kind == "canary_actv") & (rows.name == "blocks.0.norm")]
    assert not none and (rows.groupby("step").size() == 1).all() and (rows.call == 0).all()


def test_values_are_those_of_the_weights_that_the_model_had(tmp_path):
    """Beside a copy of the model, made where the canary begins."""
    kept = {}

    def change(model):  # before the forward of step 4
        torch_state, states = torch.get_rng_state(), (random.getstate(), numpy.random.get_state())
        generator = model.generator.get_state()
        ids = torch.randint(0, 11, (4, 8))  # as the training draws next
        output = model(ids)
        sent = torch.cos(torch.arange(1.0, output.numel() + 1)).view_as(output)
        named = dict(model.named_parameters())
        gradients = torch.autograd.grad(output, list(named.values()), sent)
        kept.update({name: g.norm().item() for name, g in zip(named, gradients, strict=True)})
        kept["head"] = output.detach().norm().item()
        torch.set_rng_state(torch_state), random.setstate(states[0])
        numpy.random.set_state(states[1]), model.generator.set_state(generator)

    def quietly(model):
        model.eval()  # rows of this call are of no forward of the training
        model.batch_norm.train(), [b.mlp.train() for b in model.blocks]
        change(model)
        model.train()

    train(str(tmp_path), quietly, at=4)
    rows = trainmon.read(str(tmp_path))
    rows = rows[rows.step == 20]
    gradients = rows[rows.kind == "canary_grad"].set_index("name").norm
    assert set(gradients.index) == set(kept) - {"head"}
    for name, norm in gradients.items():
        assert norm == pytest.approx(kept[name], rel=1e-5), name
    head = rows[(rows.kind == "canary_actv") & (rows.name == "head")]
    assert head.norm.item() == pytest.approx(kept["head"], rel=1e-6)


def test_what_is_compiled_runs_as_it_was_written(tmp_path):
    def prepare(model):
        model.blocks[0].compile(backend="aot_eager")
        model.blocks[1] = torch.compile(model.blocks[1], backend="aot_eager")
        model.also = torch.compile(model.embed, backend="aot_eager")  # it comes before

    assert equal(train(None, prepare=prepare)[:2], train(str(tmp_path), prepare=prepare)[:2])
    none, found = of_canary(tmp_path)
    assert not none and found["checked"]["canary"] > 100


def replace_head(model):
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())


def give_an_object(model):
    forward = model.forward
    model.forward = lambda ids, cache=None: forward(ids)
    model.register_forward_pre_hook(lambda m, given: (*given, Cache()))


class Cache:
    pass


@pytest.mark.parametrize(
    ("prepare", "change", "why"),
    [
        (None, replace_head, "its parameters were replaced"),
        (give_an_object, None, "it is given a Cache"),
    ],
    ids=["replaced", "object"],
)
def test_why_there_is_none_is_said_once(tmp_path, prepare, change, why):
    assert equal(
        train(None, change, prepare=prepare), train(str(tmp_path), change, prepare=prepare)
    )
    found = trainmon.diagnose(str(tmp_path))
    said = [one for one in found["not_checked"] if one["check"] == "canary"]
    assert len(said) == 1 and why in said[0]["why"], found["not_checked"]


@pytest.mark.parametrize(("steps", "is_said"), [(8, False), (3, True)], ids=["some", "none"])
def test_canaries_alone_are_no_run_without_rows(tmp_path, capfd, steps, is_said):
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, optimizer, kinds="canary", every=1, out=str(tmp_path))
    for _ in range(steps):
        model(torch.zeros(2, 8, dtype=torch.long)).sum().backward()
        optimizer.step()
    monitor.stop()
    said = "NOTHING WAS RECORDED in the whole run: no canary ran" in capfd.readouterr().err
    assert said == is_said and (len(trainmon.read(str(tmp_path))) > 0) != is_said


def test_it_goes_on_where_hooks_are_put_on_again(tmp_path):
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    monitor = trainmon.watch(
        model, optimizer, kinds=["actv", "canary"], checks=True, every=1, out=str(tmp_path)
    )
    for step in range(STEPS):
        ids = torch.randint(0, 11, (4, 8))
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 20:
            monitor.pause()
        if step == 23:
            monitor.resume()
    monitor.stop()
    none, _ = of_canary(tmp_path)
    assert not none


def test_a_forward_that_a_function_stands_for_reaches_the_twin_alone(tmp_path):
    """Also one that closes over the method of the module: its buffers stay as they are."""

    def prepare(model):
        for module in (model.batch_norm, model.blocks[0], model):
            own = module.forward
            module.forward = (lambda run: lambda *args: run(*args))(own)

    assert equal(train(None, prepare=prepare), train(str(tmp_path), prepare=prepare))
    none, found = of_canary(tmp_path)
    assert not none and found["checked"]["canary"] > 100


def test_a_forward_that_holds_the_model_elsewhere_ends_it(tmp_path):
    def prepare(model):
        number = id(model.batch_norm)

        def forward(x):
            (held,) = [one for one in gc.get_objects() if id(one) == number]
            return nn.BatchNorm1d.forward(held, x)

        model.batch_norm.forward = forward

    assert equal(train(None, prepare=prepare), train(str(tmp_path), prepare=prepare))
    found = trainmon.diagnose(str(tmp_path))
    said = [one["why"] for one in found["not_checked"] if one["check"] == "canary"]
    assert said == ["the model: its forward also reaches the model itself"]


def test_hooks_of_the_user_are_not_called_for_it(tmp_path):
    calls = {}

    def prepare(model):
        for module in model.modules():
            module.register_forward_hook(
                lambda m, *_: calls.update({id(m): calls.get(id(m), 0) + 1})
            )
        for parameter in model.parameters():
            parameter.register_hook(lambda g: calls.update(gradients=calls.get("gradients", 0) + 1))

    train(None, prepare=prepare)
    bare, _ = dict(sorted(calls.items(), key=str)), calls.clear()
    train(str(tmp_path), prepare=prepare)
    assert sorted(calls.values()) == sorted(bare.values())


def test_of_two_ranks_the_one_is_named_whose_model_changed_and_no_rank_waits_for_another(tmp_path):
    names = ["changed", "collective"]
    launch.run("canary_run.py", tmp_path, *names, ranks=2)
    for rank in range(2):
        assert json.loads((tmp_path / f"same{rank}.json").read_text()) == dict.fromkeys(names, True)
    (one,), _ = of_canary(tmp_path / "changed")
    assert (one["step"], one["ranks"], one["tensors"]) == (21, [1], ["drop"]), one
    none, found = of_canary(tmp_path / "collective")
    assert not none and "canary" not in found["checked"]
    said = {one["why"] for one in found["not_checked"] if one["check"] == "canary"}
    assert said == {"the model: its forward calls collectives"}
