"""Forwards that a backward recomputes: what is the same bit for bit, and what begins to be other."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import trainmon

STEPS, AT = 70, 50


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.relu, self.drop = torch.nn.ReLU(), torch.nn.Dropout(0.2)

    def forward(self, x):
        return x + self.relu(self.down(self.drop(self.relu(self.up(x)))))


class Model(torch.nn.Module):
    """Two blocks; the first is recomputed."""

    def __init__(self, reentrant: bool):
        super().__init__()
        self.stem, self.head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
        self.reentrant, self.keeps_random_state = reentrant, True

    def forward(self, x):
        h = checkpoint(
            self.blocks[0],
            self.stem(x),
            use_reentrant=self.reentrant,
            preserve_rng_state=self.keeps_random_state,
        )
        return self.head(self.blocks[1](h))


def train(out, reentrant=False, wrong_from=STEPS, watch=True, calls=1, **how):
    """The weights it ends with."""
    torch.manual_seed(0)
    model = Model(reentrant)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    options = {"kinds": "activations", "checks": True, "every": 1, "out": out, **how}
    monitor = trainmon.watch(model, optimizer, **options) if watch else None
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        model.keeps_random_state = step < wrong_from
        x = torch.randn(16, 4, generator=generator)
        loss = sum((model(x) - x.sum(1, keepdim=True)).square().mean() for _ in range(calls))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if monitor is not None:
        monitor.stop()
    return [p.detach().clone() for p in model.parameters()]


def of_recomputed(found):
    return [one for one in found["findings"] if one["check"] == "recompute"]


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("reentrant", [False, True])
def test_other_random_numbers_are_noticed_and_the_same_are_not(tmp_path, reentrant):
    bare = train(None, reentrant, AT, watch=False)
    assert equal(bare, train(str(tmp_path / "wrong"), reentrant, AT))
    train(str(tmp_path / "right"), reentrant)
    right = trainmon.diagnose(str(tmp_path / "right"))
    assert not of_recomputed(right) and right["verdict"] is None
    # Each step reads a part of what it recomputes.
    assert STEPS // 2 < right["checked"]["recompute"] < 2 * STEPS
    (one,) = of_recomputed(trainmon.diagnose(str(tmp_path / "wrong")))
    assert AT <= one["step"] < AT + 4 and not one["certain"]
    assert one["stage"] == "grad_unreduced" and one["ranks"] == [0]
    assert all(name.startswith("blocks.0") for name in one["tensors"]), one


def test_rows_are_those_of_the_forward(tmp_path):
    train(str(tmp_path / "run"))
    rows = trainmon.read(str(tmp_path / "run"))
    again = rows[rows.kind == "actv_recomputed"]
    # The ReLU is called twice, and nobody knows which call is recomputed.
    assert set(again.name) - {"blocks.0"} == {f"blocks.0.{name}" for name in ("up", "drop", "down")}
    first = rows[(rows.kind == "actv") & (rows.element == "output")]
    both = again.merge(first, on=["step", "micro_step", "name"], suffixes=("", "_first"))
    assert len(both) == len(again) > STEPS // 2
    for statistic in ("norm", "mean", "min", "max", "zeros"):
        assert (both[statistic] == both[f"{statistic}_first"]).all(), statistic


@pytest.mark.parametrize("how", [{"calls": 2}, {"kinds": "grads"}, {"checks": False}])
def test_what_cannot_be_compared_has_no_rows(tmp_path, how):
    train(str(tmp_path / "run"), wrong_from=AT, **how)
    assert "actv_recomputed" not in set(trainmon.read(str(tmp_path / "run")).kind)
    found = trainmon.diagnose(str(tmp_path / "run"))
    assert not of_recomputed(found)
    assert "recompute" not in {one["check"] for one in found["not_checked"]}


def test_operations_see_the_same(tmp_path):
    train(str(tmp_path / "run"), wrong_from=AT, backend="ops")
    (one,) = of_recomputed(trainmon.diagnose(str(tmp_path / "run")))
    assert AT <= one["step"] < AT + 4
