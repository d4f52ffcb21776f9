# Parameters as real models have them: tied, frozen, unused, sparse, replaced, copied, thawed.
import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn

import trainmon
import versions
from adapter_rows import assert_is, healthy, keys, row, rows, run_json
from models import TiedHead
from trainmon.torch.wrappers import contract

BOTH = ["grad_unreduced", "grad_reduced"]


def train(model, optimizer, steps=2, size=3):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, size)).pow(2).sum().backward()
        optimizer.step()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


@versions.post_accumulate_hooks
def test_tied_parameters_are_one_with_an_alias(tmp_path):
    model = TiedHead()
    optimizer = sgd(model)
    with trainmon.watch(model, optimizer, kinds=BOTH, out=tmp_path) as monitor:
        model(torch.tensor([1, 2])).sum().backward()
        gradient = model.tokens.weight.grad.clone()
        optimizer.step()
    healthy(monitor)
    for kind in BOTH:
        found = rows(tmp_path, kind=kind)
        assert [r["name"] for r in found] == ["tokens.weight"]
        assert_is(found[0], gradient)
    assert run_json(monitor)["notes"]["aliases"] == {"tokens.weight": ["head.weight"]}


def test_a_tied_parameter_is_selected_by_any_of_its_names(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    with trainmon.watch(model, sgd(model), include=["1.weight"], out=tmp_path) as monitor:
        model(torch.randn(1, 3)).sum().backward()
        monitor._adapter.clock.optimizer.step()
    assert keys(tmp_path, "name", kind="grad_reduced") == [("0.weight",)]


def test_frozen_parameters_have_weights_only(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())
    kinds = ["grads", "weights", "moments"]
    with trainmon.watch(model, optimizer, kinds=kinds, out=tmp_path) as monitor:
        train(model, optimizer)
    healthy(monitor)
    kinds = {k for (k,) in keys(tmp_path, "kind", name="0.weight")}
    assert kinds == {"param_origin", "param_updated"}
    assert len(rows(tmp_path, kind="param_origin", name="0.weight")) == 2
    assert run_json(monitor)["notes"]["frozen"] == ["0.weight", "0.bias"]


@versions.post_accumulate_hooks
def test_a_thawed_parameter_is_noticed(tmp_path, caplog):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].requires_grad_(False)
    optimizer = sgd(model)
    with trainmon.watch(model, optimizer, kinds=BOTH, out=tmp_path) as monitor:
        train(model, optimizer, 1)
        model[0].requires_grad_(True)
        train(model, optimizer, 3)
    healthy(monitor)
    assert "parameters changed after watch()" in caplog.text
    assert keys(tmp_path, "step", kind="grad_reduced", name="0.weight") == [(1,), (2,), (3,)]
    # Its own hook is there from the step on that noticed it.
    assert keys(tmp_path, "step", kind="grad_unreduced", name="0.weight") == [(2,), (3,)]


@versions.post_accumulate_hooks
def test_an_unused_parameter_has_no_row(tmp_path):
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.always, self.odd = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x, odd):
            return self.odd(self.always(x)) if odd else self.always(x)

    model = Sometimes()
    optimizer = torch.optim.Adam(model.parameters())
    kinds = [*BOTH, "moments", "weights"]
    with trainmon.watch(model, optimizer, kinds=kinds, out=tmp_path) as monitor:
        for step in range(4):
            optimizer.zero_grad()
            model(torch.randn(2, 3), step % 2 == 1).sum().backward()
            optimizer.step()
    healthy(monitor)
    for kind in (*BOTH, "exp_avg"):  # never the numbers of a step before
        assert keys(tmp_path, "step", kind=kind, name="odd.bias") == [(1,), (3,)]
        assert len(rows(tmp_path, kind=kind, name="always.bias")) == 4
    assert len(rows(tmp_path, kind="param_updated", name="odd.bias")) == 4


@versions.post_accumulate_hooks
def test_sparse_gradients_are_refused_and_counted(tmp_path):
    model = nn.Sequential(nn.Embedding(9, 3, sparse=True), nn.Linear(3, 2))
    optimizer = sgd(model)
    with trainmon.watch(model, optimizer, kinds=BOTH, out=tmp_path) as monitor:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.tensor([1, 4])).sum().backward()
            optimizer.step()
    health = healthy(monitor)
    assert health["refused"] == {"sparse_coo": 4}
    assert {n for (n,) in keys(tmp_path, "name")} == {"1.weight", "1.bias"}


@versions.post_accumulate_hooks
def test_expanded_and_odd_gradients(tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.vector = nn.Parameter(torch.randn(6))
            self.image = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
            self.scalar = nn.Parameter(torch.tensor(2.0))
            self.empty = nn.Parameter(torch.zeros(0, 4))

        def forward(self, x):
            return self.vector.sum() + self.image(x).sum() * self.scalar + self.empty.sum()

    model = Odd()
    optimizer = sgd(model)
    images = torch.randn(1, 2, 5, 5).to(memory_format=torch.channels_last)
    with trainmon.watch(model, optimizer, kinds=[*BOTH, "actv_grad"], out=tmp_path) as monitor:
        model(images).backward()
        gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
        optimizer.step()
    healthy(monitor)
    for kind in BOTH:
        for name, gradient in gradients.items():
            assert_is(row(tmp_path, kind=kind, name=name), gradient)
    # The gradient of a sum has stride 0 and counts every element.
    output = row(tmp_path, kind="actv_grad", name="image", element="output")
    assert_is(output, torch.full((1, 3, 3, 3), 2.0))


@versions.assigning
def test_parameters_that_load_state_dict_assigns_anew(tmp_path, caplog):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    optimizer = sgd(model)
    with trainmon.watch(model, optimizer, kinds=[*BOTH, "weights"], out=tmp_path) as monitor:
        train(model, optimizer, 1)
        fresh = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
        model.load_state_dict(fresh.state_dict(), assign=True)
        optimizer.param_groups[0]["params"] = list(model.parameters())
        seen = []
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(2, 3)).sum().backward()
            seen.append(model[0].weight.grad.clone())
            optimizer.step()
    healthy(monitor)
    assert "4 replaced" in caplog.text
    found = rows(tmp_path, kind="grad_reduced", name="0.weight")
    assert [r["step"] for r in found] == [0, 1, 2, 3]
    for r, gradient in zip(found[1:], seen):
        assert_is(r, gradient)
    found = rows(tmp_path, kind="grad_unreduced", name="0.weight")
    assert [r["step"] for r in found] == [0, 2, 3]
    assert all(p._post_accumulate_grad_hooks is None for p in model.parameters())


@versions.since((2, 2), "saving a tensor with hooks, without a warning")
def test_copies_and_pickles_of_a_watched_model_work_and_are_not_watched(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    optimizer = sgd(model)
    kinds = ["grads", "grad_unreduced", "weights", "activations"]
    with trainmon.watch(model, optimizer, kinds=kinds, out=tmp_path) as monitor:
        train(model, optimizer, 1)
        before = monitor.health()["rows_produced"]
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        data = torch.randn(2, 3)
        twins = [
            copy.deepcopy(model),
            torch.load(file, weights_only=False),
            pickle.loads(pickle.dumps(model)),
        ]
        for twin in twins:
            twin(data).sum().backward()
            assert torch.equal(twin(data), model.eval()(data))
        assert monitor.health()["rows_produced"] == before
        model.train()
        copy.deepcopy(optimizer)
        output = model(data)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.save(output, io.BytesIO())
    healthy(monitor)


def test_a_saved_model_loads_where_trainmon_is_not_installed(tmp_path):
    model = nn.Linear(2, 2)
    with trainmon.watch(model, sgd(model), kinds=["activations"], out=tmp_path / "run"):
        text = pickle.dumps(model)
    assert b"trainmon" not in text


@versions.compile_here
def test_names_are_the_users_own(tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = nn.Linear(3, 3)  # not a wrapper's
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(12))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.module(x)

    model = Odd()
    names = [p.name for p in contract.parameters_of([torch.compile(model)])]
    assert names == [n for n, _ in model.named_parameters()]
    optimizer = sgd(model)
    with trainmon.watch(model, optimizer, include=["layers.1"], out=tmp_path):
        train(model, optimizer, 1)
    assert {n for (n,) in keys(tmp_path, "name")} == {"layers.1.weight", "layers.1.bias"}


def test_parameters_of_no_optimizer_follow_the_clock(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    with trainmon.watch(model, optimizer, kinds=["grad_reduced", "weights"], out=tmp_path):
        model(torch.randn(2, 3)).sum().backward()
        gradient = model[0].weight.grad.clone()
        optimizer.step()
    assert_is(row(tmp_path, kind="grad_reduced", name="0.weight", step=0), gradient)
    assert len(rows(tmp_path, kind="param_updated")) == 4


@versions.post_accumulate_hooks
def test_parameters_given_to_an_optimizer_later(tmp_path):
    """The usual way of fine tuning: a frozen part gets its own optimizer after a while."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    one = torch.optim.SGD(model[1].parameters(), lr=0.1)
    two = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    with trainmon.watch(model, [one, two], kinds=BOTH, out=tmp_path) as monitor:
        for step in range(4):
            if step == 1:
                two.add_param_group({"params": list(model[0].parameters())})
            model.zero_grad()
            model(torch.randn(2, 3)).sum().backward()
            one.step()
            two.step()
    healthy(monitor)
    for kind, first in (("grad_reduced", 0), ("grad_unreduced", 0)):
        owners = keys(tmp_path, "step", "optimizer", kind=kind, name="0.bias")
        assert owners[first] == (0, 0) and owners[-1] == (3, 1)
        assert [s for s, _ in owners] in ([0, 1, 2, 3], [0, 1, 1, 2, 3])


def test_parameters_and_modules_that_chunks_share_appear_once(tmp_path):
    shared = nn.Linear(3, 3)
    chunks = [nn.Sequential(shared, nn.Linear(3, 3)), nn.Sequential(nn.Linear(3, 3), shared)]
    optimizer = torch.optim.SGD(nn.ModuleList(chunks).parameters(), lr=0.1)
    kinds = [*BOTH, "actv"]
    with trainmon.watch(chunks, optimizer, kinds=kinds, out=tmp_path) as monitor:
        chunks[1](chunks[0](torch.randn(2, 3))).sum().backward()
        optimizer.step()
    healthy(monitor)
    found = keys(tmp_path, "chunk", "name", kind="grad_reduced")
    assert sorted(found) == [
        *((0, "0.bias"), (0, "0.weight"), (0, "1.bias"), (0, "1.weight")),
        *((1, "0.bias"), (1, "0.weight")),
    ]
    assert keys(tmp_path, "chunk", "call", kind="actv", name="0", element="output") == [
        (0, 0),
        (1, 0),
        (0, 1),
    ]


def test_lazy_parameters_are_refused_by_name(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.LazyLinear(2))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"\(1.weight\): run one forward .* callback one batch"):
        trainmon.watch(model, optimizer, out=tmp_path)


def test_a_model_that_keeps_its_monitor_can_be_copied(tmp_path):
    model = nn.Linear(3, 3)
    model.monitor = trainmon.watch(model, sgd(model), out=tmp_path)
    assert copy.deepcopy(model).monitor is None
    assert pickle.loads(pickle.dumps(model)).monitor is None
    model.monitor.stop()


@versions.since((2, 5), "Adafactor")
def test_state_of_another_shape_is_not_covered(tmp_path):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.Adafactor(model.parameters())
    kinds = ["grads", "moments"]
    with trainmon.watch(model, optimizer, kinds=kinds, out=tmp_path) as monitor:
        train(model, optimizer, 1, size=4)
    healthy(monitor)
    assert "row_var" in run_json(monitor)["not_covered"]
    assert {k for (k,) in keys(tmp_path, "kind", name="bias")} == {"grad_reduced", "variance"}


def test_several_monitors_see_the_same(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 2))
    optimizer = sgd(model)
    kinds = ["grads", "grad_unreduced", "weights", "activations"]
    one = trainmon.watch(model, optimizer, kinds=kinds, out=tmp_path / "one")
    train(model, optimizer, 1)
    two = trainmon.watch(model, optimizer, kinds=kinds, out=tmp_path / "two", start_iteration=1)
    train(model, optimizer, 2)
    one.stop()
    train(model, optimizer, 1)
    two.stop()
    values = ("kind", "name", "element", "step", "micro_step", "call", "norm", "mean")
    first, second = (set(keys(tmp_path / name, *values)) for name in ("one", "two"))
    assert {r for r in first if r[3] in (1, 2)} == {r for r in second if r[3] in (1, 2)}
    assert {r[3] for r in first} == {0, 1, 2} and {r[3] for r in second} == {1, 2, 3}
