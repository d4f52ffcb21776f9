# Models and optimizers in dicts: their names are in those of series, in patterns and in run.json.
import pytest
import torch
from torch import nn

import trainmon
from adapter_rows import assert_is, healthy, keys, row, run_json


def models():
    torch.manual_seed(0)
    return {"G": nn.Sequential(nn.Linear(2, 3)), "D": nn.Sequential(nn.Linear(3, 1), nn.Tanh())}


def train(named, steps=2, seen=None):
    optimizers = {name: torch.optim.Adam(model.parameters()) for name, model in named.items()}
    yield optimizers
    for step in range(steps):
        named["D"](named["G"](torch.randn(4, 2))).mean().backward()
        for name, optimizer in optimizers.items():
            if seen is not None:
                seen[name, step] = named[name][0].weight.grad.clone()
            optimizer.step()
            optimizer.zero_grad()


def test_names_are_those_of_the_dict(tmp_path):
    named, seen = models(), {}
    training = train(named, seen=seen)
    optimizers = next(training)
    kinds = ["grad_reduced", "exp_avg", "actv"]
    with trainmon.watch(named, optimizers, kinds=kinds, out=tmp_path) as monitor:
        list(training)
        healthy(monitor)
    for (name, step), gradient in seen.items():
        assert_is(row(tmp_path, kind="grad_reduced", name=f"{name}.0.weight", step=step), gradient)
    found = set(keys(tmp_path, "name", "chunk", kind="actv", element="output", step=0))
    assert found == {("G", 0), ("G.0", 0), ("D", 1), ("D.0", 1), ("D.1", 1)}
    told = run_json(monitor)["notes"]
    assert told["models"] == told["optimizers"] == ["G", "D"]


def test_patterns_take_these_names(tmp_path):
    named = models()
    training = train(named)
    kinds = ["grad_reduced", "actv"]
    with trainmon.watch(
        named, next(training), kinds=kinds, include=["D.**"], exclude=["**.1"], out=tmp_path
    ) as monitor:
        list(training)
        healthy(monitor)
    assert set(keys(tmp_path, "name")) == {("D.0.weight",), ("D.0.bias",), ("D",), ("D.0",)}
    assert not any("include" in what for what in run_json(monitor)["not_covered"])


def test_a_list_keeps_bare_names_and_numbers(tmp_path):
    named = models()
    training = train(named)
    with trainmon.watch(list(named.values()), next(training), out=tmp_path):
        list(training)
    found = set(keys(tmp_path, "name", "chunk"))
    assert ("0.weight", 0) in found and ("0.weight", 1) in found


def test_parameters_that_are_replaced_keep_their_names(tmp_path):
    named = models()
    optimizer = torch.optim.SGD(named["G"].parameters(), lr=0.1)
    with trainmon.watch({"G": named["G"]}, optimizer, out=tmp_path):
        for _ in range(2):
            named["G"](torch.randn(4, 2)).sum().backward()
            optimizer.step()
            named["G"][0] = nn.Linear(2, 3)
            optimizer.param_groups[0]["params"] = list(named["G"].parameters())
    found = set(keys(tmp_path, "name", "step", kind="grad_reduced"))
    assert found == {(f"G.0.{n}", step) for n in ("weight", "bias") for step in (0, 1)}


def test_descriptions_have_these_names():
    text = str(trainmon.describe(models()))
    assert "G.0.weight" in text and "D.0.bias" in text


def test_an_empty_dict_is_refused(tmp_path):
    with pytest.raises(TypeError, match="model must be"):
        trainmon.watch({}, None, out=tmp_path)
