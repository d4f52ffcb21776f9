"""Rows of buffers against torch, and what `diagnose` says of buffers that change where they did not."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

import launch
import trainmon

STEPS = 24
BEGIN = 16


class Model(nn.Module):
    """Statistics that every forward changes, a table that none does, one of ids, one that is made late, a
    mask, and a table that two modules share."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 1)
        self.register_buffer("table", torch.linspace(0.5, 2.0, 16))
        self.register_buffer("ids", torch.arange(16), persistent=False)
        self.register_buffer("late", None)
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
        self.head.register_buffer("shared", self.table)

    def forward(self, x):
        if self.late is None:
            self.late = torch.ones(3, dtype=torch.float64)
        return self.head(self.body(x) * self.table)


def batch(step):
    return torch.randn(32, 8, generator=torch.Generator().manual_seed(step))


def run(out, model, before=None, steps=STEPS, after=None, **keys):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    keys = keys or {"checks": True}
    with trainmon.watch(model, optimizer, every=1, out=str(out), **keys):
        for step in range(steps):
            if before is not None:
                before(step)
            optimizer.zero_grad()
            model(batch(step)).square().mean().backward()
            optimizer.step()
            if after is not None:
                after(step)
    return trainmon.diagnose(str(out))


def test_rows_are_those_of_every_buffer_at_the_end_of_its_step(tmp_path):
    model = Model()
    held = {}

    def after(step):
        held.update({(step, n): b.double().numpy().copy() for n, b in model.named_buffers()})

    run(tmp_path, model, after=after, steps=5, kinds=["buffer"])
    rows = trainmon.read(str(tmp_path))
    assert set(rows["kind"]) == {"buffer"}
    assert len(rows) == len(held) == 5 * 7
    for row in rows.to_dict("records"):
        values = held[row["step"], row["name"]]
        finite = values[np.isfinite(values)]
        assert row["count"] == values.size
        assert row["max"] == finite.max()
        if np.isfinite(values).all():
            assert row["min"] == values.min()
            assert row["norm"] == pytest.approx(np.sqrt((values**2).sum()), rel=1e-12)
    assert set(rows.query("name == 'late'")["dtype"]) == {"float64"}


def test_patterns_choose_buffers_by_their_names(tmp_path):
    answer = run(tmp_path, Model(), steps=3, kinds=["buffer"], include=["**.running_mean"])
    assert answer["verdict"] is None
    assert set(trainmon.read(str(tmp_path))["name"]) == {"body.1.running_mean"}
    facts = json.loads((tmp_path / "rank_00000" / "restart_0000" / "run.json").read_text())
    assert not any("include" in what for what in facts["not_covered"])


def test_buffers_that_come_later_and_modules_that_are_replaced_have_rows(tmp_path):
    model = Model()

    def before(step):
        if step == 3:
            model.register_buffer("fresh", torch.ones(5))
        if step == 6:
            model.body[1] = nn.BatchNorm1d(16)
        if step == 9:
            del model.fresh
            model.register_buffer("other", torch.ones(2))

    run(tmp_path, model, before, kinds=["buffer"])
    rows = trainmon.read(str(tmp_path))
    assert list(rows.query("name == 'fresh'")["step"]) == list(range(3, 9))
    assert list(rows.query("name == 'other'")["step"]) == list(range(9, STEPS))
    counted = rows.query("name == 'body.1.num_batches_tracked'").sort_values("step")["max"]
    assert list(counted) == [1, 2, 3, 4, 5, 6, *range(1, STEPS - 5)]


def test_one_tensor_under_two_names_has_a_row_under_the_first_until_they_part(tmp_path):
    model = Model()

    def before(step):
        if step == 4:
            model.head.shared = model.table + 1.0
        if step == 8:
            del model.head.shared
            model.register_buffer("fresh", torch.ones(5))

    run(tmp_path, model, before, steps=12, kinds=["buffer"])
    rows = trainmon.read(str(tmp_path))
    steps = {name: list(rows[rows["name"] == name]["step"]) for name in set(rows["name"])}
    assert steps["head.shared"] == [4, 5, 6, 7]
    assert steps["fresh"] == [8, 9, 10, 11]
    assert steps["table"] == list(range(12))


def test_what_is_no_tensor_has_no_row_and_the_others_have_theirs(tmp_path):
    model = Model()
    model._buffers["number"] = 3
    model._buffers[7] = torch.ones(2)
    model._buffers["sparse"] = torch.eye(3).to_sparse()
    model._buffers["meta"] = torch.ones(3, device="meta")
    assert run(tmp_path, model, steps=4)["verdict"] is None
    rows = trainmon.read(str(tmp_path))
    names = set(rows[rows["kind"] == "buffer"]["name"])
    assert "7" in names and "table" in names and not names & {"number", "sparse", "meta"}
    assert len(rows.query("kind == 'grad_reduced' and name == 'head.weight'")) == 4


def test_modules_that_are_scripted_have_rows_of_their_buffers(tmp_path):
    model = nn.Sequential(torch.jit.script(nn.BatchNorm1d(8)), nn.Linear(8, 1))
    run(tmp_path, model, steps=4)
    rows = trainmon.read(str(tmp_path)).query("name == '0.num_batches_tracked'")
    assert list(rows["max"]) == [1, 2, 3, 4]


def test_an_expanded_mask_costs_what_its_memory_does(tmp_path):
    model = Model()
    model.register_buffer("wide", torch.rand(64).expand(1 << 20, 1 << 20, 64))
    run(tmp_path, model, steps=3)
    rows = trainmon.read(str(tmp_path)).query("name == 'wide'")
    assert list(rows["count"]) == [1 << 46] * 3
    assert rows["mean"].tolist() == pytest.approx([float(model.wide[0, 0].double().mean())] * 3)


@pytest.mark.parametrize("keys", [{"checks": True}, {"kinds": ["grads", "buffer"]}])
def test_a_table_that_changes_is_noticed_once(tmp_path, keys):
    model = Model()

    def before(step):
        if step >= BEGIN:
            model.table[3] *= 1.001

    answer = run(tmp_path, model, before, **keys)
    assert answer["verdict"] is None
    (one,) = answer["findings"]
    assert (one["check"], one["stage"], one["step"]) == ("gap", "forward", BEGIN)
    assert one["tensors"] == ["table"] and not one["certain"], one


def test_a_clean_training_with_buffers_is_nothing(tmp_path):
    answer = run(tmp_path, Model(), steps=60)
    assert answer["findings"] == [] and answer["left_history"] is None, answer


def test_a_state_that_is_loaded_is_announced(tmp_path):
    model = Model()

    def before(step):
        if step == BEGIN:
            state = {name: value.clone() for name, value in model.state_dict().items()}
            state["table"] += 1.0
            model.load_state_dict(state)

    assert run(tmp_path, model, before)["findings"] == []


def test_a_nan_in_a_buffer_is_the_first_bad_row(tmp_path):
    model = Model()

    def before(step):
        if step == BEGIN:
            model.body[1].running_var[2] = torch.nan  # nothing but an evaluation uses it

    verdict = run(tmp_path, model, before)["verdict"]
    assert (verdict["check"], verdict["stage"], verdict["step"]) == ("finite", "forward", BEGIN)
    assert verdict["tensors"] == ["body.1.running_var"]


@pytest.mark.parametrize("value", [0.0, 1.0], ids=["zeros", "others"])
def test_a_mask_that_gets_its_infinities_later_is_no_certain_fault(tmp_path, value):
    """As of classes that are out. Beside other values than zeros a minus infinity is none."""
    model = Model()
    model.register_buffer("classes", torch.full((6,), value))

    def before(step):
        if step == BEGIN:
            model.classes[:2] = -torch.inf

    verdict = run(tmp_path, model, before)["verdict"]
    if value == 0.0:
        assert verdict is None
    else:
        assert (verdict["check"], verdict["tensors"]) == ("finite", ["classes"])


def test_a_nan_that_is_there_from_the_start_stands_for_what_no_forward_has_put_in(tmp_path):
    model = Model()
    model.register_buffer("memory", torch.full((8, 4), torch.nan))

    def before(step):
        model.memory[step % 6] = 1.0

    found = run(tmp_path, model, before)
    assert found["verdict"] is None and found["findings"] == []


@pytest.mark.parametrize("ranks", [2, 3])
def test_of_ranks_the_one_whose_table_changes_is_named(tmp_path, ranks):
    launch.run("buffers_run.py", tmp_path, BEGIN, STEPS, ranks=ranks)
    clean = trainmon.diagnose(str(tmp_path / "clean"))
    assert clean["verdict"] is None and clean["findings"] == []
    answer = trainmon.diagnose(str(tmp_path / "changed"))
    assert answer["verdict"] is None
    (one,) = answer["findings"]
    assert (one["check"], one["stage"], one["step"]) == ("replicas", "forward", BEGIN)
    assert one["ranks"] == ([0, 1] if ranks == 2 else [1]) and one["tensors"] == ["table"]
