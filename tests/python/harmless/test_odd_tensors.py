"""Tensors whose class or surroundings decide what an operation does: they are refused by name, and the rest goes on."""

from __future__ import annotations

import collections.abc

import pytest
import torch
from torch import nn
from torch.utils import _pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

import trainmon


class Wrapped(torch.Tensor):
    """As of quantisation libraries: without memory of its own."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device, strides=inner.stride()
        )

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        def inner(one):
            return one.inner if isinstance(one, cls) else one

        result = function(*_pytree.tree_map(inner, args), **_pytree.tree_map(inner, kwargs or {}))
        wrapped = _pytree.tree_map(
            lambda one: cls(one) if isinstance(one, torch.Tensor) else one, result
        )
        return return_and_correct_aliasing(function, args, kwargs or {}, wrapped)


def made(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8, dtype=dtype), nn.Identity(), nn.Linear(8, 8, dtype=dtype))


def step(model, optimizer, x):
    optimizer.zero_grad()
    model(x).abs().sum().backward()
    optimizer.step()


def fake(model, x):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        model(torch.ones(3, 8))


SURROUNDINGS = {
    "fake": fake,
    "functionalize": lambda model, x: torch.func.functionalize(model)(x),
    "vmap": lambda model, x: torch.func.vmap(model)(x),
    "grad": lambda model, x: torch.func.grad(lambda x: model(x).sum())(x),
    "trace": lambda model, x: torch.jit.trace(model, x),
    "none": lambda model, x: None,
}


@pytest.mark.parametrize("backend", ["ops", "auto"])
@pytest.mark.parametrize("surroundings", [name for name in SURROUNDINGS if name != "none"])
def test_a_forward_that_computes_nothing_of_its_own(tmp_path, backend, surroundings):
    rows = {}
    for name in (surroundings, "none"):
        model, x = made(), torch.ones(3, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor = trainmon.watch(
            model,
            optimizer,
            kinds=["grads", "activations"],
            every=1,
            backend=backend,
            out=str(tmp_path / name),
        )
        step(model, optimizer, x)
        SURROUNDINGS[name](model, x)
        for _ in range(3):
            step(model, optimizer, x)
        health = monitor.stop()
        assert health["parts_off"] == {}
        kinds = trainmon.read_table(str(tmp_path / name))["kind"]
        rows[name] = (
            sum(kind == "grad_reduced" for kind in kinds),
            bytes(model[0].weight.detach().numpy().tobytes()),
        )
    assert rows[surroundings] == rows["none"]


def odd(name):
    model, x = made(torch.complex64 if name == "complex64" else torch.float32), torch.ones(3, 8)
    if name == "Wrapped":
        model[2].weight = nn.Parameter(Wrapped(model[2].weight.detach()))
    elif name == "complex64":
        x = x.to(torch.complex64)
    elif name == "float8_e4m3fnuz":
        model.register_buffer("scale", torch.ones(3).to(torch.float8_e4m3fnuz))
    elif name == "nested":
        x = torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)])
        model = nn.Sequential(model, Unnested())
    return model, x


class Unnested(nn.Module):
    def forward(self, given):
        return given.to_padded_tensor(0.0)


@pytest.mark.parametrize("backend", ["ops", "auto"])
@pytest.mark.parametrize("name", ["Wrapped", "complex64", "float8_e4m3fnuz", "nested"])
def test_one_odd_tensor_switches_nothing_off(tmp_path, name, backend):
    model, x = odd(name)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    monitor = trainmon.watch(
        model, optimizer, kinds="all", checks=True, every=1, backend=backend, out=str(tmp_path)
    )
    for _ in range(4):
        step(model, optimizer, x)
    health = monitor.stop()
    assert health["parts_off"] == {}
    if backend == "ops":
        assert name in health["refused"], health["refused"]


def test_a_graph_that_is_captured_has_none_of_our_operations(tmp_path):
    from torch.fx.experimental.proxy_tensor import make_fx

    model, x = made(), torch.ones(3, 8)

    def names():
        return [node.name for node in make_fx(model, pre_dispatch=True)(x).graph.nodes]

    bare = names()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kinds = ["activations", "spectral"]
    with trainmon.watch(model, optimizer, kinds=kinds, every=1, out=str(tmp_path)) as monitor:
        assert names() == bare
        step(model, optimizer, x)
        assert names() == bare
    assert monitor.stop()["parts_off"] == {}


class Lazy(collections.abc.Mapping):
    """Computes its values when it is asked for them."""

    def __init__(self, value):
        self.value = value

    def __getitem__(self, key):
        return nn.functional.dropout(self.value, 0.5)

    def __iter__(self):
        return iter(["a", "b"])

    def __len__(self):
        return 2


class LazyList(list):
    def __getitem__(self, index):
        raise ZeroDivisionError

    def __iter__(self):
        raise ZeroDivisionError

    def __len__(self):
        raise ZeroDivisionError


@pytest.mark.parametrize("kind", [Lazy, LazyList])
def test_containers_of_the_user_are_not_asked_for_what_they_compute(tmp_path, kind):
    class Gives(nn.Module):
        def forward(self, given):
            return Lazy(given) if kind is Lazy else LazyList([given])

    class Takes(nn.Module):
        def forward(self, given):
            return given["a"] if kind is Lazy else list.__getitem__(given, 0)

    random = []
    for is_watched in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), Gives(), Takes())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if is_watched:
            monitor = trainmon.watch(
                model, optimizer, kinds="activations", every=1, out=str(tmp_path)
            )
        for _ in range(3):
            step(model, optimizer, torch.ones(2, 4))
        random.append(torch.rand(3).tolist())
    assert random[0] == random[1]
    assert monitor.stop()["parts_off"] == {}


def test_a_mapping_that_raises_is_said_and_goes_on(tmp_path, caplog):
    class Raises(Lazy):
        def __getitem__(self, key):
            raise ZeroDivisionError("no metric")

    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.watch(model, optimizer, out=str(tmp_path)) as monitor:
        monitor.log(Raises(1.0))
        step(model, optimizer, torch.ones(2, 8))
    assert "log() takes numbers by name, or a dict of them, not Raises: no metric" in caplog.text


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_watch_in_a_step_hook_of_its_optimizer(tmp_path, register, is_last):
    """torch raises where a hook comes behind others that it has still to go through."""
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = []

    def hook(*given):
        try:
            trainmon.watch(model, optimizer, out=str(tmp_path / str(len(said)))).stop()
            said.append("watched")
        except RuntimeError as error:
            said.append(str(error))

    getattr(optimizer, register)(hook)
    if not is_last:
        getattr(optimizer, register)(lambda *given: None)
    step(model, optimizer, torch.ones(2, 8))
    step(model, optimizer, torch.ones(2, 8))
    assert len(said) == 2
    assert said[0] == "watched" if is_last else "call watch() after its step()" in said[0]
    with trainmon.watch(model, optimizer, out=str(tmp_path / "later")):
        step(model, optimizer, torch.ones(2, 8))


def test_weights_that_grow_are_no_certain_fault(tmp_path):
    """A vocabulary gets more entries."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with trainmon.watch(model, optimizer, checks=True, every=1, out=str(tmp_path)):
        for number in range(8):
            if number == 4:
                last = model[1]
                last.weight.data = torch.cat([last.weight.data, torch.randn(2, 8)])
                last.bias.data = torch.cat([last.bias.data, torch.randn(2)])
                last.weight.grad = last.bias.grad = None
                optimizer.state.clear()
            step(model, optimizer, torch.randn(5, 8))
    found = trainmon.diagnose(str(tmp_path))
    assert found["verdict"] is None, found["verdict"]
    texts = [one["text"] for one in found["findings"] if one["step"] == 4]
    assert "the weights have another number of elements than the step before left" in texts
