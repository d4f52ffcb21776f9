"""A step check that fails alerts while the training goes on; what is announced does not."""

from __future__ import annotations

import copy
import functools
import json
import signal
import subprocess
import threading
import time

import pytest
import torch

import launch
import trainmon


def train(
    path,
    between=lambda step, model, optimizer, mon: None,
    optimizer=torch.optim.AdamW,
    dtype=torch.float32,
    **more,
):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = optimizer(model.to(dtype).parameters(), lr=1e-2)
    with trainmon.watch(model, optimizer, out=str(path), checks=True, **more) as mon:
        for step in range(10):
            between(step, model, optimizer, mon)
            optimizer.zero_grad()
            model(torch.randn(16, 6).to(dtype)).pow(2).mean().backward()
            optimizer.step()
    return mon


def change_a_weight(step, model, optimizer, mon):
    if step == 6:
        model[2].weight.data[0, 3] += 1e-6


def lose_a_moment(step, model, optimizer, mon):
    if step == 6:
        optimizer.state[model[0].weight]["exp_avg"].mul_(0.5)


@pytest.mark.parametrize(
    "fault, check, name",
    [(change_a_weight, "gap", "2.weight"), (lose_a_moment, "exp_avg", "0.weight")],
)
def test_a_failed_check_is_an_alert_of_its_step(fault, check, name, tmp_path, capfd):
    alerts = []
    mon = train(tmp_path / "run", fault, on_alert=alerts.append)
    assert [(one["rule"], one["step"]) for one in alerts] == [(check, 6)]
    assert mon.summary()["failed_checks"] == 1.0
    said = capfd.readouterr().err
    (line,) = [line for line in said.splitlines() if f"rank 0: {check}: {name}: " in line]
    assert line.endswith("step 6")
    (stop,) = [line for line in said.splitlines() if "rows written" in line]
    assert f"check {check} failed at step 6; next: trainmon diagnose " in stop
    answer = trainmon.query(
        str(tmp_path / "run"),
        "SELECT rule, step, kind, name FROM alerts",
    )
    kind = "param_origin" if check == "gap" else check
    assert answer.rows == [(check, 6, kind, name)]
    assert trainmon.diagnose(str(tmp_path / "run"))["verdict"]["step"] == 6


def test_an_optimizer_whose_own_steps_are_not_read_is_known_by_its_class(tmp_path):
    """As of tensors on a device: `update` has no rows of them."""
    alerts = []
    adam = functools.partial(torch.optim.Adam, eps=1e-3)
    train(tmp_path, lose_a_moment, adam, torch.float16, on_alert=alerts.append)
    assert "update" not in trainmon.diagnose(str(tmp_path))["checked"]
    assert [(one["rule"], one["step"]) for one in alerts] == [("exp_avg", 6)]


def ask(*words):
    return subprocess.run([launch.command_line(), *words], capture_output=True, text=True)


def test_first_bad_and_tail_name_the_failed_check(tmp_path):
    run = str(tmp_path / "run")

    def two_faults(step, model, optimizer, mon):
        change_a_weight(step, model, optimizer, mon)
        if step == 8:
            model[0].weight.data[0, 0] = float("nan")

    train(run, change_a_weight)
    told = f"but the check gap failed at step 6 on rank 0; trainmon diagnose {run} says more\n"
    found = ask("first-bad", run)
    assert (found.returncode, found.stdout.splitlines(True)[1]) == (0, told)
    (line,) = [one for one in ask("tail", run).stdout.splitlines() if "(check gap)" in one]
    assert line.split()[0] == "6"
    steps = [json.loads(one) for one in ask("tail", run, "--json").stdout.splitlines()]
    assert {one["step"]: one["rules"] for one in steps if one["alerts"]} == {6: {"gap": 1}}

    both = str(tmp_path / "both")
    train(both, two_faults)
    found = ask("first-bad", both)
    assert found.returncode == 1 and "first bad: step 8" in found.stdout
    assert "  check     gap failed at step 6 on rank 0; trainmon diagnose" in found.stdout

    train(str(tmp_path / "sound"))
    assert "check" not in ask("first-bad", str(tmp_path / "sound")).stdout


def test_tail_that_follows_says_what_a_step_failed_after_it_was_told(tmp_path):
    run = str(tmp_path / "run")
    lines = []
    threads = []

    def slowly(step, model, optimizer, mon):
        change_a_weight(step, model, optimizer, mon)
        if step == 1:
            words = [launch.command_line(), "tail", "-f", "--json", "--interval", "0.02", run]
            follower = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            threads.append(
                (follower, threading.Thread(target=lines.extend, args=[follower.stdout]))
            )
            threads[0][1].start()
        if step > 2:  # each step comes to the follower by itself, as in a real training
            end = time.monotonic() + 30
            while not any(f'"step":{step - 2},' in one for one in lines):
                assert time.monotonic() < end, lines
                time.sleep(0.02)

    train(run, slowly, flush_seconds=0.05)
    ((follower, thread),) = threads
    end = time.monotonic() + 30
    while not any('"gap"' in one for one in lines):
        assert time.monotonic() < end, lines
        time.sleep(0.02)
    follower.send_signal(signal.SIGINT)
    thread.join(30)
    assert follower.wait(30) == 0
    told = [json.loads(one) for one in lines]
    alone = [(one["rank"], one["step"], one["rule"]) for one in told if "rule" in one]
    within = [(one["rank"], one["step"], rule) for one in told for rule in one.get("rules", {})]
    assert alone + within == [(0, 6, "gap")]


def announced(step, model, optimizer, mon):
    if step == 4:
        with mon.edits("pruning"):
            model[2].weight.data[0, 3] = 0.0
    if step == 7:
        model.load_state_dict(copy.deepcopy(model.state_dict()))
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
@pytest.mark.parametrize("between", [lambda *_: None, announced])
def test_what_is_sound_or_announced_is_no_alert(optimizer, between, tmp_path, capfd):
    alerts = []
    train(tmp_path / "run", between, optimizer, on_alert=alerts.append)
    assert alerts == []
    (end,) = [line for line in capfd.readouterr().err.splitlines() if "dropped; " in line]
    assert end.endswith(f" 0 dropped; no alert; next: trainmon diagnose {tmp_path}/run")


class Averaged(torch.optim.SGD):
    """Evaluates an average of what it trains, as schedule-free optimizers do."""

    @torch.no_grad()
    def swap(self, to):
        for group in self.param_groups:
            for p in group["params"]:
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                p.lerp_(average, to)

    def train(self):
        self.swap(-1.0)  # the inverse but for rounding

    def eval(self):
        self.swap(0.5)


class Holder:
    """No Optimizer itself."""

    def __init__(self, parameters, lr):
        self.base = Averaged(parameters, lr=lr)
        self.param_groups = self.base.param_groups
        self.zero_grad, self.step = self.base.zero_grad, self.base.step

    def train(self):
        self.base.swap(-1.0)

    def eval(self):
        self.base.swap(0.5)


def evaluate(step, model, optimizer, mon):
    if step in (3, 6):
        assert "Switch" not in repr(vars(copy.deepcopy(optimizer)))
        optimizer.eval()
        optimizer.train()


@pytest.mark.parametrize("optimizer", [Averaged, Holder])
def test_optimizers_that_evaluate_other_weights_announce_it(optimizer, tmp_path):
    alerts, watched = [], []

    def between(step, model, optimizer, mon):
        watched[:] = [optimizer]
        evaluate(step, model, optimizer, mon)

    train(tmp_path / "run", between, optimizer, on_alert=alerts.append)
    assert alerts == []
    answer = trainmon.diagnose(tmp_path / "run")
    assert answer["findings"] == []
    (why,) = [one["why"] for one in answer["not_checked"] if one["check"].startswith("gap, ")]
    assert "after step 2 (rank 0), 5 (rank 0)" in why
    assert not {"train", "eval"} & vars(watched[0]).keys()  # as it was found


def test_a_fault_beside_an_announced_evaluation_is_found(tmp_path):
    alerts = []

    def between(*given):
        evaluate(*given)
        change_a_weight(given[0] - 2, *given[1:])

    train(tmp_path / "run", between, Averaged, on_alert=alerts.append)
    assert [(one["rule"], one["step"]) for one in alerts] == [("gap", 8)]


def test_steps_that_are_not_recorded_are_no_alert(tmp_path):
    alerts = []
    train(tmp_path / "run", change_a_weight, every=3, on_alert=alerts.append)
    assert alerts == []
