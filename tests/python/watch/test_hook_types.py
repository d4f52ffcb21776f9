# What hooks in C++ and Python share has types: what is misspelled or of another type fails at once.
import ast
import gc
import json
import pathlib
import weakref

import pytest
import torch
from torch import nn

import trainmon
from trainmon import _core
from trainmon.base.parts import Part
from trainmon.torch.hooks.backward import Backward
from trainmon.torch.modules.activations import Activations, Watched
from trainmon.torch.parameters.accumulated import Accumulated, OfDTensor
from trainmon.torch.parameters.main_grad import InMainGrad
from trainmon.torch.steps.windows import Steps

# Classes in Python -> the bound structs they stand on.
BASES = {
    Part: _core.Part,
    Backward: _core.Backward,
    Steps: _core.Steps,
    Watched: _core.Watched,
    Activations: _core.Forwards,
    Accumulated: _core.Accumulated,
    OfDTensor: _core.Accumulated,
    InMainGrad: _core.Accumulated,
}
# What C++ calls by name.
CALLED = {
    _core.Part: ("failed",),
    _core.Backward: ("enter",),
    _core.Steps: ("backward_begins",),
    _core.Accumulated: ("found_none", "local_of", "again", "is_elsewhere", "is_traced"),
    _core.Forwards: (
        "new_series",
        "is_elsewhere",
        "found_no_tensor",
        "accumulator",
        "added",
        "not_covered",
        "traceable",
        "follow_leaf",
    ),
}
KINDS = ["grad_unreduced", "activations"]


@pytest.fixture
def shared(tmp_path):
    """One object of each class that a watched model has."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, optimizer, kinds=KINDS, out=tmp_path)
    model(torch.ones(2, 3)).sum().backward()
    adapter = monitor._adapter
    hooked = next(iter(adapter.registry.hooked.values()))
    watched = next(iter(adapter.activations.watched.values()))[1]
    objects = (
        adapter.steps_part,
        adapter.backward,
        adapter.clock,
        watched,
        adapter.activations,
        hooked.hook,
    )
    assert {type(o) for o in objects} == {*BASES} - {OfDTensor, InMainGrad}
    yield {type(o): o for o in objects}
    assert monitor.stop()["errors"] == 0


def properties(base) -> list[str]:
    return [name for name, value in vars(base).items() if isinstance(value, property)]


def test_a_misspelled_attribute_fails_at_once(shared):
    for kind, one in shared.items():
        for name in properties(BASES[kind]):
            with pytest.raises(AttributeError):
                setattr(one, name + "x", None)
            with pytest.raises(AttributeError):
                getattr(one, name + "x")
        assert not hasattr(one, "__dict__")


def test_another_type_fails_at_once(shared):
    steps, watched = shared[Steps], shared[Watched]
    for one, name, value in (
        (shared[Part], "on", 1),
        (shared[Backward], "now", None),
        (steps, "recording", "yes"),
        (steps, "task", 1.5),
        (steps, "flags", -1),
        (steps, "frame", (0, 0, True, 0)),
        (watched, "values", []),
        (shared[Activations], "live", None),
        (shared[Accumulated], "steps", watched),
        (shared[Accumulated], "series", "0"),
    ):
        before = getattr(one, name)
        with pytest.raises(TypeError):
            setattr(one, name, value)
        assert getattr(one, name) == before
    for name in ("place", "calls"):  # C++ alone counts them
        with pytest.raises(AttributeError):
            setattr(watched, name, getattr(watched, name))


@pytest.mark.parametrize("base, method", [(b, m) for b, names in CALLED.items() for m in names])
def test_a_class_without_a_method_that_is_called_cannot_be_defined(base, method):
    methods = {name: lambda *_: None for name in CALLED[base]}
    assert issubclass(type("Whole", (base,), methods), base)
    methods[method + "x"] = methods.pop(method)
    with pytest.raises(TypeError, match=rf"Broken does not define {method}\(\)"):
        type("Broken", (base,), methods)


def test_no_class_hides_what_cpp_reads():
    for kind, base in BASES.items():
        assert properties(base)
        between = kind.__mro__[: kind.__mro__.index(base)]
        hidden = {name for one in between for name in vars(one)} & {*properties(base)}
        assert not hidden, kind


def test_the_stub_has_them_all():
    stub = pathlib.Path(_core.__file__).parent / "_core.pyi"
    found = {
        node.name: {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
        for node in ast.parse(stub.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    for base in {*BASES.values(), _core.Place, _core.GradientRow, _core.InputSum}:
        names = {name for name in vars(base) if not name.startswith("_")}
        assert names <= found[base.__name__]


@pytest.mark.parametrize(
    "parts, key",
    [
        ({"directroy": "x"}, "directroy"),
        ({"msprobe": {"ops": ["norm"], "first_stepp": 1}}, "first_stepp"),
        ({"msprobe": {"ops": [], "monitors": [{"name": "module", "kinds": [], "ops": [],
                                               "by_kind": True, "opps": []}]}}, "opps"),
        ({"anomaly": {"base": "x", "pp_stage": 0, "group_mates": [], "rank": 0}}, "rank"),
        ({"rules": [{"name": "a", "stats": ["norm"], "limits": 1.0}]}, "limits"),
        ({"rules": [{"name": "a", "stats": ["norm"], "deviation": 1.0, "warmup": 0, "warm": 0}]},
         "warm"),
    ],
)  # fmt: skip
def test_a_misspelled_key_of_the_parts_of_a_monitor_fails_at_once(parts, key, tmp_path):
    config = json.dumps({"out": str(tmp_path)})
    with pytest.raises(ValueError, match=rf"no part has a key '{key}'"):
        _core.Monitor(config, "{}", json.dumps(parts))
    assert not any(tmp_path.iterdir())


def test_circles_through_them_are_collected():
    class Node:
        pass

    backward = Backward(Part(None, "p"), None)
    node = Node()
    backward.at_end = node
    node.backward = backward
    gone = [weakref.ref(node)]

    steps = Bare(backward)
    node = Node()
    node.steps = steps
    steps.last = node
    gone += [weakref.ref(node), weakref.ref(steps)]

    steps = Bare(backward)
    node = Node()
    node.steps = steps
    steps.previous = node
    gone += [weakref.ref(node), weakref.ref(steps)]

    watched = Watched("w", 0)
    node = Node()
    node.watched = watched
    watched.values = {"output": node}
    gone.append(weakref.ref(node))

    del backward, steps, watched, node
    gc.collect()
    assert [reference() for reference in gone] == [None] * len(gone)


class Bare(_core.Steps):
    __slots__ = ()

    def backward_begins(self, tensor):
        pass
