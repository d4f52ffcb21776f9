# A framework whose private attributes have moved: said by name, and the rest works.
import json
import pathlib
import sys
import types

import torch
from torch import nn

import trainmon
from trainmon.torch.modules import gradient_edges


class Engine(nn.Module):
    """As DeepSpeed's, with an optimizer of a version that is not known."""

    def __init__(self, module, inner):
        super().__init__()
        self.module = module
        self.optimizer = types.SimpleNamespace(optimizer=inner)
        self.skipped_steps = self.global_steps = 0

    def forward(self, x):
        return self.module(x)

    def zero_optimization_stage(self):
        return 2

    def gradient_accumulation_steps(self):
        return 1

    def gradient_clipping(self):
        return 0.0

    def fp16_enabled(self):
        return False


def test_deepspeed_of_another_version(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", types.SimpleNamespace(DeepSpeedEngine=Engine))
    model = nn.Linear(3, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, inner)
    with trainmon.watch(engine, engine.optimizer, kinds=["grads", "weights"], out=tmp_path) as mon:
        for _ in range(2):
            engine(torch.ones(1, 3)).sum().backward()
            inner.step()
            inner.zero_grad()
        health = mon.health()
    assert health["parts_off"] == {} and health["errors"] == 0
    table = trainmon.read_table(tmp_path)
    assert set(table["kind"].tolist()) == {"grad_unreduced"}
    assert table["step"].tolist() == [0, 0, 1, 1]
    (run,) = pathlib.Path(tmp_path).rglob("run.json")
    missing = json.loads(run.read_text())["not_covered"]
    for what in ("grad_reduced", "weights", "moments"):
        assert "fp32_groups" in missing[what]


def test_a_torch_that_does_not_number_its_nodes(tmp_path, monkeypatch):
    monkeypatch.setattr(gradient_edges, "sequence_number", None)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.watch(model, optimizer, kinds=["activations"], out=tmp_path) as monitor:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        health = monitor.health()
    assert health["parts_off"] == {} and health["errors"] == 0
    table = trainmon.read_table(tmp_path)
    gradients = {e for k, e in zip(table["kind"], table["element"]) if k == "actv_grad"}
    assert gradients == {"output"}
    (run,) = pathlib.Path(tmp_path).rglob("run.json")
    missing = json.loads(run.read_text())["not_covered"]
    assert missing == {"actv_grad of inputs": gradient_edges.NOT_NUMBERED}
