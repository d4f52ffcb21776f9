"""Canaries beside models that keep more than buffers: the training stays as it is, whatever a forward changes."""

from __future__ import annotations

import collections
import functools
import importlib
import itertools
import queue
import random
import threading
import types
import weakref

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import trainmon

NUMPY, TORCH, PYTHON = numpy.random.default_rng(1), torch.Generator(), random.Random(2)
SEEN, COUNT = [], 0
ARRAY, TENSOR, ITERATOR = numpy.zeros(1), torch.zeros(8), itertools.count()


class Reversed(torch.autograd.Function):
    sizes: list = []

    @staticmethod
    def forward(ctx, x):
        Reversed.sizes.append(x.shape[0])
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 16 / Reversed.sizes.pop(0)


class Anneal:
    __slots__ = ("rate", "value")

    def __init__(self):
        self.rate, self.value = 0.95, 1.0

    def __call__(self):
        self.value *= self.rate
        return self.value


NESTED = types.SimpleNamespace(all={"mask": NUMPY})
ANNEAL = Anneal()
WAYS = {"mask": lambda x: x * of_mask(NUMPY.random(8) > 0.3)}


class Parent(nn.Module):
    def __init__(self, state, use):
        super().__init__()
        self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 4)
        self.inner.parent = weakref.ref(self)
        self.state, self.use, self.losses = state, use, []

    def forward(self, x):
        return self.head(self.use(self, self.inner(x)))


def of_mask(keep):
    return torch.as_tensor(numpy.asarray(keep)).float()


def add_to_deque(model, x):
    model.state.append(x.detach().mean())
    return x - torch.stack(list(model.state)).mean()


def move_mean(model, x):
    with torch.no_grad():
        model.state.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return x - model.state


def count_in(model, x):
    model.state.calls += 1
    return x * (1 - 0.001 * model.state.calls)


def add_to_array(model, x):
    model.state += 1
    return x / (1 + 0.01 * float(model.state[0]))


def send_to_parent(model, x):
    model.inner.parent().losses.append(x.pow(2).mean())
    return x


def see(model, x):
    SEEN.append(float(x.detach().mean()))
    return x * (1 + 0.001 * len(SEEN))


def count(model, x):
    global COUNT
    COUNT += 1
    return x * (1 + 0.001 * COUNT)


def write_array(model, x):
    ARRAY[0] += 1
    return x / (1 + 0.01 * float(ARRAY[0]))


def write_data(model, x):
    TENSOR.data.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return x - TENSOR


def note(model, x):
    note.calls = getattr(note, "calls", 0) + 1
    return x * (1 + 0.001 * note.calls)


def remember(model, x, kept=[]):  # noqa: B006
    kept.append(1)
    return x * (1 + 0.001 * len(kept[-40:]))


def without_gradient(model, x):
    with torch.no_grad():
        return x + 0.1 * model.state[0](x)


@torch.no_grad()
def drawn_mask(x):
    return x * of_mask(NUMPY.random(8) > 0.3)


@functools.lru_cache
def table(size):
    return torch.rand(size)


@functools.lru_cache
def power(number):
    return 0.99**number


def look_up_more(model, x):
    model.state[0] += 1
    return x * power(model.state[0])


class Freed:
    def __init__(self):
        self.names = ["x"]

    def __del__(self):
        self.names.clear()


QUEUE = queue.Queue()

# What a model keeps, and what its forward does with it.
STATES = {
    "numpy": (lambda: numpy.random.default_rng(0), lambda m, x: x * of_mask(m.state.random(8) > 0.3)),
    "random_state": (lambda: numpy.random.RandomState(0), lambda m, x: x * of_mask(m.state.rand(8) > 0.3)),
    "python": (lambda: random.Random(0), lambda m, x: x * (0.5 + m.state.random())),
    "bound": (lambda: random.Random(0).random, lambda m, x: x * (0.5 + m.state())),
    "torch_in_list": (lambda: [torch.Generator()], lambda m, x: x + torch.randn(8, generator=m.state[0])),
    "numpy_global": (list, lambda m, x: x * of_mask(NUMPY.random(8) > 0.3)),
    "torch_global": (list, lambda m, x: x + torch.randn(8, generator=TORCH)),
    "python_global": (list, lambda m, x: x * (0.5 + PYTHON.random())),
    "tensor": (lambda: torch.zeros(8), move_mean),
    "deque": (lambda: collections.deque(maxlen=5), add_to_deque),
    "defaultdict": (lambda: collections.defaultdict(list), lambda m, x: m.state["x"].append(1) or x * len(m.state["x"])),
    "namespace": (lambda: types.SimpleNamespace(calls=0), count_in),
    "slots": (Anneal, lambda m, x: x * m.state()),
    "array": (lambda: numpy.zeros(1), add_to_array),
    "count": (itertools.count, lambda m, x: x * (1 - 0.001 * next(m.state))),
    "weak": (list, send_to_parent),
    "function": (list, lambda m, x: Reversed.apply(x)),
    "list_global": (list, see),
    "number_global": (list, count),
    "default": (list, remember),
    "nested_global": (list, lambda m, x: x * of_mask(NESTED.all["mask"].random(8) > 0.3)),
    "by_name": (list, lambda m, x: WAYS["mask"](x)),
    "object_global": (list, lambda m, x: x * ANNEAL()),
    "array_global": (list, write_array),
    "data_global": (list, write_data),
    "iterator_global": (list, lambda m, x: x * (1 - 0.001 * next(ITERATOR))),
    "attribute": (list, note),
    "decorated": (list, lambda m, x: x + 0.1 * drawn_mask(x)),
    "cached": (list, lambda m, x: x + table(8)),
    "looked_up": (list, lambda m, x: x * power(8)),
    "looked_up_more": (lambda: [0], look_up_more),
    "freed": (Freed, lambda m, x: x * len(m.state.names)),
    "lock": (list, lambda m, x: x * (1 if QUEUE.empty() else 2)),
    "hidden": (lambda: [nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))], without_gradient),
}  # fmt: skip
CHANGED = "its forward changes what is outside of the model: "
# What has no canary, and what is said of it.
SAID = {
    "count": "state is a count, which has no copy here",
    "hidden": "state[0] is a module that is no child of the model",
    "list_global": CHANGED + "SEEN",
    "number_global": CHANGED + "COUNT",
    "object_global": CHANGED + "ANNEAL",
    "array_global": CHANGED + "ARRAY",
    "data_global": CHANGED + "TENSOR",
    "attribute": CHANGED + "note",
    "cached": "its functions may draw the random numbers that stay in the cache of table, a _lru_cache_wrapper",
    "looked_up_more": CHANGED + "the cache of power",
    "freed": "state is a Freed, which has a __del__",
    "lock": "its functions may wait for QUEUE, a lock",
    "iterator_global": "its functions may advance ITERATOR, a count",
}


def train(out, name, around=None, steps=16):
    """Losses, weights, and all that the model keeps."""
    global NUMPY, COUNT, ITERATOR
    NUMPY, COUNT, ITERATOR = numpy.random.default_rng(1), 0, itertools.count()
    NESTED.all["mask"], ANNEAL.value, note.calls = NUMPY, 1.0, 0
    ARRAY.fill(0), TENSOR.zero_(), table.cache_clear(), power.cache_clear()
    TORCH.manual_seed(3), PYTHON.seed(2), SEEN.clear(), Reversed.sizes.clear()
    remember.__defaults__[0].clear()
    torch.manual_seed(0)
    make, use = STATES[name]
    model = Parent(make(), use)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    monitor = None
    if out is not None:
        monitor = trainmon.watch(model, optimizer, kinds="canary", checks=True, every=1, out=out)
    losses = []
    for step in range(steps):
        if name == "torch_in_list" and step % 6 == 0:
            model.state = [torch.Generator().manual_seed(step)]
        x = torch.randn(16, 8)
        with around() if around else torch.enable_grad() as mode:
            loss = F.mse_loss(model(x), x[:, :4]) + 0.01 * sum(model.losses)
            model.losses.clear()
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        losses.append(
            (loss.item(), mode.get_total_flops() if isinstance(mode, FlopCounterMode) else 0)
        )
    if monitor is not None:
        monitor.stop()
    state = vars(model.state) if isinstance(model.state, types.SimpleNamespace) else model.state
    if name == "slots":
        state = model.state.value
    if name == "hidden":
        state = list(model.state[0].buffers())
    drawn = NUMPY.random(), torch.rand(1, generator=TORCH).item(), PYTHON.random(), COUNT
    drawn += ANNEAL.value, ARRAY[0], TENSOR.tolist(), next(ITERATOR), note.calls
    weights = [p.detach().tolist() for p in model.parameters()]
    return repr((losses, weights, state, drawn, SEEN, Reversed.sizes, remember.__defaults__))


@pytest.mark.parametrize("name", STATES)
def test_what_a_forward_changes_stays_as_unwatched(tmp_path, name):
    def without_places(text):  # of objects that show where they are
        return [one.split(" at 0x")[0] for one in text.split("<")]

    assert without_places(train(None, name)) == without_places(train(str(tmp_path), name))
    found = trainmon.diagnose(str(tmp_path))
    said = [one["why"] for one in found["not_checked"] if one["check"] == "canary"]
    assert found["verdict"] is None
    if name in SAID:
        assert said == [f"the model: {SAID[name]}"]
    else:
        rows = trainmon.read(str(tmp_path))
        assert set(rows[rows.kind == "canary_actv"].step) == set(range(4, 16)), said


PACKAGE = """
import contextlib, importlib, itertools, threading

NUMBERS, LOCK = itertools.count(), threading.Lock()

@contextlib.contextmanager
def locked():
    with LOCK:
        yield next(NUMBERS)

@locked()
def scaled(values):
    return values * getattr(importlib.import_module("math"), "pi")
"""


def test_a_package_keeps_locks_and_counts_of_its_own(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "scaling_of_others.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(folder)
    package = importlib.import_module("scaling_of_others")
    monkeypatch.setitem(STATES, "package", (list, lambda m, x: package.scaled(x)))
    assert train(None, "package") == train(str(tmp_path / "run"), "package")
    rows = trainmon.read(str(tmp_path / "run"))
    assert set(rows[rows.kind == "canary_actv"].step) == set(range(4, 16))


class Saved:
    """What only its other methods reach is no part of a forward."""

    def __init__(self):
        self.factor = 0.5

    def times(self, values):
        return values * self.factor

    def write_to(self, folder):
        QUEUE.put(folder)


def test_methods_that_no_forward_names_are_not_looked_into(tmp_path, monkeypatch):
    monkeypatch.setitem(STATES, "saved", (Saved, lambda m, x: m.state.times(x)))
    train(str(tmp_path), "saved")
    assert (trainmon.read(str(tmp_path)).kind == "canary_actv").any()


class Chosen:
    def __init__(self):
        self.factor = 0.5

    def counted(self, values):
        SEEN.append(1)
        return values * self.factor


def test_methods_that_are_asked_for_by_a_text_are_looked_into(tmp_path, monkeypatch):
    way = "coun" + "ted"
    monkeypatch.setitem(STATES, "chosen", (Chosen, lambda m, x: getattr(m.state, way)(x)))
    train(str(tmp_path), "chosen")
    (why,) = [
        one["why"]
        for one in trainmon.diagnose(str(tmp_path))["not_checked"]
        if one["check"] == "canary"
    ]
    assert why == f"the model: {CHANGED}SEEN" and len(SEEN) == 16


class Doubled(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        return output * (0.9 + 0.2 * PYTHON.random()) if function is F.linear else output


def counted():
    return torch.autograd.graph.saved_tensors_hooks(lambda x: SEEN.append(1) or x, lambda x: x)


@pytest.mark.parametrize(
    ("around", "said"),
    [
        (lambda: FlopCounterMode(display=False), "FlopCounterMode is on around the forward"),
        (Doubled, "Doubled is on around the forward"),
        (counted, "saved_tensors_hooks is on around the forward"),
        (torch.autograd.profiler.profile, "a profiler is on around the forward"),
    ],
    ids=["flops", "function", "saved", "profiler"],
)
def test_what_is_on_around_the_forward_sees_no_canary(tmp_path, around, said):
    assert train(None, "slots", around) == train(str(tmp_path), "slots", around)
    found = trainmon.diagnose(str(tmp_path))
    (why,) = [one["why"] for one in found["not_checked"] if one["check"] == "canary"]
    # Of a mode of torch it is _FlopCounterMode.
    assert why.startswith("some forwards: ") and why.endswith(said)


def test_hooks_of_all_modules_see_no_canary(tmp_path):
    calls = []
    handle = nn.modules.module.register_module_forward_hook(lambda *_: calls.append(1))
    try:
        train(None, "slots")
        bare = len(calls)
        train(str(tmp_path), "slots")
    finally:
        handle.remove()
    assert len(calls) == 2 * bare


def test_another_thread_of_the_program_has_no_canary_beside_it(tmp_path):
    ends = threading.Event()

    def prefetch():
        while not ends.wait(1e-3):
            random.random()

    thread = threading.Thread(target=prefetch, daemon=True)
    thread.start()
    try:
        train(str(tmp_path), "slots")
    finally:
        ends.set()
        thread.join()
    found = trainmon.diagnose(str(tmp_path))
    (why,) = [one["why"] for one in found["not_checked"] if one["check"] == "canary"]
    assert why == "some forwards: another thread runs prefetch"
