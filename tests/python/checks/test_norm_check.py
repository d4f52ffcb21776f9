"""The norm of gradients that a training logs, held against the recorded gradients."""

from __future__ import annotations

import pytest
import torch

import trainmon


def train(path, logged, max_norm=None, steps=8, dtype=torch.float32, accum=1):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model.to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with trainmon.watch(model, optimizer, out=str(path), kinds="grads") as mon:
        for step in range(steps):
            optimizer.zero_grad()
            for _ in range(accum):
                (
                    model(torch.randn(16, 6, dtype=dtype) * (1 + step)).pow(2).mean() / accum
                ).backward()
            limit = float("inf") if max_norm is None else max_norm
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
            mon.log(grad_norm=logged(model, norm))
    return trainmon.diagnose(str(path))


def as_clipped(model, norm):
    return norm


def last_layer_twice(model, norm):
    """As a sum of squares over ranks that hold the last layer both."""
    grads = [*model.parameters(), *model[2].parameters()]
    return torch.stack([p.grad.float().norm() for p in grads]).norm()


@pytest.mark.parametrize(
    "how",
    [{}, {"max_norm": 0.05}, {"max_norm": 0.7}, {"accum": 3}, {"dtype": torch.bfloat16}],
)
def test_what_clip_grad_norm_gives_is_sound(how, tmp_path):
    found = train(tmp_path / "run", as_clipped, **how)
    assert found["checked"]["norm"] == 8
    assert [one for one in found["findings"] if one["check"] == "norm"] == []


def test_a_norm_that_counts_weights_twice_is_noticed(tmp_path):
    found = train(tmp_path / "run", last_layer_twice)
    (one,) = [one for one in found["findings"] if one["check"] == "norm"]
    assert found["verdict"] is None and not one["certain"]
    assert (one["stage"], one["ranks"]) == ("grad_reduced", [0])
    assert "the logged grad_norm is" in one["text"]
    assert one["step"] <= 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_norm_that_is_not_finite_beside_finite_gradients_is_noticed(value, tmp_path):
    found = train(tmp_path / "run", lambda model, norm: value)
    (one,) = [one for one in found["findings"] if one["check"] == "norm"]
    assert found["verdict"] is None and f"the logged grad_norm is {value}, the norm" in one["text"]
    assert found["checked"]["norm"] == 8


def test_without_a_logged_norm_it_is_not_checked(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.watch(model, optimizer, out=str(tmp_path / "run"), kinds="grads"):
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
    found = trainmon.diagnose(str(tmp_path / "run"))
    (why,) = [one["why"] for one in found["not_checked"] if one["check"] == "norm"]
    assert why == "log() was given no grad_norm, or rows of it are not there"


def test_a_part_of_the_rows_is_not_held_against_the_norm(tmp_path):
    train(tmp_path / "run", as_clipped)
    found = trainmon.diagnose(str(tmp_path / "run"), include="2.weight")
    assert "norm" not in found["checked"]
