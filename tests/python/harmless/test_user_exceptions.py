# What a signal handler of the user's raises (a limit of time) comes out of training, wherever in our hooks it struck.
import os
import signal
import sys

import pytest
import torch

import models
import trainmon
from long_form import campaign, how_often

KINDS = [
    "grads", "grad_unreduced", "weights", "moments", "activations", "update_ratio", "grad_micro",
    "attn_entropy", "stable_rank", "stack", "mg_direction",
]  # fmt: skip
OURS = os.path.dirname(trainmon.__file__) + os.sep


class Limit(RuntimeError):
    pass


def raising(number, frame):
    raise Limit(number)


class Callable:
    def __call__(self, *given):
        raise Limit(given[0])


@pytest.fixture
def on_alarm():
    before = signal.getsignal(signal.SIGALRM)
    yield lambda handler: signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


class Training:
    def __init__(self, out, kinds=KINDS, **keys):
        models.seed(3)
        self.model = models.build("gpt")
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.monitor = trainmon.watch(
            self.model, self.optimizer, kinds=kinds, out=str(out), sinks=[], **keys
        )
        self.step()

    def step(self):
        data, target = models.draw("gpt")
        models.loss_of(self.model(data), target).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def end(self):
        self.step()
        before = self.monitor.health()["rows_produced"]
        for _ in range(1000):  # a budget leaves steps out
            self.step()
            if self.monitor.health()["rows_produced"] > before:
                break
        health = self.monitor.stop()
        assert health["parts_off"] == {}
        assert health["rows_produced"] > before


def strike(number, act):
    """Runs act() and sends SIGALRM as our code comes to its line of that number. Returns how many
    lines of ours there were, and where it struck; None: nowhere, or what it raised came out."""
    seen, place = 0, None

    def trace(frame, event, _):
        nonlocal seen, place
        if not frame.f_code.co_filename.startswith(OURS):
            return trace if event == "call" else None
        if event == "line":
            seen += 1
            if seen == number:
                place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                signal.raise_signal(signal.SIGALRM)
        return trace

    sys.settrace(trace)
    try:
        act()
    except Limit:
        place = None
    finally:
        sys.settrace(None)
    return seen, place


@pytest.mark.parametrize("handler", [raising, Callable(), lambda *_: raising(*_)])
def test_a_limit_of_time_strikes_at_any_line_of_ours(tmp_path, on_alarm, handler):
    training = Training(tmp_path)
    lines, _ = strike(-1, training.step)
    assert lines > 1000
    on_alarm(handler)
    for number in range(1, lines, max(1, lines // how_often(short=150, long=lines))):
        _, swallowed = strike(number, training.step)
        assert swallowed is None
    on_alarm(signal.SIG_IGN)
    training.end()


def test_a_limit_of_time_strikes_at_any_time(tmp_path, on_alarm):
    training = Training(tmp_path, budget=0.5)
    struck = 0

    def count(number, frame):
        nonlocal struck
        struck += 1
        raise Limit(number)

    on_alarm(count)
    times = how_often(short=59, long=2000)
    what = "signals whose handler raises, at any time of a watched step"
    with campaign("signals", what, "signals") as done:
        for number in range(1, times + 1):
            try:
                with pytest.raises(Limit):
                    signal.setitimer(signal.ITIMER_REAL, number * 0.018 / times)
                    for _ in range(1000):
                        before = struck
                        training.step()
                        assert struck == before, "it was swallowed"
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)  # before pytest tells of another error
                # no_grad() ends in Python, in torch's step() as in ours: what strikes there leaves it on.
                torch.set_grad_enabled(True)
            done.done += 1
    training.end()


def test_the_same_of_log_and_stop(tmp_path, on_alarm):
    training = Training(tmp_path)

    def log():
        training.monitor.log(loss=1.0)

    lines, _ = strike(-1, log)
    on_alarm(raising)
    for number in range(1, lines + 1):
        assert strike(number, log)[1] is None
    assert strike(30, training.monitor.stop)[1] is None
    on_alarm(signal.SIG_IGN)
    health = training.monitor.stop()
    assert health["rows_pending"] == 0 and health["rows_produced"] > 0
    assert not training.optimizer._optimizer_step_pre_hooks


def test_what_was_being_handled_before_is_not_raised_again(tmp_path, on_alarm, monkeypatch):
    """An error of ours in the step that a user takes in his `except` is still ours."""
    training = Training(tmp_path, kinds=["grads"])
    on_alarm(raising)

    def broken(*_):
        raise ValueError("ours")

    try:
        signal.raise_signal(signal.SIGALRM)
    except Limit:
        sweeps = training.monitor._adapter.steps[0].sweeps
        monkeypatch.setattr(type(sweeps), "check", broken)
        training.step()
    assert "ours" in str(training.monitor.stop()["parts_off"])
