# Forward rows and their gradients: every shape of module, calls, recomputation, compiled regions.
import collections
import copy
import dataclasses
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import trainmon
import versions
from adapter_rows import assert_is, healthy, keys, row, rows, run_json

KINDS = ["activations"]


def run(model, step, tmp_path, steps=1, **settings):
    """Trains and returns the watched run; step(model) returns the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    settings = {"kinds": KINDS, "out": tmp_path, **settings}
    monitor = trainmon.watch(model, optimizer, **settings)
    for _ in range(steps):
        optimizer.zero_grad()
        step(model).backward()
        optimizer.step()
    healthy(monitor)
    return monitor


# --- structures ----------------------------------------------------------------------------------


@dataclasses.dataclass
class Result:
    logits: torch.Tensor
    extra: dict
    nothing: None = None


Pair = collections.namedtuple("Pair", "a b")


class Structures(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.linear = kind, nn.Linear(3, 3)

    def forward(self, x, *, mask=None, options=None):
        y = self.linear(x)
        return {
            "tensor": y,
            "tuple": (y, None, [y + 1, "text"]),
            "dict": {"hidden": y, "more": {"deep": (y * 2,)}},
            "dataclass": Result(y, {"k": y * 3}),
            "namedtuple": Pair(y, 7),
            "none": None,
        }[self.kind]


@pytest.mark.parametrize(
    "kind, elements",
    [
        ("tensor", {"output": 1}),
        ("tuple", {"output.0": 1, "output.2.0": None}),
        ("dict", {"output.hidden": 1, "output.more.deep.0": 2}),
        ("dataclass", {"output.logits": 1, "output.extra.k": 3}),
        ("namedtuple", {"output.0": 1}),
        ("none", {}),
    ],
)
def test_outputs_of_every_structure(kind, elements, tmp_path):
    inner, seen = Structures(kind), {}

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            seen["mask"], seen["deep"] = torch.ones(3, dtype=torch.bool), torch.arange(4)
            self.inner(x, mask=seen["mask"], options={"a": [None, seen["deep"]]})
            seen["y"] = inner.linear(x)
            return seen["y"]

    run(Outer(), lambda m: m(torch.ones(2, 3)).sum(), tmp_path)
    found = {r["element"]: r for r in rows(tmp_path, kind="actv", name="inner")}
    assert found.keys() == {"input.0", "input.mask", "input.options.a.1", *elements}
    assert_is(found["input.mask"], seen["mask"])
    assert_is(found["input.options.a.1"], seen["deep"])
    for element, times in elements.items():
        assert_is(found[element], seen["y"] * times if times else seen["y"] + 1)


def test_each_call_has_its_own_row(tmp_path):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.kept = nn.Linear(3, 3), []

        def forward(self, x):
            for _ in range(3):
                x = self.block(x)
                x.retain_grad()
                self.kept.append(x)
            return x

    model = Twice()
    run(model, lambda m: m(torch.randn(2, 3)).pow(2).sum(), tmp_path, steps=2)
    where = {"name": "block", "element": "output"}
    assert keys(tmp_path, "step", "call", kind="actv", **where) == [
        (step, call) for step in range(2) for call in range(3)
    ]
    # Gradients come in reverse, under the call of their forward.
    assert keys(tmp_path, "step", "call", kind="actv_grad", **where) == [
        (step, call) for step in range(2) for call in (2, 1, 0)
    ]
    for step in range(2):
        for call in range(3):
            here = {"step": step, "call": call, **where}
            kept = model.kept[3 * step + call]
            assert_is(row(tmp_path, kind="actv", **here), kept)
            assert_is(row(tmp_path, kind="actv_grad", **here), kept.grad)


# --- input gradients -----------------------------------------------------------------------------


class Residual(nn.Module):
    """Uses its input three times inside, while the caller uses it once more outside."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        return torch.softmax(self.q(x) @ self.k(x).T, -1) @ self.v(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.attention = nn.Linear(4, 4), Residual()
        self.act, self.head = nn.ReLU(inplace=True), nn.Linear(4, 2)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.attention(x)
        return self.head(self.act(x))


def full_backward_hooks(model, step):
    """Input and output gradients by torch's own full backward hooks, on a copy without in-place."""
    seen = {}
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False

        def hook(module, inputs, outputs, name=name):
            for side, gradients in (("input", inputs), ("output", outputs)):
                for index, gradient in enumerate(gradients):
                    if gradient is not None:
                        element = f"{side}.{index}" if side == "input" else "output"
                        seen[name, element] = gradient.clone()

        handles.append(module.register_full_backward_hook(hook))
    step(model).backward()
    for handle in handles:
        handle.remove()
    model.zero_grad()
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = True
    return seen


@versions.input_gradients
def test_input_gradients_are_those_through_this_module_only(tmp_path):
    torch.manual_seed(1)
    model, data = Net(), torch.randn(5, 4)
    expected = full_backward_hooks(model, lambda m: m(data).pow(2).sum())
    run(model, lambda m: m(data).pow(2).sum(), tmp_path)
    found = {(r["name"], r["element"]): r for r in rows(tmp_path, kind="actv_grad")}
    assert found.keys() == expected.keys()
    assert {k for k, _ in found} == {n for n, _ in model.named_modules()}
    for key, gradient in expected.items():
        # The nodes that full hooks insert change the order in which four gradients add up.
        assert_is(found[key], gradient, 1e-6)


@versions.input_gradients
def test_a_module_that_returns_its_input_is_not_covered(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Identity(), nn.Linear(3, 2))
    monitor = run(model, lambda m: m(torch.randn(2, 3)).sum(), tmp_path)
    assert keys(tmp_path, "element", kind="actv_grad", name="1") == [("output",)]
    assert "actv_grad 1 input.0" in run_json(monitor)["not_covered"]


@versions.input_gradients
def test_one_tensor_given_twice_is_a_sum_and_said(tmp_path):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.product = Product()

        def forward(self, x):
            self.y = self.linear(x)
            self.y.retain_grad()
            return self.product(self.y, self.y)

    class Product(nn.Module):
        def forward(self, a, b):
            return a * b

    model = Twice()
    monitor = run(model, lambda m: m(torch.randn(2, 3)).sum(), tmp_path)
    assert_is(row(tmp_path, kind="actv_grad", name="product", element="input.0"), model.y.grad)
    assert not rows(tmp_path, kind="actv_grad", name="product", element="input.1")
    why = run_json(monitor)["not_covered"]["actv_grad product input.1"]
    assert why == "the same tensor as another input"


@versions.input_gradients
def test_a_use_that_leads_nowhere_leaves_the_other_parts(tmp_path):
    class Fork(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.a(x), self.b(x)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.fork = nn.Linear(3, 3), Fork()

        def forward(self, x):
            self.y = self.stem(x)
            self.y.retain_grad()
            return self.fork(self.y)[0]

    model = Model()
    run(model, lambda m: m(torch.randn(2, 3)).sum(), tmp_path)
    assert_is(row(tmp_path, kind="actv_grad", name="fork", element="input.0"), model.y.grad)


def test_input_gradients_can_be_left_out(tmp_path):
    run(Net(), lambda m: m(torch.randn(2, 4)).sum(), tmp_path, input_grads=False)
    assert {e for (e,) in keys(tmp_path, "element", kind="actv_grad")} == {"output"}


def test_a_module_that_returns_a_parameter_leaves_no_hook_on_it(tmp_path):
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self):
            return self.weight

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = Table()

        def forward(self, x):
            return x * self.table()

    model = Model()
    run(model, lambda m: m(torch.ones(2, 3)).sum(), tmp_path, steps=3)
    assert model.table.weight._backward_hooks is None
    found = rows(tmp_path, kind="actv_grad", name="table")
    assert [r["step"] for r in found] == [0, 1, 2]
    assert_is(found[0], torch.full((3,), 2.0))


@versions.input_gradients
def test_a_forward_that_raises_is_forgotten(tmp_path):
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.broken = nn.Linear(3, 3), False

        def forward(self, x):
            y = self.linear(x)
            if self.broken:
                raise ArithmeticError
            return y * 2

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.fails = nn.Linear(3, 3), Fails()

        def forward(self, x):
            return self.fails(self.stem(x))

    model = Model()

    def step(m):
        m.fails.broken = True
        with pytest.raises(ArithmeticError):
            m(torch.randn(2, 3))
        m.fails.broken = False
        return m(torch.randn(2, 3)).sum()

    monitor = run(model, step, tmp_path, steps=2)
    assert len(rows(tmp_path, kind="actv_grad", name="fails", element="input.0")) == 2
    # The call that raised has its input, the one after it is the second.
    place = {"kind": "actv", "name": "fails"}
    calls = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert keys(tmp_path, "step", "call", **place, element="input.0") == calls
    assert keys(tmp_path, "step", "call", **place, element="output") == calls[1::2]
    assert monitor._adapter.activations is None


# --- modes ---------------------------------------------------------------------------------------


def test_evaluation_gives_no_row(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path):
        model(torch.randn(2, 3)).sum().backward()
        model.eval()
        with torch.no_grad():
            model(torch.randn(2, 3))
        model.train()
        optimizer.step()
    assert keys(tmp_path, "step", "call", kind="actv", name="0", element="output") == [(0, 0)]


def test_forwards_without_gradients_have_values_only(tmp_path):
    model = nn.Linear(3, 3)

    def step(m):
        with torch.no_grad():
            m(torch.ones(1, 3))
        return m(torch.zeros(1, 3)).sum()

    run(model, step, tmp_path)
    assert keys(tmp_path, "call", kind="actv", element="output") == [(0,), (1,)]
    assert keys(tmp_path, "call", kind="actv_grad", element="output") == [(1,)]


def test_bfloat16_autocast(tmp_path):
    model, seen = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), []
    model[0].register_forward_hook(lambda m, a, out: seen.append(out))

    def step(m):
        with torch.autocast("cpu", torch.bfloat16):
            return m(torch.randn(4, 3)).float().pow(2).sum()

    run(model, step, tmp_path)
    assert seen[0].dtype == torch.bfloat16
    assert_is(row(tmp_path, kind="actv", name="0", element="output"), seen[0])


# --- checkpointing -------------------------------------------------------------------------------


class Checkpointed(nn.Module):
    """A stack in which every layer, or a pair of calls of a shared one, is a segment."""

    def __init__(self, mode, shared):
        super().__init__()
        self.mode = mode
        self.layers = nn.ModuleList(
            [nn.Linear(3, 3)] * 4 if shared else [nn.Linear(3, 3) for _ in range(4)]
        )

    def forward(self, x):
        for at in (0, 2):
            segment = nn.Sequential(self.layers[at], nn.Tanh(), self.layers[at + 1], nn.Tanh())
            if self.mode is None:
                x = segment(x)
            else:
                x = checkpoint(segment, x, use_reentrant=self.mode)
        return x


@versions.input_gradients
@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_adds_nothing_and_loses_nothing(reentrant, shared, head, tmp_path):
    """The rows with checkpointing are those without; reentrant segments have gradients too."""
    columns = ("kind", "name", "element", "step", "micro_step", "call")
    found = []
    for mode in (None, reentrant):
        torch.manual_seed(2)
        model = Checkpointed(mode, shared)
        if head:
            model = nn.Sequential(model, nn.Linear(3, 3))
        data = torch.randn(2, 3, requires_grad=True)
        out = tmp_path / str(mode)
        kinds = [*KINDS, "grad_unreduced", "grad_reduced"]
        run(model, lambda m, x=data: m(x).pow(2).sum(), out, steps=2, kinds=kinds)
        by_key = {tuple(r[c] for c in columns): r for r in rows(out)}
        assert len(by_key) == len(rows(out))
        found.append(by_key)
    plain, checkpointed = found
    if shared and reentrant:
        # A backward inside the backward per segment: the sum of a shared gradient grows in pieces,
        # told apart by their call; the last one is the whole.
        pieces = [key for key in checkpointed if key[0] == "grad_unreduced" and key[5] == 1]
        assert len(pieces) == 4
        for key in pieces:
            checkpointed[(*key[:5], 0)] = checkpointed.pop(key)
    assert checkpointed.keys() == plain.keys()
    for key, expected in plain.items():
        for name in ("count", "norm", "min", "max"):
            assert checkpointed[key][name] == pytest.approx(expected[name], rel=1e-5), key


@versions.post_accumulate_hooks
def test_a_fully_reentrant_model_has_one_backward_per_micro_step(tmp_path):
    """Every gradient comes from a backward inside the backward."""
    torch.manual_seed(2)
    model = Checkpointed(True, False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kinds = ["grad_unreduced"]
    with trainmon.watch(model, optimizer, kinds=kinds, out=tmp_path):
        for _ in range(2):
            for _ in range(3):
                model(torch.randn(2, 3, requires_grad=True)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    for name, _ in model.named_parameters():
        assert keys(tmp_path, "step", "micro_step", name=name) == [
            (step, micro) for step in range(2) for micro in range(3)
        ]


@versions.post_accumulate_hooks
def test_a_backward_that_raises_is_forgotten(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kinds = ["grad_unreduced", "actv_grad"]

    def fail(gradient):
        raise ArithmeticError

    with trainmon.watch(model, optimizer, kinds=kinds, out=tmp_path) as monitor:
        for attempt in range(3):
            output = model[0](torch.randn(2, 3))
            if attempt == 1:
                output.register_hook(fail)
                with pytest.raises(ArithmeticError):
                    model[1](output).sum().backward()
            else:
                model[1](output).sum().backward()
        optimizer.step()
    healthy(monitor)
    assert keys(tmp_path, "micro_step", kind="grad_unreduced", name="1.bias") == [(0,), (1,), (2,)]
    assert keys(tmp_path, "micro_step", kind="grad_unreduced", name="0.bias") == [(0,), (2,)]


@versions.post_accumulate_hooks
def test_two_losses_of_one_forward_are_two_backwards(tmp_path):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with trainmon.watch(model, optimizer, kinds=["grad_unreduced", "actv_grad"], out=tmp_path):
        output = model(torch.randn(2, 3))
        output[:, 0].sum().backward(retain_graph=True)
        output[:, 1].sum().backward()
        optimizer.step()
    assert keys(tmp_path, "micro_step", kind="grad_unreduced", name="bias") == [(0,), (1,)]
    assert len(rows(tmp_path, kind="actv_grad", element="output")) == 2


@versions.post_accumulate_hooks
def test_gradients_inside_a_forward_are_no_backward_of_the_step(tmp_path):
    """Forces and gradient penalties: autograd.grad within the model."""

    class Energy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, x):
            x = x.requires_grad_()
            energy = self.linear(x).pow(2).sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
            return energy + force.pow(2).sum()

    model = Energy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kinds = ["grad_unreduced", "grad_reduced", "activations"]
    with trainmon.watch(model, optimizer, kinds=kinds, out=tmp_path) as monitor:
        for _ in range(2):
            for _ in range(2):
                model(torch.randn(2, 3)).backward()
            gradient = model.linear.weight.grad.clone()
            optimizer.step()
            optimizer.zero_grad()
    healthy(monitor)
    assert keys(tmp_path, "step", "micro_step", kind="grad_unreduced", name="linear.bias") == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    assert_is(row(tmp_path, kind="grad_reduced", name="linear.weight", step=1), gradient)


# --- torch.compile -------------------------------------------------------------------------------


@versions.compiled_operators
@pytest.mark.parametrize("when", ["before watch", "after watch", "in place"])
def test_compiled_models(when, tmp_path):
    """One graph, the same numbers, and rows of every module. More of it: test_compile.py."""
    torch._dynamo.reset()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    data = torch.randn(4, 3)
    bare = torch.compile(model, fullgraph=True, backend="aot_eager")
    bare(data).pow(2).sum().backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    torch._dynamo.reset()

    compiled = model
    kinds = ["activations", "grads", "grad_unreduced"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if when == "before watch":
        compiled = watched = torch.compile(model, fullgraph=True, backend="aot_eager")
    else:
        watched = model
        if when == "in place":
            torch._dynamo.utils.counters.clear()
            model.compile(fullgraph=True, backend="aot_eager")
    monitor = trainmon.watch(watched, optimizer, kinds=kinds, inside_compiled=True, out=tmp_path)
    if when == "after watch":
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for step in range(2):
        optimizer.zero_grad()
        compiled(data).pow(2).sum().backward()
        if step == 0:
            gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
        optimizer.step()
    healthy(monitor)
    assert gradients.keys() == expected.keys()
    assert all(torch.equal(gradients[n], expected[n]) for n in expected)
    for kind in ("grad_unreduced", "grad_reduced"):
        for name, gradient in expected.items():
            assert_is(row(tmp_path, kind=kind, name=name, step=0), gradient)
    where = {n for (n,) in keys(tmp_path, "name", kind="actv")}
    said = " ".join(run_json(monitor)["not_covered"])
    assert where == {"", "0", "1", "2"}
    assert len(rows(tmp_path, kind="actv", name="")) == 4  # of a wrapper and what it wraps, one
    expected = "actv_grad of inputs inside torch.compile"
    if when == "in place" and versions.TORCH == (2, 4):
        expected = ""  # it compiles nothing of such a model, watched or not
        assert not torch._dynamo.utils.counters["stats"]
    assert said == expected


def test_a_module_that_is_not_called_is_said_shortly(tmp_path, monkeypatch):
    """torch.compile may be why, where it has compiled anything."""
    for compiles in (False, True):
        monkeypatch.setattr("trainmon.torch.coverage.compiles", lambda compiles=compiles: compiles)
        model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 2)])
        table = nn.Sequential(model[0])
        table.unused = model[1]
        table.forward = lambda x, first=model[0]: first(x)
        out = tmp_path / str(compiles)
        monitor = run(table, lambda m: m(torch.randn(2, 3)).sum(), out)
        why = run_json(monitor)["not_covered"]["actv of unused"]
        assert why.startswith("no call was seen in the first step")
        assert ("inside torch.compile" in why) == compiles


@versions.compiled_operators
def test_a_compiled_part_of_a_model(tmp_path):
    torch._dynamo.reset()
    inner = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    model = nn.Sequential(
        nn.Linear(3, 3), torch.compile(inner, backend="aot_eager"), nn.Linear(3, 2)
    )
    monitor = run(model, lambda m: m(torch.randn(2, 3)).sum(), tmp_path, inside_compiled=True)
    named = {n for (n,) in keys(tmp_path, "name", kind="actv")}
    assert named == {"", "0", "1", "1.0", "1.1", "2"}
    assert len(rows(tmp_path, kind="actv_grad", name="1")) == 2
    assert list(run_json(monitor)["not_covered"]) == ["actv_grad of inputs inside torch.compile"]


@versions.input_gradients
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_part_of_a_model(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), torch.jit.script(nn.Linear(3, 3)))
    kinds = [*KINDS, "grad_reduced"]
    monitor = run(model, lambda m: m(torch.randn(2, 3)).sum(), tmp_path, kinds=kinds)
    assert {n for (n,) in keys(tmp_path, "name", kind="actv")} == {"", "0"}
    assert len(rows(tmp_path, kind="grad_reduced")) == 4
    assert run_json(monitor)["not_covered"] == {"actv of scripted 1": "torch.jit takes no hooks"}


@versions.input_gradients
def test_a_graph_that_changes_between_steps(tmp_path):
    """Modules called twice, others between, a use more or less: each step as full hooks see it."""

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x, turn):
            y = self.one(x)
            if turn % 2:
                y = self.two(y) * x
            kept = y if turn % 3 else x
            return self.one(kept) + (x.sigmoid() * y if turn > 2 else y)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.mixed = nn.Linear(3, 3), Mixed()

        def forward(self, x, turn):
            return self.mixed(self.stem(x), turn)

    torch.manual_seed(3)
    model = Model()
    steps, data = 6, torch.randn(4, 3)
    expected = {}
    for turn in range(steps):
        calls = {}  # full hooks are called in the reverse order of the forwards
        handles = [
            module.register_full_backward_hook(
                lambda module, inputs, outputs, name=name, calls=calls: calls.setdefault(
                    name, []
                ).append([g.clone() for g in inputs if g is not None])
            )
            for name, module in model.named_modules()
            if name.startswith("mixed")
        ]
        model(data, turn).pow(2).sum().backward()
        for handle in handles:
            handle.remove()
        for name, gradients in calls.items():
            for call, (gradient,) in enumerate(reversed(gradients)):
                expected[turn, name, call] = gradient
    model.zero_grad()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    monitor = trainmon.watch(model, optimizer, kinds=["actv_grad"], every=1, out=tmp_path)
    for turn in range(steps):
        model(data, turn).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    healthy(monitor)
    found = {
        (r["step"], r["name"], r["call"]): r
        for r in rows(tmp_path, kind="actv_grad", element="input.0")
        if r["name"].startswith("mixed")
    }
    assert found.keys() == expected.keys()
    for key, gradient in expected.items():
        assert_is(found[key], gradient, 1e-6)


def test_hooks_of_the_user_on_the_same_tensors(tmp_path, recwarn):
    """Put on before and after ours, taken off again; the tensor saved; its hooks copied."""
    seen, kept, copies = [], [], []

    def before(module, args, output):
        kept.append(output.register_hook(lambda gradient: seen.append("before")))

    def after(module, args, output):
        output.register_hook(lambda gradient: seen.append("after"))
        gone = output.register_hook(lambda gradient: seen.append("gone"))
        gone.remove()
        kept[-1].remove()
        (ours,) = [h for h in output._backward_hooks.values() if "lambda" not in repr(h)]
        copies.extend([copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))])
        torch.save(output, tmp_path / "output.pt")

    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].register_forward_hook(before)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = tmp_path / "run"
    monitor = trainmon.watch(model, optimizer, kinds=["actv_grad"], every=1, out=out)
    model[0].register_forward_hook(after)
    model(torch.randn(2, 3)).sum().backward()
    for hook in copies:
        assert hook(torch.ones(2, 3)) is None
    optimizer.step()
    healthy(monitor)
    assert len(copies) == 2 and seen == ["after"]
    assert len(rows(out, kind="actv_grad", name="0", element="output")) == 1
    said = [str(w.message) for w in recwarn if "hooks" in str(w.message)]
    assert len(said) == 1 and "lambda" in said[0], said  # of the user's own
