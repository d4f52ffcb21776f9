"""Alerts reach a callable or a command of the user's, on a thread of their own, and only there."""

import json
import sys
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn

import trainmon
from written_run import WrittenRank


def train(out, steps=8, spike=None, **keys):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    numbers = torch.Generator().manual_seed(1)
    with trainmon.watch(model, optimizer, kinds=["grad_reduced"], out=out, **keys) as watch:
        for step in range(steps):
            loss = model(torch.randn(4, 6, generator=numbers)).square().mean()
            loss.backward()
            if spike is not None and step >= spike[0]:
                model[0].weight.grad.mul_(spike[1])
            optimizer.step()
            optimizer.zero_grad()
    return model, watch


def test_a_callable_gets_what_was_found_and_where(tmp_path):
    seen, threads = [], set()

    def on_alert(alert):
        seen.append(alert)
        threads.add(threading.current_thread())

    train(
        tmp_path, 8, (6, 1e6), on_alert=on_alert,
        alert_deviation=50.0, alert_warmup=3, alert_stats=["norm"],
    )  # fmt: skip
    first = seen[0]
    assert first["rule"] == "deviation" and first["stat"] == "norm"
    assert (first["kind"], first["name"], first["step"]) == ("grad_reduced", "0.weight", 6)
    assert first["value"] > 50 * first["expected"] > 0
    assert threads and threading.main_thread() not in threads


def test_a_nan_is_an_alert_without_any_rule(tmp_path):
    seen = []
    train(tmp_path, 4, (2, float("nan")), on_alert=seen.append)
    where = {(a["rule"], a["name"]) for a in seen}
    assert ("non_finite", "0.weight") in where
    assert min(a["step"] for a in seen) == 2


def test_a_command_gets_json(tmp_path):
    found = tmp_path / "found.jsonl"
    code = f"import sys; open({str(found)!r}, 'a').write(sys.stdin.read() + '\\n')"
    train(
        tmp_path / "run", 3, (1, 1e9), on_alert=[sys.executable, "-c", code],
        alert_limit=1e3, alert_stats=["max"],
    )  # fmt: skip
    alerts = [json.loads(line) for line in found.read_text().splitlines()]
    assert alerts[0]["rule"] == "limit" and alerts[0]["name"] == "0.weight"
    assert alerts[0]["value"] > 1e3


def test_a_command_does_not_hold_the_standard_output(tmp_path, capfd):
    """Whoever reads that, as in `python train.py | tee log`, waits until everybody has closed it."""
    train(tmp_path, 2, (0, 1e9), on_alert=["echo", "said"], alert_limit=1.0)
    out, err = capfd.readouterr()
    assert "said" in err and "said" not in out


@pytest.mark.parametrize("how", ["raises", "sleeps"])
def test_training_does_not_notice(tmp_path, how, caplog):
    def on_alert(alert):
        if how == "raises":
            raise RuntimeError("no such channel")
        time.sleep(30)

    bare, _ = train(tmp_path / "bare", 5, (1, float("inf")))
    begin = time.monotonic()
    watched, watch = train(tmp_path / "run", 5, (1, float("inf")), on_alert=on_alert)
    assert time.monotonic() - begin < 20
    for one, two in zip(bare.parameters(), watched.parameters()):
        assert torch.equal(one, two) or torch.equal(one.isnan(), two.isnan())
    assert watch.health()["alerts"] > 0
    if how == "raises":
        assert "no such channel" in caplog.text


def test_repeats_while_one_is_told_are_one_with_their_count(tmp_path):
    go_on, seen = threading.Event(), []

    def on_alert(alert):
        seen.append(alert)
        go_on.wait(10)

    def release():
        time.sleep(1.5)
        go_on.set()

    threading.Thread(target=release).start()
    train(
        tmp_path, 40, (1, 1e9), on_alert=on_alert,
        alert_limit=1e3, alert_stats=["max"], flush_seconds=0.01,
    )  # fmt: skip
    assert sum(a["count"] > 1 for a in seen) >= 1
    # The first NaN has activations recorded, too, which make alerts of their own.
    assert sum(a["kind"] == "grad_reduced" for a in seen) < 40


@pytest.mark.parametrize("wrong", ["mail", [], [1], 3, {"a": 1}])
def test_what_cannot_be_called_is_refused_at_the_start(tmp_path, wrong):
    with pytest.raises(TypeError, match="on_alert must be a callable or a command"):
        train(tmp_path, 1, on_alert=wrong)


def test_a_mean_near_zero_sets_off_no_deviation(tmp_path):
    """By default the norm is looked at: a mean near zero jumps by itself."""
    rank = WrittenRank(tmp_path / "run", alert_deviation=0.5, alert_warmup=2)
    for window in range(12):
        jump = 1e-6 * (-3.0) ** (window % 4)
        rank.observe(np.array([1.0 + jump, -1.0]), "grad_reduced", "w", window)
        rank.end_step()
    rank.observe(np.array([4.0, -4.0]), "grad_reduced", "w", 12)
    rank.end_step()
    rank.stop()
    alerts = trainmon.read_table(tmp_path / "run").alerts
    assert [(alert["stat"], alert["step"]) for alert in alerts] == [("norm", 12)]
