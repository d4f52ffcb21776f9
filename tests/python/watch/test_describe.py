"""describe(): the names that patterns take, without running anything."""

import pytest
import torch
from torch import nn

import trainmon


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4, bias=False)])
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.layers[0].bias.requires_grad_(False)

    def forward(self, x):
        raise AssertionError("describe() must not run the model")


def test_names_are_those_of_named_modules_and_parameters():
    model = Model()
    found = trainmon.describe(model)
    assert [m.name for m in found] == [name for name, _ in model.named_modules()]
    assert [name for m in found for name in m.parameters] == [
        n for n, _ in model.named_parameters()
    ]
    by_name = {m.name: m for m in found}
    assert by_name["embed"].parameters == {"embed.weight": "float32 [7, 4]  also head.weight"}
    assert by_name["layers.0"].parameters["layers.0.bias"] == "float32 [4]  frozen"
    assert not by_name["layers"].is_called and by_name["layers.1"].is_called
    assert by_name[""].type == "Model"
    text = str(found).splitlines()
    assert text[0] == "(model)  Model" and "  layers  ModuleList  (never called)" in text


def test_chunks_and_wrappers():
    found = trainmon.describe([nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))])
    assert [(m.chunk, m.name) for m in found] == [(0, ""), (1, ""), (1, "0")]
    assert "1:0  Linear" in str(found)
    compiled = torch.compile(nn.Sequential(nn.Linear(2, 2)))
    assert [m.name for m in trainmon.describe(compiled)] == ["", "0"]


def test_what_is_no_model_is_refused():
    with pytest.raises(TypeError, match="must be a torch.nn.Module"):
        trainmon.describe(3)
