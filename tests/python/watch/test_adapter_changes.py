# What users do to a model while it is watched: swap, replace, move and copy its parts, raise, resume.
import copy
import dataclasses
import gc
import json
import types
import warnings
import weakref

import pytest
import torch
from torch import nn

import launch
import trainmon
import versions
from adapter_rows import assert_is, healthy, keys, row, rows, run_json
from models import TiedHead

KINDS = ["grads", "grad_unreduced", "weights", "moments", "activations"]


def two_layers(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def step(model, optimizer, data=None):
    optimizer.zero_grad()
    model(torch.randn(5, 3) if data is None else data).pow(2).sum().backward()
    optimizer.step()


# --- gradients that are not there ------------------------------------------------------------------


class Chunks(nn.Module):
    def forward(self, x):
        return x.chunk(3, -1)


class First(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


@pytest.mark.parametrize("inner", [Chunks(), nn.LSTM(3, 3)], ids=["chunk", "lstm"])
def test_outputs_that_lead_to_no_loss_give_no_gradient_row(inner, tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), First(inner))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, optimizer, kinds=["activations"], out=tmp_path)
    for _ in range(2):
        step(model, optimizer)
    healthy(monitor)
    place = {"kind": "actv_grad", "name": "1.inner"}
    assert keys(tmp_path, "step", "element", **place) == [
        (0, "output.0"),
        (0, "input.0"),
        (1, "output.0"),
        (1, "input.0"),
    ]


def test_a_function_that_gives_no_gradient(tmp_path):
    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient, None

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x):
            return Half.apply(self.a(x), self.b(x))

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kinds = ["grads", "activations"]
    monitor = trainmon.watch(model, optimizer, kinds=kinds, out=tmp_path)
    step(model, optimizer)
    healthy(monitor)
    names = {name for (name,) in keys(tmp_path, "name", kind="actv_grad", element="output")}
    assert names == {"", "a"}
    assert "grad_unreduced" not in run_json(monitor)["not_covered"]


# --- hooks in other hands ----------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["module 0", "module (root)", "parameter 0.weight", "none"])
def test_hooks_that_somebody_empties_are_said_once(what, tmp_path, caplog):
    model, optimizer = two_layers()
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path)
    step(model, optimizer)
    if what == "module 0":
        model[0]._forward_hooks.clear()
    elif what == "module (root)":
        model._forward_hooks = type(model._forward_hooks)()
    elif what != "none":
        model[0].weight._post_accumulate_grad_hooks.clear()
    for _ in range(30):
        step(model, optimizer)
    said = [text for text in caplog.messages if "emptied" in text]
    monitor.stop()
    assert said == ([] if what == "none" else [
        f"trainmon: somebody emptied the hooks of {what}: its rows end, and those of others that were emptied"
    ])  # fmt: skip
    missing = run_json(monitor)["not_covered"]
    assert [key for key in missing if "from some step on" in key] == [
        f"{one}, from some step on" for one in [what] if one != "none"
    ]


def test_hooks_that_a_library_moves(tmp_path):
    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.ReLU())
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    data = torch.randn(2, 1, 3, 3)
    results = []
    for watched in (False, True):
        model, optimizer = build()
        monitor = trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path) if watched else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.ao.quantization.fuse_modules_qat(model, [["0", "1", "2"]], inplace=True)
        model(data).sum().backward()
        optimizer.step()
        if watched:
            healthy(monitor)
        results.append(model(data).detach())
    assert torch.equal(*results)


# --- forwards ----------------------------------------------------------------------------------------


def test_a_forward_that_raises_lets_its_graph_go_when_the_next_begins(tmp_path):
    class Token:
        pass

    tokens = []

    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.token = Token()
            tokens.append(weakref.ref(ctx.token))
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    class Grows(nn.Module):
        def forward(self, x):
            return Keep.apply(x)

    class Full(nn.Module):
        big = True

        def forward(self, x):
            if self.big:
                raise MemoryError
            return x

    model = nn.Sequential(nn.Linear(3, 3), Grows(), Full())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.watch(model, optimizer, kinds=["activations"], out=tmp_path) as monitor:
        with pytest.raises(MemoryError):
            model(torch.randn(2, 3))
        model[2].big = False
        with torch.no_grad():
            model(torch.randn(1, 3))
        gc.collect()
        assert tokens[0]() is None
        step(model, optimizer)
    healthy(monitor)


def test_inputs_are_what_came_in_also_of_a_module_that_writes_over_them(tmp_path):
    model, optimizer = two_layers()
    data = torch.randn(5, 3)
    with torch.no_grad():
        before = model[0](data)
    assert bool((before < 0).any())
    with trainmon.watch(model, optimizer, kinds=["actv"], out=tmp_path):
        step(model, optimizer, data)
    assert_is(row(tmp_path, name="1", element="input.0"), before)
    assert_is(row(tmp_path, name="1", element="output"), before.relu())


def test_a_leaf_that_comes_out_has_one_hook_and_one_row(tmp_path):
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.value = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.value

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.constant = nn.Sequential(Constant())  # the leaf comes out of two modules

        def forward(self, x):
            return x * self.constant(x)

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(2, 3)
    with trainmon.watch(model, optimizer, kinds=["activations"], out=tmp_path):
        for _ in range(20):
            model(data)
        assert len(model.constant[0].value._backward_hooks) == 2
        model(data).sum().backward()
        optimizer.step()
    for name in ("constant", "constant.0"):
        found = row(tmp_path, kind="actv_grad", name=name, element="output")
        assert_is(found, data.sum(0))
    assert model.constant[0].value._backward_hooks is None


@dataclasses.dataclass
class Node:
    value: torch.Tensor
    parent: "Node | None" = None
    children: list = dataclasses.field(default_factory=list)


def test_containers_that_hold_themselves_and_those_nobody_can_look_into(tmp_path):
    class Tree(nn.Module):
        def forward(self, x):
            top = Node(x * 1)
            top.children = [Node(x * 2, top), Node(x * 3, top)]
            return top

    class Opaque(nn.Module):
        def forward(self, x):
            return types.SimpleNamespace(x=x)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.tree, self.opaque = nn.Linear(3, 3), Tree(), Opaque()

        def forward(self, x):
            tree = self.tree(self.opaque(self.linear(x)).x)
            return tree.value + tree.children[1].value

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, optimizer, kinds=["actv"], out=tmp_path)
    step(model, optimizer)
    healthy(monitor)
    elements = {element for (element,) in keys(tmp_path, "element", name="tree")}
    values = {"output.value", "output.children.0.value", "output.children.1.value"}
    assert elements == {"input.0"} | values
    why = "no tensor is found in a SimpleNamespace"
    assert run_json(monitor)["not_covered"] == {"actv opaque output": why}


# --- parameters and modules that change --------------------------------------------------------------


@versions.since((2, 3), "swapping tensors in a conversion")
def test_a_conversion_that_swaps_tensors(tmp_path):
    results = []
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        for watched in (False, True):
            model, optimizer = two_layers()
            monitor = (
                trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path) if watched else None
            )
            data = torch.ones(2, 3)
            step(model, optimizer, data)
            model.double()
            optimizer.state.clear()
            for _ in range(2):
                step(model, optimizer, data.double())
            if watched:
                healthy(monitor)
            results.append([p.detach().clone() for p in model.parameters()])
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    for one, two in zip(*results):
        assert torch.equal(one, two)
    for kind in ("grad_reduced", "param_updated", "exp_avg"):
        assert keys(tmp_path, "step", kind=kind, name="0.weight") == [(0,), (1,), (2,)]
    # The hook went with what was swapped out, which is noticed at the next step.
    assert (2,) in keys(tmp_path, "step", kind="grad_unreduced", name="0.weight")


def test_a_module_that_is_replaced_is_watched_under_its_name(tmp_path):
    model, optimizer = two_layers()
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path)
    step(model, optimizer)
    old = weakref.ref(model[2])
    model[2] = nn.Linear(4, 2)
    optimizer.param_groups[0]["params"][2:] = list(model[2].parameters())
    for _ in range(2):
        step(model, optimizer)
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
    step(model, optimizer)
    model[0] = Adapted(model[0])
    optimizer.add_param_group({"params": list(model[0].low.parameters())})
    for _ in range(2):
        step(model, optimizer)
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
            step(model, optimizer, torch.ones(2, 3))
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
        step(model, optimizer, torch.ones(2, 3))
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
                step(model, optimizer, torch.ones(2, 3))
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
        step(model, optimizer, torch.ones(2, 3))
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
            step(model, optimizer, torch.ones(2, 3))
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
        step(model, optimizer, torch.ones(2, 3))
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
        step(model, optimizer, torch.ones(2, 3))
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
        step(whole, optimizer, torch.ones(2, 3))
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


def test_replaced_parameters_are_let_go(tmp_path):
    model, optimizer = two_layers()
    gone = []
    with trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path):
        for _ in range(5):
            step(model, optimizer)
            gone.append(weakref.ref(model[0].weight))
            optimizer.state.pop(model[0].weight)
            model[0].weight = nn.Parameter(model[0].weight.detach().clone())
            optimizer.param_groups[0]["params"][0] = model[0].weight
        step(model, optimizer)
        gc.collect()
        assert [reference() for reference in gone] == [None] * 5


def test_state_of_a_parameter_that_left_the_optimizer_gives_no_row(tmp_path):
    model, optimizer = two_layers()
    monitor = trainmon.watch(model, optimizer, kinds=["moments"], out=tmp_path)
    step(model, optimizer)
    del optimizer.param_groups[0]["params"][0]
    step(model, optimizer)
    healthy(monitor)
    assert keys(tmp_path, "step", kind="exp_avg", name="0.weight") == [(0,)]
    assert keys(tmp_path, "step", kind="exp_avg", name="2.weight") == [(0,), (1,)]


def test_one_parameter_in_two_optimizers_is_said(tmp_path):
    model, one = two_layers()
    two = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, [one, two], out=tmp_path)
    step(model, two)
    healthy(monitor)
    (said,) = run_json(monitor)["not_covered"]
    assert said == "4 parameters in the steps of an optimizer"


# --- optimizers --------------------------------------------------------------------------------------


@versions.since((2, 2), "torch.distributed.checkpoint.state_dict")
def test_loading_a_distributed_checkpoint_is_no_step(tmp_path):
    from torch.distributed.checkpoint.state_dict import (
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    model, optimizer = two_layers()
    for _ in range(7):
        step(model, optimizer)
    saved = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
    model, optimizer = two_layers()
    kinds = ["grad_unreduced", "grads", "weights"]
    monitor = trainmon.watch(model, optimizer, kinds=kinds, out=tmp_path)
    set_optimizer_state_dict(model, optimizer, saved)
    for _ in range(3):
        step(model, optimizer)
    healthy(monitor)
    for kind in ("grad_reduced", "param_origin", "param_updated"):
        assert keys(tmp_path, "step", kind=kind, name="0.weight") == [(7,), (8,), (9,)]


def test_an_optimizer_without_hooks_that_took_the_place_of_ours_is_said(tmp_path, caplog):
    class Own:
        def step(self):
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad

        def zero_grad(self):
            model.zero_grad()

    model, optimizer = two_layers()
    monitor = trainmon.watch(model, optimizer, out=tmp_path)
    step(model, optimizer)
    for _ in range(25):
        step(model, Own())
    monitor.stop()
    assert "without a step of the optimizer given" in caplog.text
    assert "steps of an optimizer that watch() was not given" in run_json(monitor)["not_covered"]


@pytest.mark.parametrize(
    "optimizer", [torch.optim.SGD, torch.optim.Adagrad], ids=["sgd", "adagrad"]
)
def test_moments_that_do_not_exist_are_said(optimizer, tmp_path):
    model, _ = two_layers()
    optimizer = optimizer(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, optimizer, kinds=["moments"], out=tmp_path)
    step(model, optimizer)
    health = monitor.stop()
    not_covered = run_json(monitor)["not_covered"]
    assert ("moments" in not_covered) == (health["rows_produced"] == 0)


# --- spread models -----------------------------------------------------------------------------------


def spread(folder, case):
    launch.run("adapter_changes_run.py", folder, case, ranks=2)
    run = json.loads((folder / "run/rank_00000/restart_0000/run.json").read_text())
    return torch.load(folder / "0.pt"), run["not_covered"]


@versions.fsdp2
def test_a_sharded_model_can_be_moved(tmp_path):
    report, _ = spread(tmp_path, "moved")
    assert report["same"] and report["health"]["parts_off"] == {}
    assert keys(tmp_path / "run", "step", kind="grad_reduced", name="0.bias", rank=0) == [
        *((0,), (1,), (2,), (3,))
    ]


@versions.fsdp2
def test_freezing_and_thawing_a_sharded_model_adds_no_hooks(tmp_path):
    report, _ = spread(tmp_path, "toggled")
    before, during, after = report["hooks"]
    assert during - before <= 1 and after == before


@versions.fsdp2
def test_gradients_that_add_up_out_of_sight_are_said(tmp_path):
    _, not_covered = spread(tmp_path, "apart")
    is_apart = versions.TORCH < (2, 15)
    assert ("grad_unreduced of accumulated micro-steps" in not_covered) == is_apart


def test_a_wrapper_that_came_after_watch_is_said(tmp_path):
    report, not_covered = spread(tmp_path, "early")
    assert any("watch() came before DistributedDataParallel" in text for text in report["said"])
    assert "how ranks relate under DistributedDataParallel" in not_covered


# --- watches that nobody stops -----------------------------------------------------------------------


def test_a_watch_goes_with_its_model(tmp_path):
    alive = []
    for index in range(3):
        model, optimizer = two_layers()
        monitor = trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path / str(index))
        step(model, optimizer)
        alive += [weakref.ref(model), weakref.ref(monitor)]
        del model, optimizer, monitor
        gc.collect()
        # What it had recorded is on the disk, whole.
        assert len(rows(tmp_path / str(index), kind="grad_reduced")) == 4
        assert len(list((tmp_path / str(index)).rglob("health.json"))) == 1
    assert [reference() for reference in alive] == [None] * 6


def test_a_watch_nobody_keeps_goes_on(tmp_path):
    model, optimizer = two_layers()
    trainmon.watch(model, optimizer, out=tmp_path)
    gc.collect()
    for _ in range(3):
        step(model, optimizer)
    del model, optimizer
    gc.collect()
    assert keys(tmp_path, "step", name="0.weight") == [(0,), (1,), (2,)]


def test_starting_again_is_said(tmp_path, capfd):
    for restart in range(2):
        model, optimizer = two_layers()
        trainmon.watch(model, optimizer, out=tmp_path).stop()
        (start, *_) = capfd.readouterr().err.splitlines()
        assert ("(restart 1 of the run there)" in start) == (restart == 1)


@versions.assigning
def test_parameters_replaced_under_a_new_optimizer_are_said_at_the_next_forward(tmp_path, caplog):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, optimizer, kinds=["grads"], out=tmp_path)
    for step in range(3):
        if step == 1:
            fresh = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
            model.load_state_dict(fresh.state_dict(), assign=True)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 3)).sum().backward()
        if step == 1:
            assert "0.weight among them" in caplog.text
        optimizer.step()
        optimizer.zero_grad()
    monitor.stop()
    assert monitor.health()["parts_off"] == {}
    assert caplog.text.count("call watch() again") == 1
    said = json.loads(next(tmp_path.glob("rank_*/restart_*/run.json")).read_text())
    assert "no optimizer given to watch() has the new ones" in json.dumps(said["not_covered"])


def test_parameters_put_in_for_one_call_are_not_taken_for_replaced_ones(tmp_path, caplog):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.watch(model, optimizer, kinds=["grads"], out=tmp_path):
        for _ in range(2):
            doubled = {name: 2 * p for name, p in model.named_parameters()}
            torch.func.functional_call(model, doubled, torch.ones(2, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert "replaced" not in caplog.text
