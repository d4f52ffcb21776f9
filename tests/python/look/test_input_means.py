"""Data that are others on average from one step on, which no row alone shows."""

import numpy as np
import pytest
import torch
from torch import nn

import trainmon
from test_report import command

STEPS, CHANGE = 420, 300


def batch(step, has_ended):
    """Documents of two sources, whose ids overlap; one source ends."""
    drawn = np.random.default_rng(step)
    sources = drawn.random(16) < (0.0 if has_ended else 0.3)
    centres = np.where(sources, 60, 45)[:, None]
    return torch.from_numpy(np.clip(drawn.normal(centres, 25, (16, 4)), 1, 99).astype(np.int64))


def trained(out, ends_at):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(100, 8), nn.Flatten(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    given = []
    with trainmon.watch(model, optimizer, out=str(out), kinds=["grads", "input"], every=1):
        for step in range(STEPS):
            ids = batch(step, step >= ends_at)
            given.append(np.log(ids.double().mean().item()))
            model(ids).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return np.array(given)


def test_a_source_that_ends_is_told(tmp_path):
    given = trained(tmp_path, CHANGE)
    left = trainmon.diagnose(str(tmp_path))["left_history"]
    assert (left["kind"], left["element"], left["measure"]) == ("input", "input.0", "given")
    at = left["step"]
    assert abs(at - CHANGE) <= 3
    before, after = given[at - 64 : at], given[at : at + 64]
    assert left["before"] == pytest.approx(np.exp(before.mean()), rel=1e-5)
    assert left["norm"] == pytest.approx(np.exp(after.mean()), rel=1e-5)
    noise = np.concatenate([before - before.mean(), after - after.mean()])
    pairs = np.dot(noise[1:64], noise[:63]) + np.dot(noise[65:], noise[64:-1])
    correlation = max(0.0, pairs / np.dot(noise, noise))
    error = np.sqrt((before.var() + after.var()) / 63)
    errors = abs(after.mean() - before.mean()) / error
    assert errors == max(abs(z) for z in all_errors(given))
    independent = errors * np.sqrt((1 - correlation) / (1 + correlation))
    assert left["unusual"] == pytest.approx(independent, rel=1e-4)
    text = command("diagnose", tmp_path, check=0).stdout
    said = (
        f"step {at}, rank 0, input (root) input.0\n  its mean is {left['norm']:.4g} in the mean of"
    )
    assert said in text


def all_errors(given):
    for at in range(64, len(given) - 63):
        before, after = given[at - 64 : at], given[at : at + 64]
        yield (after.mean() - before.mean()) / np.sqrt((before.var() + after.var()) / 63)


def test_one_that_goes_on_is_not(tmp_path):
    trained(tmp_path, STEPS)
    assert trainmon.diagnose(str(tmp_path))["left_history"] is None


def test_augmentations_that_repeat_are_told(tmp_path):
    """Images are shuffled, and how bright they are made is drawn from the same seed in each epoch."""
    torch.manual_seed(0)
    model = nn.Linear(16, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    images, given = torch.randn(240, 16), []
    with trainmon.watch(model, optimizer, out=str(tmp_path), kinds=["grads", "input"], every=1):
        for _ in range(8):
            bright = np.random.default_rng(1)
            for chosen in torch.randperm(240).split(8):
                batch = images[chosen] * float(bright.uniform(0.5, 1.5))
                given.append(np.log(batch.double().square().mean().sqrt().item()))
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    left = trainmon.diagnose(str(tmp_path))["left_history"]
    assert (left["kind"], left["measure"], left["step"]) == ("input", "repeats", 30)
    assert left["before"] == 30
    assert left["norm"] == pytest.approx(np.corrcoef(given[30:], given[:-30])[0, 1], abs=0.02)
    assert "by a correlation of 0.9" in command("diagnose", tmp_path, check=0).stdout
