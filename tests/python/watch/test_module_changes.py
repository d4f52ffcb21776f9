# Modules that are replaced, removed, added, moved and wrapped while a model is watched.
import gc
import json
import warnings
import weakref

import pytest
import torch
from torch import nn

import trainmon
import versions
from adapter_rows import assert_is, healthy, keys, row, rows, run_json
from models import TiedHead, train_step, two_layers

KINDS = ["grads", "grad_unreduced", "weights", "moments", "activations"]


def test_a_module_that_is_replaced_is_watched_under_its_name(tmp_path):
    model, optimizer = two_layers()
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path)
    train_step(model, optimizer)
    old = weakref.ref(model[2])
    model[2] = nn.Linear(4, 2)
    optimizer.param_groups[0]["params"][2:] = list(model[2].parameters())
    for _ in range(2):
        train_step(model, optimizer)
    gradient = model[2].weight.grad.clone()
    gc.collect()
    assert old() is None
    healthy(monitor)
    for kind in ("grad_reduced", "grad_unreduced", "param_updated", "exp_avg"):
        assert (2,) in keys(tmp_path, "step", kind=kind, name="2.weight"), kind
    assert_is(row(tmp_path, kind="grad_reduced", name="2.weight", step=2), gradient)
    assert (2,) in keys(tmp_path, "step", kind="actv", name="2", element="output")


def test_a_wrapped_module_gets_its_new_name(tmp_path):
    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.low = base.requires_grad_(False), nn.Linear(3, 4, bias=False)

        def forward(self, x):
            return self.base(x) + self.low(x)

    model, optimizer = two_layers()
    monitor = trainmon.watch(model, optimizer, kinds=["grads", "actv"], out=tmp_path)
    train_step(model, optimizer)
    model[0] = Adapted(model[0])
    optimizer.add_param_group({"params": list(model[0].low.parameters())})
    for _ in range(2):
        train_step(model, optimizer)
    healthy(monitor)
    names = {name for (name,) in keys(tmp_path, "name", kind="actv", step=2)}
    assert names == {"", "0", "0.base", "0.low", "1", "2"}
    gradients = {name for (name,) in keys(tmp_path, "name", kind="grad_reduced", step=2)}
    assert gradients == {"0.low.weight", "2.weight", "2.bias"}


def loop_step(model, monitor, data=None):
    """A step of a loop without an optimizer."""
    model.zero_grad()
    model(torch.ones(2, 3) if data is None else data).pow(2).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.01 * parameter.grad
    monitor.step()


def three_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))


def replace(model):
    model[1] = nn.Linear(3, 3)


def remove(model):
    model[1] = nn.Identity()


def delete(model):
    del model[1]


def swap(model):
    model[0], model[1] = model[1], model[0]


def append(model):
    model.append(nn.Linear(2, 2))


def nest(model):
    model[1].add_module("inner", nn.Linear(3, 3))  # nobody calls it


CHANGES = {
    "none": ("", lambda model: None),
    "replaced": ("1 replaced: 1", replace),
    "removed": ("1 replaced: 1", remove),
    "deleted": ("2 replaced, 1 removed: 1, 2, 3", delete),
    "swapped": ("2 replaced: 0, 1", swap),
    "appended": ("1 added: 4", append),
    "nested": ("1 added: 1.inner", nest),
}


@pytest.mark.parametrize("has_optimizer", [False, True], ids=["loop", "optimizer"])
@pytest.mark.parametrize("case", CHANGES)
def test_rows_are_those_of_the_modules_that_are_there(case, has_optimizer, tmp_path, caplog):
    said, change = CHANGES[case]
    model = three_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01) if has_optimizer else None
    kinds = ["grad_reduced", "grad_micro", "param_updated", "activations"]
    monitor = trainmon.watch(model, optimizer, kinds=kinds, out=tmp_path)
    gradients, weights = {}, {}
    for index in range(6):
        if index == 3:
            change(model)
            if has_optimizer:  # those it has stay
                held = {id(p) for group in optimizer.param_groups for p in group["params"]}
                new = [p for p in model.parameters() if id(p) not in held]
                if new:
                    optimizer.add_param_group({"params": new})
        if has_optimizer:
            train_step(model, optimizer, torch.ones(2, 3))
        else:
            loop_step(model, monitor)
        for name, parameter in model.named_parameters():
            weights[name, index] = parameter.detach().clone()
            if parameter.grad is not None:
                gradients[name, index] = parameter.grad.clone()
    healthy(monitor)
    expected = {"grad_reduced": gradients, "grad_micro": gradients, "param_updated": weights}
    for kind, tensors in expected.items():
        found = {(row["name"], row["step"]): row for row in rows(tmp_path, kind=kind)}
        assert set(found) == set(tensors), kind
        for key, tensor in tensors.items():
            assert_is(found[key], tensor)
    for index in (2, 3, 5):
        names = {name for (name,) in keys(tmp_path, "name", kind="actv", step=index)}
        there = {name for name, _ in model.named_modules() if name != "1.inner"}
        assert names == (there if index > 2 else {"", "0", "1", "2", "3"}), index
        assert len(keys(tmp_path, "name", kind="actv", step=index, element="output")) == len(names)
    lines = [text for text in caplog.messages if "changed after watch()" in text]
    assert [line.split("hooks")[0] for line in lines] == (
        [f"trainmon: modules changed after watch() ({said}): "] if said else []
    )
    missing = run_json(monitor)["not_covered"]
    assert ("rows of 3, from some step on" in missing) == (case == "deleted")
    left = "2 parameters of the optimizers, from some step on"
    gone = has_optimizer and case in ("replaced", "removed", "deleted")
    assert (left in missing) == gone


def test_what_was_put_in_has_features_and_what_is_gone_has_none(tmp_path):
    model = three_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kinds = ["spectral", "stack"]
    monitor = trainmon.watch(model, optimizer, kinds=kinds, out=tmp_path, start_step=2)
    for index in range(6):
        if index == 1:
            model.append(nn.Linear(2, 2))
        elif index == 4:
            model[0], model[1] = nn.Sequential(model[1]), nn.Identity()
        train_step(model, optimizer, torch.ones(2, 3))
    healthy(monitor)
    for index in (2, 3, 4, 5):
        names = [name for (name,) in keys(tmp_path, "name", kind="spectral_norm", step=index)]
        expected = ["0", "1", "3", "4"] if index < 4 else ["0.0", "3", "4"]
        assert sorted(names) == expected
    norms = row(tmp_path, kind="spectral_norm", name="0.0", step=5)
    assert (
        abs(norms["max"] - float(torch.linalg.matrix_norm(model[0][0].weight.detach(), 2))) < 0.05
    )
    texts = trainmon.read_table(str(tmp_path)).payloads
    assert sorted(text["name"] for text in texts) == ["", "0", "1", "2", "3", "4"]


@pytest.mark.parametrize("has_optimizer", [False, True], ids=["loop", "optimizer"])
def test_what_was_removed_is_let_go(has_optimizer, tmp_path):
    model = three_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01) if has_optimizer else None
    with trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path) as monitor:
        for index in range(3):
            if index == 1:
                gone = weakref.ref(model[1]), weakref.ref(model[1].weight)
                replace(model)
                if has_optimizer:
                    optimizer.param_groups[0]["params"] = list(model.parameters())
            if has_optimizer:
                train_step(model, optimizer, torch.ones(2, 3))
            else:
                loop_step(model, monitor)
        gc.collect()
        assert [reference() for reference in gone] == [None, None]


def test_new_parameters_that_no_optimizer_has_are_said(tmp_path, caplog):
    model = three_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = trainmon.watch(model, optimizer, out=tmp_path)
    for index in range(3):
        if index == 1:
            replace(model)
        train_step(model, optimizer, torch.ones(2, 3))
    monitor.stop()
    (said,) = [text for text in caplog.messages if "call watch() again" in text]
    assert "1.weight among them" in said
    assert "no optimizer given to watch() has the new ones" in json.dumps(
        run_json(monitor)["not_covered"]
    )


@pytest.mark.parametrize("has_it", [False, True], ids=["no_optimizer", "optimizer"])
@pytest.mark.parametrize("name", ["tokens", "head"])
def test_a_tied_parameter_that_is_replaced_under_one_of_its_names(name, has_it, tmp_path, caplog):
    torch.manual_seed(0)
    model = TiedHead()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = trainmon.watch(model, optimizer, kinds=["grads", "weights"], out=tmp_path)
    gradients = {}
    for index in range(6):
        if index == 3:
            module = getattr(model, name)
            module.weight = nn.Parameter(module.weight.detach().clone())
            if has_it:
                optimizer.add_param_group({"params": [module.weight]})
        optimizer.zero_grad()
        model(torch.tensor([1, 2])).pow(2).sum().backward()
        for one, parameter in model.named_parameters():
            gradients[one, index] = parameter.grad.clone()
        optimizer.step()
    healthy(monitor)
    changed = [text for text in caplog.messages if "changed after watch()" in text]
    assert changed == [
        "trainmon: parameters changed after watch() (1 replaced): hooks were put on again"
    ]
    lost = [text for text in caplog.messages if "call watch() again" in text]
    assert [f"({name}.weight among them)" in text for text in lost] == [True] * (not has_it)
    said = json.dumps(run_json(monitor)["not_covered"])
    assert (f"or added, {name}.weight among them" in said) == (not has_it)
    found = {(row["name"], row["step"]): row for row in rows(tmp_path, kind="grad_reduced")}
    for key, row_of in found.items():
        assert_is(row_of, gradients[key])
    assert {("tokens.weight", index) for index in range(3)} <= set(found)
    if has_it:
        assert {(f"{one}.weight", 5) for one in ("tokens", "head")} <= set(found)


def test_a_lazy_module_is_watched_once_it_has_shapes(tmp_path):
    model = three_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = trainmon.watch(model, optimizer, kinds=["actv", "grads"], out=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for index in range(6):
            if index == 1:
                model.append(nn.LazyLinear(2))
            elif index == 3:
                model[0].add_module("unused", nn.LazyLinear(2))
            train_step(model, optimizer, torch.ones(2, 3))
    healthy(monitor)
    place = {"kind": "actv", "name": "4", "element": "output"}
    assert keys(tmp_path, "step", **place) == [(step,) for step in range(1, 6)]
    assert keys(tmp_path, "step", kind="grad_reduced", name="4.weight")[:2] == [(1,), (2,)]
    assert len(keys(tmp_path, "step", kind="grad_reduced", name="0.weight")) == 6
    assert "what changed in the model until then" in run_json(monitor)["not_covered"]


def test_a_module_that_comes_and_goes_in_a_loop_is_told_a_few_times(tmp_path, caplog):
    model = three_layers()
    monitor = trainmon.watch(model, out=tmp_path)
    for index in range(60):
        model.add_module(f"extra{index}", nn.Identity())
        loop_step(model, monitor)
    healthy(monitor)
    said = [text for text in caplog.messages if "modules changed" in text]
    assert len(said) == 20


def test_a_module_called_from_elsewhere_gives_no_rows_of_the_model(tmp_path):
    """It is no part of the model any more, though the model's forward calls it."""

    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(3, 3), nn.Linear(3, 2)
            self.kept = []

        def forward(self, x):
            return self.head((self.kept or [self.body])[0](x))

    model = Holds()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = trainmon.watch(model, optimizer, kinds=["actv", "grads"], out=tmp_path)
    for index in range(4):
        if index == 2:
            model.kept = [model.body]
            del model.body
        train_step(model, optimizer, torch.ones(2, 3))
    healthy(monitor)
    assert keys(tmp_path, "step", kind="actv", name="body", element="output") == [(0,), (1,)]
    assert keys(tmp_path, "step", kind="grad_reduced", name="body.weight") == [(0,), (1,)]


def test_hooks_that_a_library_moves_give_each_row_once(tmp_path, caplog):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, optimizer, kinds=["actv", "grads"], out=tmp_path)
    data = torch.randn(2, 1, 3, 3)
    for index in range(4):
        if index == 2:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.ao.quantization.fuse_modules_qat(model, [["0", "1", "2"]], inplace=True)
        model(data).sum().backward()
        optimizer.step()
    healthy(monitor)
    found = keys(tmp_path, "name", kind="actv", step=3, element="output")
    assert sorted(found) == sorted((name,) for name, _ in model.named_modules())
    gradients = {name for (name,) in keys(tmp_path, "name", kind="grad_reduced", step=3)}
    assert gradients == {name for name, _ in model.named_parameters()}
    assert "emptied" not in caplog.text


@pytest.mark.parametrize("what", [pytest.param("compiled", marks=versions.compile_here), "module"])
def test_what_is_put_around_a_module_later_changes_no_name(what, tmp_path, caplog):
    model = three_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = trainmon.watch(model, optimizer, kinds=["actv", "grads"], out=tmp_path)
    for index in range(4):
        if index == 2:
            if what == "compiled":
                model[1] = torch.compile(model[1], backend="eager")
            else:
                model[1] = nn.DataParallel(model[1])
        train_step(model, optimizer, torch.ones(2, 3))
    healthy(monitor)
    assert "changed" not in caplog.text and "call watch() again" not in caplog.text
    for index in range(4):
        place = {"kind": "actv", "step": index, "element": "output"}
        names = sorted(name for (name,) in keys(tmp_path, "name", **place))
        assert names == ["", "0", "1", "2", "3"]
        gradients = keys(tmp_path, "name", kind="grad_reduced", step=index)
        assert len(gradients) == 6 and ("1.weight",) in gradients


@versions.compile_here
@versions.compiled_operators
def test_a_module_that_comes_into_compiled_code_is_said(tmp_path):
    model = three_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    keys_of_it = {"kinds": ["actv", "grads"], "inside_compiled": True}
    monitor = trainmon.watch(model, optimizer, out=tmp_path, **keys_of_it)
    whole = torch.compile(model, backend="eager")
    for index in range(4):
        if index == 2:
            replace(model)
        train_step(whole, optimizer, torch.ones(2, 3))
    healthy(monitor)
    assert keys(tmp_path, "step", kind="actv", name="1", element="output") == [(0,), (1,)]
    missing = run_json(monitor)["not_covered"]
    assert "torch._dynamo.reset()" in missing["actv of 1 inside torch.compile"]


def test_training_is_the_same_bit_by_bit_whatever_changes(tmp_path):
    for case, (_, change) in CHANGES.items():
        results = []
        for watched in (False, True):
            model = three_layers()
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            if watched:
                monitor = trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path / case)
            losses = []
            for index in range(6):
                if index == 3:
                    change(model)
                optimizer.zero_grad()
                loss = model(torch.randn(5, 3)).pow(2).sum()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            if watched:
                healthy(monitor)
            results.append(losses + [p.detach().clone() for p in model.parameters()])
            for module in model.modules():
                assert not module._forward_hooks and not module._forward_pre_hooks
        assert all(map(torch.equal, *results)), case
