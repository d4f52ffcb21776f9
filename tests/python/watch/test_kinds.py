"""Kinds beside gradients, weights, moments and activations: contributions of micro-steps, directions,
histograms of Adam's steps, stacks. Each against plain torch."""

import numpy as np
import pytest
import torch
from torch import nn

import trainmon


class Trained:
    """A small model, trained with and without a watch, with what the watch should have seen."""

    def __init__(self, out=None, steps=4, micro=3, optimizer=torch.optim.Adam, lr=0.05, **keys):
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
        self.optimizer = optimizer(self.model.parameters(), lr=lr)
        self.own, self.states, self.gradients = [], [], []
        names = dict(self.model.named_parameters())
        watch = trainmon.watch(self.model, self.optimizer, out=out, **keys) if out else None
        numbers = torch.Generator().manual_seed(8)
        for _ in range(steps):
            own = []
            for _ in range(micro):
                before = {n: _copy(p.grad) for n, p in names.items()}
                self.model(torch.randn(6, 5, generator=numbers)).square().mean().backward()
                own.append({n: p.grad - before[n] for n, p in names.items()})
            self.own.append(own)
            self.gradients.append({n: p.grad.clone() for n, p in names.items()})
            state = self.optimizer.state
            self.states.append({n: {k: torch.clone(v) for k, v in state[p].items()}
                                if p in state else {} for n, p in names.items()})  # fmt: skip
            self.optimizer.step()
            self.optimizer.zero_grad()
        if watch is not None:
            health = watch.stop()
            assert health["parts_off"] == {} and health["errors"] == 0
        self.table = trainmon.read_table(out) if out else None

    def rows(self, kind):
        table = self.table
        return [
            (str(table["name"][i]), int(table["step"][i]), int(table["accum"][i]), i)
            for i in range(table.num_rows)
            if table["kind"][i] == kind
        ]


def _copy(gradient):
    return torch.zeros(()) if gradient is None else gradient.clone()


def test_contributions_of_each_backward(tmp_path):
    run = Trained(tmp_path, kinds=["grad_micro", "grad_unreduced"])
    rows = run.rows("grad_micro")
    assert len(rows) == 4 * 3 * 4
    for name, step, accum, i in rows:
        own = run.own[step][accum][name].double()
        # The difference of two sums of float32 numbers, which the row itself is not.
        assert run.table["norm"][i] == pytest.approx(own.norm().item(), rel=1e-4)
        assert run.table["mean"][i] == pytest.approx(own.mean().item(), rel=1e-3, abs=1e-7)
    accumulated = {
        (n, s): run.table["norm"][i] for n, s, a, i in run.rows("grad_unreduced") if a == 2
    }
    for (name, step), norm in accumulated.items():
        assert norm == pytest.approx(run.gradients[step][name].double().norm().item(), rel=1e-12)


def test_hooks_of_contributions_leave_no_trace(tmp_path):
    run = Trained(tmp_path, kinds=["grad_micro"])
    assert all(p._backward_hooks is None for p in run.model.parameters())
    bare = Trained()
    for one, two in zip(bare.model.parameters(), run.model.parameters()):
        assert torch.equal(one, two)


@pytest.mark.parametrize("backend", ["auto", "ops"])
def test_direction_is_the_share_of_equal_signs(tmp_path, backend):
    run = Trained(tmp_path, kinds=["mg_direction"], backend=backend)
    rows = run.rows("mg_direction")
    assert {step for _, step, _, _ in rows} == {1, 2, 3}  # no momentum before the first step
    for name, step, _, i in rows:
        gradient, momentum = run.gradients[step][name], run.states[step][name]["exp_avg"]
        signs = torch.sign(gradient.double()) * torch.sign(momentum.double())
        expected = (signs.sum() / signs.numel() + 1) / 2
        assert run.table["mean"][i] == pytest.approx(expected.item(), rel=1e-6)


def test_direction_of_sgd_with_momentum(tmp_path):
    class Momentum(torch.optim.SGD):
        def __init__(self, parameters, lr):
            super().__init__(parameters, lr=lr, momentum=0.9)

    run = Trained(tmp_path, kinds=["mg_direction"], optimizer=Momentum)
    assert len(run.rows("mg_direction")) == 4 * 3


@pytest.mark.parametrize("moment", ["after_step", "before_step"])
def test_histograms_of_adams_steps(tmp_path, moment):
    run = Trained(tmp_path, kinds=["update_ratio"], moments_at=moment)
    found = run.table.payloads
    assert {p["kind"] for p in found} == {"update_ratio"}
    first = 0 if moment == "after_step" else 1
    steps = sorted({p["step"] for p in found})
    assert steps == list(range(first, 4))
    for payload in found:
        at = payload["step"] + (1 if moment == "after_step" else 0)
        if at >= len(run.states):
            continue
        state = run.states[at][payload["name"]]
        m, v = (state[k].double() for k in ("exp_avg", "exp_avg_sq"))
        m, v = m / (1 - 0.9 ** state["step"].item()), v / (1 - 0.999 ** state["step"].item())
        values = m / (v.sqrt() + (1e-8 if payload["element"] == "update" else 0.0))
        counts, edges = np.histogram(values.numpy(), bins=30, range=(-1, 1))
        histogram = payload["value"]
        assert np.allclose(histogram.edges, edges, atol=1e-15)
        outside = int(((values < -1) | (values > 1)).sum())
        assert histogram.below + histogram.above == outside
        # A value on an edge may round to either side of it.
        assert np.abs(histogram.counts - counts).sum() <= 2
        assert histogram.counts.sum() == counts.sum()


def test_stacks_of_the_first_step_only(tmp_path):
    run = Trained(tmp_path, kinds=["stack"], micro=1)
    texts = {p["name"]: p["value"] for p in run.table.payloads}
    assert sorted(texts) == ["", "0", "1", "2"]
    assert len(run.table.payloads) == 4 and {p["step"] for p in run.table.payloads} == {0}
    for text in texts.values():
        assert f"File {__file__}, line" in text and ".square().mean().backward()" in text
    assert "in forward" in texts["0"]  # called by the Sequential


def test_all_kinds_need_no_further_choice(tmp_path, capfd):
    run = Trained(tmp_path, kinds="all")
    found = set(run.table.distinct("kind")) | {p["kind"] for p in run.table.payloads}
    assert found == {
        "grad_micro", "grad_reduced", "param_origin", "param_updated", "exp_avg", "exp_avg_sq",
        "actv", "actv_grad", "mg_direction", "update_ratio", "stack", "stable_rank",
        "spectral_norm",
    }  # fmt: skip
    bare = Trained()
    for one, two in zip(bare.model.parameters(), run.model.parameters()):
        assert torch.equal(one, two)
    every = trainmon.read_table(tmp_path, kinds="all")
    assert every.num_rows == run.table.num_rows


@pytest.mark.parametrize("moment", ["after_step", "before_step"])
def test_moments_at(tmp_path, moment):
    run = Trained(tmp_path, kinds=["exp_avg"], moments_at=moment)
    steps = {step for _, step, _, _ in run.rows("exp_avg")}
    assert steps == ({0, 1, 2, 3} if moment == "after_step" else {1, 2, 3})
    for name, step, _, i in run.rows("exp_avg"):
        at = step + (1 if moment == "after_step" else 0)
        if at < len(run.states):
            expected = run.states[at][name]["exp_avg"].double().norm().item()
            assert run.table["norm"][i] == pytest.approx(expected, rel=1e-12)


def test_alerts_of_rules_are_in_the_table(tmp_path):
    run = Trained(tmp_path, kinds=["grad_reduced"], alert_limit=1e-9, alert_stats=["max"])
    assert {a["rule"] for a in run.table.alerts} == {"limit"}
    alert = run.table.alerts[0]
    i = next(
        i for n, s, _, i in run.rows("grad_reduced") if (n, s) == (alert["name"], alert["step"])
    )
    assert alert["value"] == run.table["max"][i]
