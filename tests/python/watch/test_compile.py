# Activations of compiled models: nothing breaks or recompiles, and the rows are those of plain torch.
import contextlib
import copy
import gc
import io
import warnings

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import grad_probe_case
import launch
import trainmon
import versions
from adapter_rows import assert_is, healthy, keys, row, rows, run_json
from models import Around, InPlaceBlock, squares
from test_control import ctl, seen
from trainmon.torch.hooks import dynamo
from trainmon.torch.modules import compiled
from versions import TORCH

KINDS = ["activations"]
needs_operators = pytest.mark.skipif(
    not dynamo.is_supported(), reason="activations inside compiled code need torch >= 2.4"
)
pytestmark = needs_operators


class Segments(nn.Module):
    def __init__(self, reentrant=False):
        super().__init__()
        self.reentrant, self.first = reentrant, nn.Linear(8, 8)
        self.segment, self.last = Around(Around(InPlaceBlock())).block, nn.Linear(2, 2)

    def forward(self, x):
        x = self.first(x)
        return self.last(checkpoint(self.segment, x, use_reentrant=self.reentrant))


class Oracle:
    """The same training in plain torch: what goes into and comes out of each module, and the gradient of
    each output, copied by its own hooks: {(kind, name, element, step, micro_step, call): tensor}."""

    def __init__(self, model):
        self.model, self.found, self.step, self.micro = model, {}, 0, 0
        for name, module in model.named_modules():
            module.register_forward_pre_hook(self._entered(name))
            module.register_forward_hook(self._left(name))
        self.calls = {}

    def begin(self, step, micro):
        self.step, self.micro = step, micro
        self.calls.clear()

    def _entered(self, name):
        def hook(module, args):
            if module.training:
                place = name, inside_backward()  # one segment is recomputed, as a whole
                self.calls[place] = call = self.calls.get(place, -1) + 1
                for i, value in enumerate(args):
                    self._keep("actv", name, f"input.{i}", call, value)

        return hook

    def _left(self, name):
        def hook(module, args, output):
            if not module.training:
                return
            call = self.calls[name, inside_backward()]
            self._keep("actv", name, "output", call, output)
            if output.requires_grad:
                place = name, "output", self.step, self.micro, call
                output.register_hook(
                    lambda g: self.found.update({("actv_grad", *place): g.clone()})
                )

        return hook

    def _keep(self, kind, name, element, call, value):
        place = kind, name, element, self.step, self.micro, call
        self.found.setdefault(place, value.detach().clone())  # recomputed, it is the same again


def inside_backward():
    return torch._C._current_graph_task_id() != -1


class Trained:
    """One training: losses, final weights, and how often Dynamo compiled or broke a graph."""

    def __init__(
        self,
        make,
        compile,
        out=None,
        steps=3,
        micros=1,
        loss=squares,
        begin=None,
        data=None,
        **keys,
    ):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        self.model = make()
        self.oracle = Oracle(self.model) if out == "oracle" else None
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.monitor = None
        if out is not None and self.oracle is None:
            keys = {"kinds": KINDS, "inside_compiled": True, "out": out, **keys}
            self.monitor = trainmon.watch(self.model, optimizer, **keys)
        run = compile(self.model)
        torch.manual_seed(1)
        self.losses = []
        for step in range(steps):
            if begin is not None:
                begin(self, step)
            optimizer.zero_grad()
            for micro in range(micros):
                if self.oracle is not None:
                    self.oracle.begin(step, micro)
                value = loss(run, torch.randn(6, 8) if data is None else data(step))
                value.backward()
                self.losses.append(value.item())
            optimizer.step()
        self.graphs, self.breaks = counters["stats"]["unique_graphs"], dict(counters["graph_break"])
        self.weights = [p.detach().clone() for p in self.model.parameters()]
        if self.monitor is not None:
            healthy(self.monitor)
            self.not_covered = run_json(self.monitor)["not_covered"]


def whole(backend="aot_eager", **options):
    return lambda model: torch.compile(model, fullgraph=True, backend=backend, **options)


def same(one, two):
    return one.losses == two.losses and all(map(torch.equal, one.weights, two.weights))


def check(tmp_path, make, compile, tolerance=1e-9, more_graphs=0, gradients=True, **how):
    """Watched and compiled against compiled alone (bits), and against plain torch (rows; `gradients`:
    whether compiled code gives those of the modules in it: those of the outermost one are eager)."""
    plain = Trained(make, lambda model: model, "oracle", **how)
    bare = Trained(make, compile, **how)
    watched = Trained(make, compile, tmp_path, **how)
    assert same(bare, watched)
    assert (watched.graphs, watched.breaks) == (bare.graphs + more_graphs, bare.breaks)
    assert watched.graphs > 0
    found = {}
    for r in rows(tmp_path):
        if r["kind"] == "actv" or r["element"] == "output":
            place = tuple(r[k] for k in ("kind", "name", "element", "step", "micro_step", "call"))
            assert place not in found
            found[place] = r
    expected = {
        k: v for k, v in plain.oracle.found.items() if gradients or k[0] == "actv" or not k[1]
    }
    assert found.keys() == expected.keys() and found
    for place, tensor in expected.items():
        assert_is(found[place], tensor, tolerance)
    return watched


# --- the rows ------------------------------------------------------------------------------------


def test_inductor(tmp_path):
    """Its kernels round otherwise than eager ones do, by themselves. That of torch 2.4 leaves operators
    without a result out of the backward: no gradients, and that is said."""
    has_gradients = TORCH >= (2, 5)
    watched = check(tmp_path, InPlaceBlock, whole("inductor"), 1e-4, gradients=has_gradients)
    assert watched.graphs == 1 and watched.breaks == {}
    unseen = {"actv_grad of inputs inside torch.compile": compiled.INPUTS_UNSEEN}
    never = {w: why for w, why in watched.not_covered.items() if w not in unseen}
    assert watched.not_covered.keys() >= unseen.keys()
    assert list(never.values()) == ([] if has_gradients else [compiled.NO_GRADIENT])


@versions.compiled_in_checkpoints
def test_inductor_with_a_checkpoint_and_a_part_compiled(tmp_path):
    def compile(model):
        model.segment.compile(fullgraph=True, backend="inductor")
        return model

    check(tmp_path / "part", Segments, compile, 1e-4)
    check(tmp_path / "whole", Segments, whole("inductor"), 1e-4)


@pytest.mark.parametrize("micros", [1, 2])
def test_several_backwards_in_a_step(micros, tmp_path):
    assert check(tmp_path, InPlaceBlock, whole(), micros=micros).graphs == 1


def test_the_hooks_of_the_outermost_module_are_in_its_graph_too(tmp_path):
    def make():  # torch.compile takes a container of torch's own as a whole, hooks and all
        return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4))

    assert check(tmp_path, make, whole()).graphs == 1


def test_two_forwards_before_their_backward(tmp_path):
    check(tmp_path, InPlaceBlock, whole(), 1e-5, loss=lambda run, x: (run(x) * run(x + 1)).mean())


def test_backwards_in_another_order_than_their_forwards(tmp_path):
    """Gradients find the call of their forward: the first forward's backward comes first."""
    model = Around()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch._dynamo.reset()
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, inside_compiled=True, out=tmp_path)
    run = torch.compile(model, fullgraph=True, backend="aot_eager")
    twin = copy.deepcopy(model)
    kept = []
    twin.block.register_forward_hook(lambda m, a, out: (out.retain_grad(), kept.append(out))[0])
    data = torch.randn(6, 8), torch.randn(6, 8)
    for x in [run(x).pow(2).sum() for x in data]:
        x.backward()
    for x in [twin(x).pow(2).sum() for x in data]:
        x.backward()
    optimizer.step()
    healthy(monitor)
    for call in range(2):
        assert_is(row(tmp_path, kind="actv_grad", name="block", element="output", call=call),
                  kept[call].grad)  # fmt: skip
    assert keys(tmp_path, "call", kind="actv_grad", name="block", element="output") == [(0,), (1,)]


@pytest.mark.parametrize(
    ("where", "reentrant"),
    [
        ("inside", False),
        ("inside", True),
        pytest.param("around", False, marks=versions.compiled_in_checkpoints),
        ("around", True),
    ],
)
def test_checkpoints(where, reentrant, tmp_path):
    def compile(model):
        if where == "inside":
            return torch.compile(model, backend="aot_eager")
        model.segment.compile(fullgraph=True, backend="aot_eager")
        return model

    check(tmp_path, lambda: Segments(reentrant), compile)


def test_shapes_that_change(tmp_path):
    sizes = {"data": lambda step: torch.randn(6 + step, 8), "steps": 4}
    assert (
        check(tmp_path / "a", InPlaceBlock, whole(), **sizes).graphs == 2
    )  # the second is dynamic
    assert check(tmp_path / "b", InPlaceBlock, whole(dynamic=True), **sizes).graphs == 1


def test_without_gradients_and_in_eval_mode(tmp_path):
    def begin(trained, step):
        trained.model.train(step != 1)

    # Code that does not ask for the mode is compiled once more, without the operators. (That of torch
    # before 2.5 is for one mode, watched or not.)
    more = 1 if TORCH >= (2, 5) else 0
    check(tmp_path / "modes", InPlaceBlock, whole(), begin=begin, more_graphs=more)

    def loss(run, x):
        with torch.no_grad():
            aim = run(x)
        return (run(x) - aim / 2).pow(2).mean()

    check(tmp_path / "no_grad", InPlaceBlock, whole(), 1e-5, loss=loss)


def test_compiled_autograd(tmp_path):
    with torch._dynamo.config.patch(compiled_autograd=True):
        check(tmp_path, InPlaceBlock, lambda model: torch.compile(model, backend="aot_eager"))


class Tree(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Leaves()

    def forward(self, x):
        found = self.inner(x, scale=torch.ones(8), number=3, text="a")
        return found["h"] + found["t"][0]


class Leaves(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, scale=None, number=1, text=""):
        h = self.linear(x) * scale * number
        return {"h": h, "t": (h + 1, None, [h * 2])}


def test_structures(tmp_path):
    """The names are those of eager rows, and so are the numbers."""
    eager = Trained(Tree, lambda model: model, tmp_path / "eager")
    Trained(Tree, whole(), tmp_path / "compiled")
    names = ("kind", "name", "element", "step", "call")
    wanted = dict.fromkeys(keys(tmp_path / "eager", *names))
    wanted = [k for k in wanted if k[0] == "actv" or k[2].startswith("output")]
    assert len(wanted) > 20 and eager.not_covered == {}
    for place in wanted:
        here = dict(zip(names, place))
        one, two = row(tmp_path / "eager", **here), row(tmp_path / "compiled", **here)
        assert (one["norm"], one["max"]) == (two["norm"], two["max"]), here


# --- compiled code that is left alone -------------------------------------------------------------


class InBfloat16(nn.Module):
    """Inductor fuses it into kernels that keep float32 between modules. Read there, a tensor is rounded first."""

    def __init__(self, autocast=False):
        super().__init__()
        parts = [
            nn.LayerNorm(8),
            nn.Linear(8, 16),
            nn.GELU(),
            nn.Linear(16, 8),
            nn.Tanh(),
            nn.SiLU(),
        ]
        self.autocast, self.parts = autocast, nn.Sequential(*parts)
        if not autocast:
            self.bfloat16()

    def forward(self, x):
        return x + self.parts(x)


def by_dtype(run, x):
    autocast = run._orig_mod.autocast
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        return run(x if autocast else x.bfloat16()).float().square().mean()


@pytest.mark.parametrize(
    "autocast, keys_of_it",
    [(False, {"kinds": ["grads", *KINDS]}), (True, {"kinds": "all", "checks": True})],
)
def test_bits_are_those_of_the_unwatched_code(autocast, keys_of_it, tmp_path, caplog):
    how = {"loss": by_dtype, "steps": 4}

    def make():
        return InBfloat16(autocast)

    bare = Trained(make, whole("inductor"), **how)
    watched = Trained(make, whole("inductor"), tmp_path, inside_compiled=False, **keys_of_it, **how)
    assert same(bare, watched)
    assert (watched.graphs, watched.breaks) == (bare.graphs, bare.breaks)
    # What the whole model returns is read outside of the compiled code; of what is inside it is said.
    assert {name for (name,) in keys(tmp_path, "name", kind="actv")} == {""}
    (why,) = (w for what, w in watched.not_covered.items() if what.startswith("actv of parts,"))
    assert why.endswith(dynamo.NOT_ASKED)
    assert caplog.text.count(dynamo.NOT_ASKED) == 1


class Breaks(nn.Module):
    """Falls back to Python in a loop. Behind it come modules of torch's own, one with a hook of the user."""

    class Block(nn.Module):
        def __init__(self, breaks):
            super().__init__()
            self.wide, self.narrow, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)
            self.breaks = breaks

        def forward(self, x):
            wide = nn.functional.gelu(self.wide(x))
            if self.breaks:
                print(end="")
            return self.norm(x + self.narrow(wide))

    def __init__(self, has_hook):
        super().__init__()
        self.blocks = nn.ModuleList(self.Block(i == 1) for i in range(3))
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 2)
        if has_hook:
            self.norm.register_forward_hook(lambda module, args, output: None)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@pytest.mark.parametrize("has_hook", [False, True])
def test_behind_a_graph_break_there_are_the_graphs_of_the_unwatched_code(has_hook, tmp_path):
    def make():
        return Breaks(has_hook)

    def compiled_with_breaks(model):
        return torch.compile(model, backend="inductor")

    how = {"loss": lambda run, x: run(x).square().mean(), "steps": 4}
    bare = Trained(make, compiled_with_breaks, **how)
    options = {"inside_compiled": False, "kinds": "all", "checks": True}
    watched = Trained(make, compiled_with_breaks, tmp_path, **options, **how)
    assert same(bare, watched)
    assert (watched.graphs, watched.breaks) == (bare.graphs, bare.breaks)
    assert bare.graphs > 2 and bare.breaks


# --- switching -----------------------------------------------------------------------------------


def test_every_and_pause_compile_nothing_again(tmp_path):
    def begin(trained, step):
        if trained.monitor is not None and step in (4, 7):
            (trained.monitor.pause if step == 4 else trained.monitor.resume)()

    how = {"steps": 9, "begin": begin}
    bare = Trained(InPlaceBlock, whole(), **how)
    watched = Trained(InPlaceBlock, whole(), tmp_path, every=2, **how)
    assert same(bare, watched) and watched.graphs == 1
    assert {step for (step,) in keys(tmp_path, "step")} == {0, 2, 8}


@pytest.mark.parametrize("inside", [True, False])
def test_ctl_compiles_nothing_again(inside, tmp_path):
    """Off leaves the hooks that compiled code has in it, and they do nothing; on finds them again."""
    graphs = {}

    def begin(trained, step):
        graphs[step] = counters["stats"]["unique_graphs"]
        if trained.monitor is None:
            return
        if step in (2, 4):
            ctl("off" if step == 2 else "on", tmp_path / "run")
            seen(trained.monitor, step // 2)

    how = {"steps": 7, "begin": begin}
    bare = Trained(InPlaceBlock, whole(), **how)
    how |= {"kinds": [*KINDS, "grads", "stack"], "inside_compiled": inside}
    watched = Trained(InPlaceBlock, whole(), tmp_path / "run", **how)
    assert same(bare, watched) and watched.graphs == 1, graphs
    # A change is taken in between two steps: after the step that follows it.
    assert {s for (s,) in keys(tmp_path / "run", "step")} == {0, 1, 2, 5, 6}
    place = {"kind": "actv", "name": "up" if inside else ""}
    assert {s for (s,) in keys(tmp_path / "run", "step", **place)} == {0, 1, 2, 5, 6}
    assert hooks_of(watched.model) == 0


def hooks_of(model):
    return sum(
        len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks)
        for m in model.modules()
    )


def test_after_stop_nothing_is_left(tmp_path):
    def compile(model):
        model.kept = [torch.compile(model, fullgraph=True, backend="aot_eager")]
        return model.kept[0]

    watched = Trained(InPlaceBlock, compile, tmp_path)
    before = len(rows(tmp_path))
    assert hooks_of(watched.model) == 0
    data = torch.randn(6, 8)
    watched.model.kept[0](data).sum().backward()
    torch._dynamo.reset()
    bare = torch.compile(watched.model, fullgraph=True, backend="aot_eager")
    assert torch.equal(bare(data), watched.model.kept[0](data))
    assert len(rows(tmp_path)) == before


def test_a_backward_that_outlives_its_monitor(tmp_path):
    """Its code still has the operator, which finds nobody: not even another monitor of the model."""
    torch._dynamo.reset()
    model = InPlaceBlock()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = torch.compile(model, fullgraph=True, backend="aot_eager")
    first = trainmon.watch(model, optimizer, kinds=KINDS, inside_compiled=True, out=tmp_path / "a")
    loss = run(torch.randn(6, 8)).sum()
    healthy(first)
    second = trainmon.watch(model, optimizer, kinds=KINDS, inside_compiled=True, out=tmp_path / "b")
    loss.backward()
    optimizer.step()
    healthy(second)
    assert rows(tmp_path / "a", kind="actv") and rows(tmp_path / "b") == []
    assert rows(tmp_path / "a", kind="actv_grad") == []


# --- what cannot be seen -------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
def test_compiled_before_watch(known, tmp_path):
    """The hooks of its modules are not in the code. Only the outermost module calls them."""
    torch._dynamo.reset()
    model, data = InPlaceBlock(), torch.randn(6, 8)
    run = torch.compile(model, fullgraph=True, backend="aot_eager")
    run(data).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = {"kinds": KINDS, "inside_compiled": True, "out": tmp_path / "late"}
    monitor = trainmon.watch(run if known else model, optimizer, **watch)
    for _ in range(2):
        run(data).sum().backward()
        optimizer.step()
    healthy(monitor)
    assert {n for (n,) in keys(tmp_path / "late", "name")} == {""}
    (why,) = (
        why
        for what, why in run_json(monitor)["not_covered"].items()
        if what == "actv of up, relu, twice, norm, gelu, out"
    )
    assert why.endswith(compiled.COMPILED_BEFORE) and "torch._dynamo.reset()" in why
    assert (why == compiled.COMPILED_BEFORE) == known
    # And what it says to do helps.
    monitor = trainmon.watch(model, optimizer, **{**watch, "out": tmp_path / "reset"})
    torch._dynamo.reset()
    run(data).sum().backward()
    optimizer.step()
    healthy(monitor)
    assert len({n for (n,) in keys(tmp_path / "reset", "name", kind="actv_grad")}) == 7


@versions.compiled_vmap
def test_what_is_not_looked_into_is_said(tmp_path):
    class Odd:
        def __init__(self, x):
            self.x = x

    class Inner(nn.Module):
        def forward(self, x):
            return Odd(x * 2)

    class Mapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.linear = Inner(), nn.Linear(8, 8)

        def forward(self, x):
            return torch.func.vmap(self.linear)(self.inner(x).x)

    bare = Trained(Mapped, whole())
    watched = Trained(Mapped, whole(), tmp_path)
    assert same(bare, watched)
    assert "actv inner output" in watched.not_covered
    assert "torch.vmap" in watched.not_covered["actv linear output"]
    assert {n for (n,) in keys(tmp_path, "name")} == {"", "inner"}


def test_gradients_that_never_come_are_said(tmp_path):
    """Of a compiled part that no loss depends on, and of no other."""

    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.line, self.bend = nn.Linear(8, 8), nn.ReLU()

        def forward(self, x):
            return self.bend(self.line(x))

    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(8, 8), Part()

        def forward(self, x):
            return self.used(x), self.unused(x)

    def loss(run, x):
        return run(x)[0].pow(2).mean()

    def compile(model):
        model.unused.compile(backend="aot_eager")
        return model

    watched = Trained(Unused, compile, tmp_path, loss=loss)
    (said,) = {what for what in watched.not_covered if "of inputs" not in what}
    assert said.startswith("actv_grad of ") and said.endswith(" inside torch.compile")
    named = set(
        said.removeprefix("actv_grad of ").removesuffix(" inside torch.compile").split(", ")
    )
    # torch 2.15 traces the hooks of the module that compile() was called on, too.
    assert named - {"unused"} == {"unused.line", "unused.bend"}
    names = {"", "used", "unused", "unused.line", "unused.bend"}
    assert {n for (n,) in keys(tmp_path, "name", kind="actv")} == names
    assert {n for (n,) in keys(tmp_path, "name", kind="actv_grad")} == {"", "used"}


def test_an_older_torch_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(dynamo, "EARLIEST", (99, 0))
    torch._dynamo.reset()
    model = Around()
    model.block.compile(fullgraph=True, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, inside_compiled=True, out=tmp_path)
    model(torch.randn(6, 8)).sum().backward()
    optimizer.step()
    healthy(monitor)
    assert {n for (n,) in keys(tmp_path, "name", kind="actv")} == {"", "first", "last"}
    assert run_json(monitor)["not_covered"]["actv inside torch.compile"] == dynamo.TOO_OLD


# --- harm ----------------------------------------------------------------------------------------


def test_an_operator_that_fails_is_switched_off(tmp_path, monkeypatch):
    def fails(*_):
        raise RuntimeError("planted")

    bare = Trained(InPlaceBlock, whole())
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = InPlaceBlock()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, inside_compiled=True, out=tmp_path)
    run = torch.compile(model, fullgraph=True, backend="aot_eager")
    monkeypatch.setattr(compiled.Point, "seen", fails)
    monkeypatch.setattr(compiled.Point, "seen_gradient", fails)
    torch.manual_seed(1)
    for loss in bare.losses:
        optimizer.zero_grad()
        value = squares(run, torch.randn(6, 8))
        value.backward()
        optimizer.step()
        assert value.item() == loss
    assert "planted" in monitor.stop()["parts_off"]["activations"]


@pytest.mark.parametrize("strict", [pytest.param(True, marks=versions.strict_export), False])
def test_an_exported_program_is_free_of_it(strict, tmp_path):
    model = InPlaceBlock()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, inside_compiled=True, out=tmp_path)
    program = torch.export.export(model, (torch.randn(6, 8),), strict=strict)
    assert "trainmon" not in str(program.graph)
    copied = copy.deepcopy(model)
    torch.save(model, io.BytesIO())
    healthy(monitor)
    assert copied(torch.randn(6, 8)).shape == (6, 4)


def test_ranks_under_ddp(tmp_path):
    """Two processes, each with its own rows; training is as without trainmon."""
    launch.run("compile_ddp_run.py", tmp_path, ranks=2)
    for rank in range(2):
        report = torch.load(tmp_path / f"{rank}.pt")
        assert report["bare"] == report["watched"] and len(report["bare"]) == 3
        assert report["health"]["parts_off"] == {} and report["graphs"][0] == report["graphs"][1]
        for step, output in enumerate(report["outputs"]):
            here = {"rank": rank, "kind": "actv", "name": "block.twice", "step": step, "call": 1}
            assert_is(row(tmp_path / "run", element="output", **here), output, 1e-6)
        assert len(rows(tmp_path / "run", rank=rank, kind="actv_grad", name="block.twice")) == 6


def test_hooks_of_a_compiled_step_are_no_graphs_of_their_own(tmp_path, caplog):
    """A compiled step() has the bias corrections of Adam in float32: `update` is not certain there."""

    def train(watches):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2))
        monitor = trainmon.watch(model, optimizer, checks=True, out=tmp_path) if watches else None
        step = torch.compile(optimizer.step, backend="eager")
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(5, 8)).square().mean().backward()
            step()
        if monitor is not None:
            healthy(monitor)
            monitor.stop()
        return counters["frames"]["total"], [p.detach().clone() for p in model.parameters()]

    bare, weights = train(False)
    watched, same = train(True)
    assert watched <= bare + 4
    assert all(map(torch.equal, weights, same))
    assert "recompile_limit" not in caplog.text
    assert trainmon.diagnose(tmp_path)["verdict"] is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("how", ["watch", "probe", "probe of all"])
def test_a_compiled_step_does_not_trace_the_hooks(how, tmp_path):
    def train(observe):
        torch.manual_seed(0)
        torch._dynamo.reset()
        model = nn.Linear(6, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        norms = []
        with observe(model, optimizer):
            step = torch.compile(optimizer.step, backend="eager")
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(3, 6)).pow(2).mean().backward()
                norms.append(model.weight.grad.norm().item())
                step()
        return [parameter.detach().clone() for parameter in model.parameters()], norms

    observers = {
        "watch": lambda *both: trainmon.watch(*both, checks=True, every=1, out=tmp_path),
        "probe": lambda *both: trainmon.GradProbe(*both, out=tmp_path),
        "probe of all": lambda model, _: trainmon.GradProbe(model, out=tmp_path),
    }
    with warnings.catch_warnings():  # those of torch itself, once in a process
        warnings.simplefilter("default")
        expected, norms = train(lambda *_: contextlib.nullcontext())
    found, _ = train(observers[how])
    assert all(map(torch.equal, found, expected))
    if how == "watch":
        read = trainmon.read(tmp_path, kinds="grad_reduced", include="weight")
        assert list(read["norm"]) == pytest.approx(norms)
        assert trainmon.diagnose(tmp_path)["verdict"] is None
    else:
        found = [grad_probe_case.summary(tmp_path / "rank0", step) for step in range(3)]
        assert [float(one["weight"]["norm"]) for one in found] == pytest.approx(norms)


COMPILED_AUTOGRAD = {
    "grads": {},
    "unreduced": {"kinds": ["grad_unreduced", "grad_micro", "grad_reduced"]},
    "checks": {"checks": True},
    "activations": {"kinds": ["grads", *KINDS], "input_grads": True},
    "budget": {"budget": "50%"},
}


@pytest.mark.skipif(TORCH < (2, 5), reason="compiled_autograd._enable came with torch 2.5")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("asked", COMPILED_AUTOGRAD)
def test_compiled_autograd_with_one_graph(tmp_path, asked, backend):
    """With fullgraph=True whatever its graph cannot have is an error, which a hook of ours must not be."""
    compiled_autograd = torch._dynamo.compiled_autograd
    whole = torch.compile(backend=backend, fullgraph=True)

    def train(watched):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        how = {"out": tmp_path, "every": 1, **COMPILED_AUTOGRAD[asked]}
        monitor = trainmon.watch(model, optimizer, **how) if watched else None
        norms = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(5, 8)).square().mean()
            with compiled_autograd._enable(whole):
                loss.backward()
            norms.append(float(model[0].weight.grad.norm()))
            optimizer.step()
        facts = {}
        if monitor is not None:
            healthy(monitor)
            monitor.stop()
            facts = run_json(monitor)
        return [p.detach().clone() for p in model.parameters()], norms, facts

    bare, norms, _ = train(False)
    watched, _, facts = train(True)
    assert all(map(torch.equal, bare, watched))
    gc.collect()
    assert not dynamo.in_graphs.hooks and not dynamo.in_graphs.untold  # nothing is left in torch
    if asked != "budget":  # which leaves steps out
        read = trainmon.read(tmp_path, kinds="grad_reduced", include="0.weight")
        assert list(read["norm"]) == pytest.approx(norms)
    if asked == "unreduced":
        assert facts["not_covered"]["grad_unreduced"].startswith("compiled autograd")


@pytest.mark.skipif(TORCH < (2, 5), reason="compiled_autograd._enable came with torch 2.5")
@pytest.mark.parametrize("forward", ["loss", "model", "parts"])
def test_compiled_autograd_where_no_forward_begins_outside(tmp_path, forward):
    """The model is called inside compiled code, or only its parts are."""
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    whole = torch.compile(backend="eager", fullgraph=True)
    loss_of = {
        "loss": whole(lambda x: model(x).square().mean()),
        "model": lambda x: torch.compile(model, backend="eager")(x).square().mean(),
        "parts": lambda x: model[2](model[1](model[0](x))).square().mean(),
    }[forward]
    with trainmon.watch(model, optimizer, out=tmp_path) as monitor:
        for _ in range(3):
            optimizer.zero_grad()
            loss = loss_of(torch.randn(5, 8))
            with torch._dynamo.compiled_autograd._enable(whole):
                loss.backward()
            optimizer.step()
        healthy(monitor)
    assert list(trainmon.read(tmp_path, include="0.weight")["step"]) == [0, 1, 2]


def test_gradients_of_inputs_in_a_compiled_backward(tmp_path):
    """Hooks are handed a list there, and elsewhere a tuple."""
    compiled_autograd = torch._dynamo.compiled_autograd
    enable = getattr(compiled_autograd, "_enable", None) or compiled_autograd.enable  # until 2.5
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with trainmon.watch(
        model, optimizer, kinds=KINDS, inside_compiled=True, out=tmp_path
    ) as monitor:
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.ones(5, 8)).square().mean()
            with enable(torch.compile(backend="eager")):
                loss.backward()
            optimizer.step()
        healthy(monitor)
    steps = {r["step"] for r in rows(tmp_path) if r["kind"] == "actv"}
    assert steps == {0, 1, 2}
