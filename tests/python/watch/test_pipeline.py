# Stages of torch.distributed.pipelining.
import math

import pytest
import torch
import torch.distributed as dist
from torch import nn

import trainmon

pipelining = pytest.importorskip("torch.distributed.pipelining")


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_forward_that_learns_shapes_gives_no_rows(tmp_path, group, monkeypatch):
    """A stage runs its module once on memory that nobody has written: here it holds NaN."""
    made = torch.empty_strided
    monkeypatch.setattr(torch, "empty_strided", lambda *a, **k: made(*a, **k).fill_(math.nan))
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    stage = pipelining.PipelineStage(model, 0, 1, torch.device("cpu"))
    schedule = pipelining.ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)
    kinds = ["activations"]
    with trainmon.watch(model, optimizer, out=tmp_path / "run", checks=True, kinds=kinds):
        for _ in range(3):
            optimizer.zero_grad()
            batch = torch.randn(4, 8)
            schedule.step(batch, target=batch * 2)
            optimizer.step()
    rows = trainmon.read_table(tmp_path / "run")
    places = list(zip(*(rows[c] for c in ("kind", "name", "element", "micro_step", "call"))))
    first, later = ([p for p, s in zip(places, rows["step"]) if s == step] for step in (0, 1))
    assert ("input", "", "input.0", 0, 1) in first  # two micro batches
    assert sorted(first) == sorted(later)
    assert trainmon.first_bad(tmp_path / "run") is None
