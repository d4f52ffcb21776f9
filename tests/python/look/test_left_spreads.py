"""Lines that swing otherwise from a step on, though they have the same size: beside NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import trainmon
from test_left_shifts import left_of
from test_report import command, report
from written_run import WrittenRank

STEPS, BEGIN = 200, 130


def diagnosed(out, rows):
    return left_of(out, rows, STEPS)


@pytest.mark.parametrize("is_less", [False, True])
def test_noise_that_samples_share_is_told_by_the_spread_of_the_mean(tmp_path, is_less):
    random = np.random.default_rng(3)
    own = random.standard_normal((STEPS, 32, 100))
    shared = np.repeat(random.standard_normal((STEPS, 1, 100)), 32, axis=1)
    first, then = (shared, own) if is_less else (own, shared)
    batches = np.concatenate([first[:BEGIN], then[BEGIN:]])
    batches /= np.sqrt(np.square(batches).mean((1, 2), keepdims=True))  # of one norm
    left = diagnosed(tmp_path / "run", lambda step: [("input", "", "input.0", batches[step])])
    assert (left["kind"], left["measure"]) == ("input", "mean_spread")
    assert abs(left["step"] - BEGIN) <= 3
    means = batches.mean((1, 2))
    said = means[left["step"] : BEGIN + 24 + 24].std(ddof=1), means[:BEGIN].std(ddof=1)
    assert (left["norm"], left["before"]) == pytest.approx(said, rel=0.3)
    text = command("diagnose", tmp_path / "run").stdout
    assert f"its mean over its root mean square swings {'less' if is_less else 'more'}" in text
    page, _ = report(tmp_path / "run", tmp_path / "a.html", check=0)
    assert page.report["diagnosis"]["left_history"] == left


@pytest.mark.parametrize("kind, measure", [("input", "norm"), ("input_entropy", "entropy")])
def test_a_norm_and_an_entropy_may_swing_more(tmp_path, kind, measure):
    random = np.random.default_rng(4)
    sizes = np.exp(np.where(np.arange(STEPS) < BEGIN, 0.01, 0.08) * random.standard_normal(STEPS))
    out = tmp_path / "run"
    left = diagnosed(out, lambda step: [(kind, "", "input.0", np.array([sizes[step]]))])
    assert (left["kind"], left["measure"]) == (kind, f"{measure}_spread")
    assert abs(left["step"] - BEGIN) <= 3
    assert f"its {measure} swings more from here on" in command("diagnose", out).stdout


class Masked(torch.nn.Module):
    """A dropout whose mask may be drawn once, as in a graph that was captured without its generator."""

    def __init__(self):
        super().__init__()
        self.is_frozen = False
        self.mask = None

    def forward(self, given):
        if self.mask is None or not self.is_frozen:
            self.mask = (torch.rand_like(given) > 0.3).float()
        return given * self.mask / 0.7


@pytest.mark.parametrize("is_faulty", [False, True])
def test_a_mask_that_is_not_drawn_any_more_is_told_by_its_zeros(tmp_path, is_faulty):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 64), torch.nn.Tanh(), Masked(), torch.nn.Linear(64, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with trainmon.watch(
        model, optimizer, kinds="activations", checks=True, every=1, out=str(tmp_path / "run")
    ) as monitor:
        for step in range(STEPS):
            model[2].is_frozen = is_faulty and step >= BEGIN
            x = torch.randn(32, 8)
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())
    left = trainmon.diagnose(tmp_path / "run")["left_history"]
    if not is_faulty:
        assert left is None, left
        return
    # The last mask that was drawn is the one that stays.
    assert (left["step"], left["kind"], left["name"]) == (BEGIN - 1, "actv", "2"), left
    assert left["measure"] == "zeros_spread"
    text = command("diagnose", tmp_path / "run").stdout
    assert "its share of zeros is the same in each row from here on" in text


def test_zeros_that_settle_slowly_are_nothing(tmp_path):
    """One batch that is learned by heart: its units change ever less."""
    random = np.random.default_rng(5)
    share, shares = 500, []
    for step in range(STEPS):
        share += int(random.integers(-9, 10)) if random.random() < 0.975**step else 0
        shares.append(share)
    left = diagnosed(
        tmp_path / "run",
        lambda step: [("actv", "relu", "output", np.r_[np.zeros(shares[step]), np.ones(2000)])],
    )
    assert left is None


def test_rows_behind_a_pause_are_no_neighbours_of_those_before(tmp_path):
    """Gradients that fall slowly are much smaller behind it."""
    random = np.random.default_rng(6)
    rank = WrittenRank(tmp_path / "run")
    for step in range(400):
        if not 100 <= step < 340:
            size = np.exp(-step / 100 + 0.02 * random.standard_normal())
            rank.observe(np.array([size]), "grad_reduced", "w", step)
            rank.observe(np.array([size]), "input", "", step, element="input.0")
            rank.monitor.add_scalar("loss", float(size))
        rank.end_step()
    rank.stop()
    assert trainmon.diagnose(tmp_path / "run")["left_history"] is None
