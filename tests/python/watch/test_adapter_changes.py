# What users do to a watched model: they convert, move and shard it, replace its parameters, raise, resume.
import copy
import dataclasses
import gc
import json
import os
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
from models import train_step, two_layers

KINDS = ["grads", "grad_unreduced", "weights", "moments", "activations"]


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
        train_step(model, optimizer)
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
    train_step(model, optimizer)
    healthy(monitor)
    names = {name for (name,) in keys(tmp_path, "name", kind="actv_grad", element="output")}
    assert names == {"", "a"}
    assert "grad_unreduced" not in run_json(monitor)["not_covered"]


# --- hooks in other hands ----------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["module 0", "module (root)", "parameter 0.weight", "none"])
def test_hooks_that_somebody_empties_are_said_once(what, tmp_path, caplog):
    model, optimizer = two_layers()
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path)
    train_step(model, optimizer)
    if what == "module 0":
        model[0]._forward_hooks.clear()
    elif what == "module (root)":
        model._forward_hooks = type(model._forward_hooks)()
    elif what != "none":
        model[0].weight._post_accumulate_grad_hooks.clear()
    for _ in range(30):
        train_step(model, optimizer)
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
        train_step(model, optimizer)
    healthy(monitor)


def test_inputs_are_what_came_in_also_of_a_module_that_writes_over_them(tmp_path):
    model, optimizer = two_layers()
    data = torch.randn(5, 3)
    with torch.no_grad():
        before = model[0](data)
    assert bool((before < 0).any())
    with trainmon.watch(model, optimizer, kinds=["actv"], out=tmp_path):
        train_step(model, optimizer, data)
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
    train_step(model, optimizer)
    healthy(monitor)
    elements = {element for (element,) in keys(tmp_path, "element", name="tree")}
    values = {"output.value", "output.children.0.value", "output.children.1.value"}
    assert elements == {"input.0"} | values
    why = "no tensor is found in a SimpleNamespace"
    assert run_json(monitor)["not_covered"] == {"actv opaque output": why}


# --- parameters that change --------------------------------------------------------------------------


@versions.since((2, 3), "swapping tensors in a conversion")
def test_an_optimizer_made_anew_behind_a_conversion_that_swaps_tensors(tmp_path):
    """The hooks that see a backward left with the contents."""
    model, optimizer = two_layers()
    monitor = trainmon.watch(model, optimizer, out=tmp_path)
    norms = []
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        for step in range(5):
            if step == 2:
                optimizer.zero_grad()
                model.double().float()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            train_step(model, optimizer, torch.ones(2, 3) * step)
            norms.append(float(next(model.parameters()).grad.double().norm()))
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    healthy(monitor)
    name = next(iter(dict(model.named_parameters())))
    read = trainmon.read(tmp_path, kinds="grad_reduced", include=name)
    assert list(read["step"]) == [0, 1, 2, 3, 4]
    assert list(read["norm"]) == pytest.approx(norms)


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
            train_step(model, optimizer, data)
            model.double()
            optimizer.state.clear()
            for _ in range(2):
                train_step(model, optimizer, data.double())
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


def test_replaced_parameters_are_let_go(tmp_path):
    model, optimizer = two_layers()
    gone = []
    with trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path):
        for _ in range(5):
            train_step(model, optimizer)
            gone.append(weakref.ref(model[0].weight))
            optimizer.state.pop(model[0].weight)
            model[0].weight = nn.Parameter(model[0].weight.detach().clone())
            optimizer.param_groups[0]["params"][0] = model[0].weight
        train_step(model, optimizer)
        gc.collect()
        assert [reference() for reference in gone] == [None] * 5


def test_state_of_a_parameter_that_left_the_optimizer_gives_no_row(tmp_path):
    model, optimizer = two_layers()
    monitor = trainmon.watch(model, optimizer, kinds=["moments"], out=tmp_path)
    train_step(model, optimizer)
    del optimizer.param_groups[0]["params"][0]
    train_step(model, optimizer)
    healthy(monitor)
    assert keys(tmp_path, "step", kind="exp_avg", name="0.weight") == [(0,)]
    assert keys(tmp_path, "step", kind="exp_avg", name="2.weight") == [(0,), (1,)]


def test_one_parameter_in_two_optimizers_is_said(tmp_path):
    model, one = two_layers()
    two = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, [one, two], out=tmp_path)
    train_step(model, two)
    healthy(monitor)
    names = "0.weight, 0.bias, 2.weight, 2.bias"
    said = {"4 parameters in the steps of an optimizer", f"gap of {names}"}
    assert set(run_json(monitor)["not_covered"]) == said


# --- optimizers --------------------------------------------------------------------------------------


@versions.since((2, 2), "torch.distributed.checkpoint.state_dict")
def test_loading_a_distributed_checkpoint_is_no_step(tmp_path):
    from torch.distributed.checkpoint.state_dict import (
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    model, optimizer = two_layers()
    for _ in range(7):
        train_step(model, optimizer)
    saved = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
    model, optimizer = two_layers()
    kinds = ["grad_unreduced", "grads", "weights"]
    monitor = trainmon.watch(model, optimizer, kinds=kinds, out=tmp_path)
    set_optimizer_state_dict(model, optimizer, saved)
    for _ in range(3):
        train_step(model, optimizer)
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
    train_step(model, optimizer)
    for _ in range(25):
        train_step(model, Own())
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
    train_step(model, optimizer)
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


@pytest.mark.parametrize("more", [{}, {"kinds": [*KINDS, "cc"]}, {"recorder_mb": 1}])
def test_a_watch_goes_with_its_model(tmp_path, more):
    def held():
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    alive = []
    all_reduce = torch.distributed.all_reduce
    for index in range(3):
        before = held()
        model, optimizer = two_layers()
        options = {"kinds": KINDS, "out": tmp_path / str(index), **more}
        monitor = trainmon.watch(model, optimizer, **options)
        train_step(model, optimizer)
        alive += [weakref.ref(model), weakref.ref(monitor)]
        del model, optimizer, monitor
        gc.collect()
        # What it had recorded is on the disk, whole.
        assert len(rows(tmp_path / str(index), kind="grad_reduced")) == 4
        assert len(list((tmp_path / str(index)).rglob("health.json"))) == 1
        assert held() == before and torch.distributed.all_reduce is all_reduce
    assert [reference() for reference in alive] == [None] * 6


def test_a_watch_nobody_keeps_goes_on(tmp_path):
    model, optimizer = two_layers()
    trainmon.watch(model, optimizer, out=tmp_path)
    gc.collect()
    for _ in range(3):
        train_step(model, optimizer)
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
