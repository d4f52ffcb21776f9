"""`trainmon push`: which steps and which series of a run a tracker is given. tests/bridges has the
trackers themselves."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import threading

import numpy as np
import pytest

from launch import command_line as program
from trainmon import _core
from trainmon.bridges import push as pushing
from trainmon.bridges.mlflow import key_of
from trainmon.bridges.push import Push, redacted
from trainmon.bridges.steps import Series, Target
from written_run import WrittenRank

OF_HEALTH = {
    "trainmon/queue_bytes", "trainmon/queue_bytes_peak", "trainmon/queue_seconds", "trainmon/log_bytes", "trainmon/dropped_queue_full",
    "trainmon/dropped_max_series", "trainmon/dropped_other", "trainmon/scalars_dropped",
}  # fmt: skip
OF_NOW = OF_HEALTH | {
    "trainmon/lag_seconds", "trainmon/series_left_out", "trainmon/damaged_places",
}  # fmt: skip
NAMES = tuple(f"layers.{layer}.{part}" for layer in (1, 2) for part in ("weight", "bias"))


class Pushed:
    """What PushedSteps gives, as {(start, step): {path: value}}; each step once."""

    def __init__(self, run, series=100, ranks=(), newest_only=False, state=None):
        folder = None if state is None else os.fsencode(state)
        self.steps = _core.PushedSteps(os.fsencode(run), series, list(ranks), newest_only, folder)
        self.order, self.values, self.times = [], {}, {}

    def look(self, most=1000):
        found = self.steps.look(most)
        self.series = [Series(*one) for one in self.steps.series_from(0)]
        for start, restart, step, seconds, values in found:
            assert (start, step) not in self.values
            self.order.append((restart, step))
            self.times[start, step] = seconds
            self.values[start, step] = {self.series[n].path: value for n, value in values}
            assert len(self.values[start, step]) == len(values)
        return len(found)

    def all(self):
        while self.look():
            pass
        return self

    def of(self, path):
        return {step: v[path] for (_, step), v in self.values.items() if path in v}


def take_step(rank, step, rng, names=NAMES, kinds=("grad_reduced", "param_updated"), bad=()):
    arrays = {}
    for kind in kinds:
        for name in names:
            array = rng.normal(size=20).astype(np.float32)
            if name in bad:
                array[3] = np.nan
            rank.observe(array, kind, name, step)
            arrays[kind, name] = array
    rank.monitor.add_scalar("loss", 1.0 / (step + 1))
    rank.end_step()
    return arrays


def norm(*arrays):
    return np.linalg.norm(np.concatenate(arrays).astype(np.float64))


def write(out, steps=10, seed=1, first=0, **options):
    rng = np.random.default_rng(seed)
    rank = WrittenRank(out)
    seen = [take_step(rank, step, rng, **options) for step in range(steps)]
    return rank, seen


def test_each_step_once_with_the_values_that_numpy_gives(tmp_path):
    rank, seen = write(tmp_path / "run")
    rank.stop()
    pushed = Pushed(tmp_path / "run").all()
    assert pushed.order == [(0, step) for step in range(10)] and pushed.steps.is_over
    assert pushed.of("loss") == {step: 1.0 / (step + 1) for step in range(10)}
    for kind in ("grad_reduced", "param_updated"):
        expected = {
            s: pytest.approx(norm(*(a[kind, n] for n in NAMES))) for s, a in enumerate(seen)
        }
        assert pushed.of(f"trainmon/norm/{kind}") == expected
        for layer in ("layers.1", "layers.2"):
            of_layer = [name for name in NAMES if name.startswith(layer)]
            assert pushed.of(f"trainmon/layer_norm/{kind}/{layer}") == {
                s: pytest.approx(norm(*(a[kind, n] for n in of_layer))) for s, a in enumerate(seen)
            }
    # A tensor that was the worst of a step has a curve from there on.
    worst = [max(NAMES, key=lambda name: norm(a["grad_reduced", name])) for a in seen]
    for name in set(worst):
        of_tensor = pushed.of(f"trainmon/tensor_norm/grad_reduced/{name}")
        assert of_tensor == {
            s: pytest.approx(norm(a["grad_reduced", name]))
            for s, a in enumerate(seen)
            if s >= worst.index(name)
        }
    assert pushed.of("trainmon/non_finite") == dict.fromkeys(range(10), 0)
    assert pushed.of("trainmon/last_step") == {step: step for step in range(10)}
    assert pushed.of("trainmon/lag_seconds").keys() == {9} and pushed.steps.left_out == {}
    times = list(pushed.times.values())
    assert all(b - a > 0.0009 for a, b in zip(times, times[1:]))


def test_what_the_monitors_say_of_themselves(tmp_path):
    """At the newest step alone, as health.json and the file system have it."""
    ranks = [
        WrittenRank(tmp_path / "run", rank, 2, max_series=2, max_scalars=1) for rank in range(2)
    ]
    for rank in ranks:
        for step in range(3):
            take_step(rank, step, np.random.default_rng(step), names=["a", "b", "c"])
            rank.monitor.add_scalar(f"other{step}", 1.0)
        rank.stop()
    pushed = Pushed(tmp_path / "run").all()
    health = [json.loads((rank.directory / "health.json").read_text()) for rank in ranks]
    beyond = [one["sinks"][0]["rows_dropped"]["max_series"] for one in health]
    assert min(beyond) > 0
    logs = [file.stat().st_size for rank in ranks for file in rank.directory.glob("*.tmlog")]
    expected = {
        "queue_bytes": 0,
        "queue_bytes_peak": max(one["queue_bytes_peak"] for one in health),
        "queue_seconds": 0,
        "log_bytes": sum(logs),
        "dropped_queue_full": 0,
        "dropped_max_series": sum(beyond),
        "dropped_other": 0,
        "scalars_dropped": 6,
    }
    for name, value in expected.items():
        assert pushed.of(f"trainmon/{name}") == {2: value}, name


def test_the_budget_and_what_is_left_out(tmp_path):
    names = [f"model.layers.{layer}.{part}" for layer in range(30) for part in "abc"]
    rank, _ = write(tmp_path / "run", names=names)
    rank.monitor.add_scalar("late", 5.0)
    take_step(rank, 10, np.random.default_rng(3), names=names)
    rank.stop()
    for budget in (40, 70, 100):
        pushed = Pushed(tmp_path / "run", budget).all()
        families = [one.family for one in pushed.series]
        assert len(families) <= budget and len(set(pushed.series)) == len(pushed.series)
        layers = [one.name for one in pushed.series if one.family == "layer_norm"]
        assert len(layers) == budget * 3 // 10
        assert families.count("tensor_norm") <= budget // 10
        assert pushed.of("late") == {10: 5.0}, "room is kept back"
        left = pushed.steps.left_out
        assert left["layer_norm"] == 60 - len(layers)
        assert pushed.of("trainmon/series_left_out") == {10: sum(left.values())}
        if budget == 40:  # gradients first, and evenly
            numbers = [int(name.rsplit(".", 1)[1]) for name in layers]
            assert [one.kind for one in pushed.series if one.family == "layer_norm"] == [
                "grad_reduced"
            ] * 12
            assert numbers == [i * 30 // 12 for i in range(12)]


def test_more_logged_values_than_the_budget(tmp_path):
    rank = WrittenRank(tmp_path / "run")
    for _ in range(3):
        for number in range(200):
            rank.monitor.add_scalar(f"value{number}", float(number))
        rank.end_step()
    rank.stop()
    pushed = Pushed(tmp_path / "run", 50).all()
    assert len(pushed.series) == 50 and pushed.steps.left_out == {"logged": 200 - (50 - 17)}


@pytest.mark.parametrize("seed", range(5))
def test_a_push_goes_on_where_one_was_killed(tmp_path, seed):
    rank, _ = write(tmp_path / "run", steps=60, seed=seed)
    rank.stop()
    whole = Pushed(tmp_path / "run").all()
    random_ = random.Random(seed)
    had, sent = {}, []
    for _ in range(200):
        pushed = Pushed(tmp_path / "run", state=tmp_path / "state")
        was_killed = False
        for _ in range(random_.randrange(4)):
            count = pushed.look(random_.randrange(1, 10))
            for place, values in pushed.values.items():
                values = {path: v for path, v in values.items() if path not in OF_NOW}
                assert had.setdefault(place, values) == values, "the same, should it come again"
            if count and random_.random() < 0.5:
                was_killed = True  # before the position was written
                break
            pushed.steps.done("")
            sent += list(pushed.values)[len(pushed.values) - count :]
        done = pushed.steps.is_over and not was_killed
        del pushed
        if done:
            break
    assert done and sent == list(whole.values), "each step once, in order"
    assert had.keys() == whole.values.keys()
    for place, values in whole.values.items():
        assert had[place].items() >= {(path, v) for path, v in values.items() if path not in OF_NOW}
    assert Pushed(tmp_path / "run", state=tmp_path / "state").look() == 0


def test_chosen_series_and_verdict_are_kept(tmp_path):
    rank, _ = write(tmp_path / "run", steps=5)
    pushed = Pushed(tmp_path / "run", 30, state=tmp_path / "state")
    assert pushed.look() > 0
    pushed.steps.done("it is wrong")
    before = pushed.series
    del pushed
    rng = np.random.default_rng(4)
    for step in range(5, 9):
        take_step(rank, step, rng, names=[f"other.{i}.w" for i in range(20)])
    rank.stop()
    pushed = Pushed(tmp_path / "run", 30, state=tmp_path / "state").all()
    assert pushed.series[: len(before)] == before and pushed.steps.verdict == "it is wrong"
    assert [step for _, step in pushed.order][-1] == 8


def test_restarts_come_one_after_the_other_under_names_of_their_own(tmp_path):
    rank, _ = write(tmp_path / "run", steps=8)
    rank.stop()
    rng = np.random.default_rng(2)
    again = WrittenRank(tmp_path / "run")
    assert again.directory != rank.directory
    again.monitor.set_start_step(0, 5)
    for window in range(4):
        take_step(again, window, rng)
    pushed = Pushed(tmp_path / "run", state=tmp_path / "state").all()
    assert not pushed.steps.is_over
    again.stop()
    pushed.all()
    assert pushed.order == [(0, s) for s in range(8)] + [(1, s) for s in range(5, 9)]
    assert len({start for start, _ in pushed.values}) == 2 and pushed.steps.is_over
    pushed.steps.done("")
    third = WrittenRank(tmp_path / "run")  # which the same object finds
    take_step(third, 0, rng)
    third.stop()
    assert pushed.all().order[-1] == (2, 0)


def test_a_step_comes_when_all_ranks_have_ended_it(tmp_path):
    rng = np.random.default_rng(5)
    ranks = [WrittenRank(tmp_path / "run", number, 2) for number in range(2)]
    seen = {}
    for step in range(6):
        seen[0, step] = take_step(ranks[0], step, rng)
        if step < 3:
            bad = [NAMES[1]] if step == 2 else []
            seen[1, step] = take_step(ranks[1], step, rng, bad=bad)
    for rank in ranks:
        assert rank.monitor.settle(10.0)
    pushed = Pushed(tmp_path / "run").all()
    given = [step for _, step in pushed.order]
    assert given == list(range(len(given))) and 1 <= len(given) <= 3
    for step in range(3, 6):
        seen[1, step] = take_step(ranks[1], step, rng)
    for rank in ranks:
        rank.stop()
    pushed.all()
    assert [step for _, step in pushed.order] == list(range(6)) and pushed.steps.late == 0
    for number in range(2):
        assert pushed.of(f"loss/rank{number}") == {s: 1.0 / (s + 1) for s in range(6)}
        norms = pushed.of(f"trainmon/norm/grad_reduced/rank{number}")
        for step in range(6):
            arrays = [seen[number, step]["grad_reduced", name] for name in NAMES]
            assert norms[step] == pytest.approx(norm(*arrays), nan_ok=True)
    # Layers are those of the lowest rank; a tensor that is not finite is named wherever it is.
    assert {one.rank for one in pushed.series if one.family == "layer_norm"} == {0}
    bad = pushed.of(f"trainmon/tensor_norm/grad_reduced/{NAMES[1]}/rank1")
    assert min(bad) == 2 and np.isnan(bad[2]) and set(bad) == {2, 3, 4, 5}
    assert pushed.of("trainmon/non_finite")[2] == 2
    alerts = pushed.of("trainmon/alerts")
    assert alerts == {s: 2 if s == 2 else 0 for s in range(6)}, "one for each tensor"
    one = Pushed(tmp_path / "run", ranks=[1]).all()
    assert len(one.order) == 6 and {s.rank for s in one.series} == {-1, 1}


def test_many_ranks_take_a_fifth_and_leave_the_lowest_its_curves(tmp_path):
    ranks = [WrittenRank(tmp_path / "run", number, 40) for number in range(40)]
    rng = np.random.default_rng(6)
    for step in range(2):
        for rank in ranks:
            take_step(rank, step, rng)
    for rank in ranks:
        rank.stop()
    pushed = Pushed(tmp_path / "run", 50).all()
    others = [one for one in pushed.series if one.rank > 0]
    assert len(others) == 10 and len([one for one in pushed.series if one.rank == 0]) >= 7
    assert "trainmon/norm/param_updated/rank0" in pushed.values[next(iter(pushed.values))]


def test_two_optimizers_share_the_steps_of_the_clock(tmp_path):
    rank = WrittenRank(tmp_path / "run")
    rank.monitor.add_optimizer(0)
    rng = np.random.default_rng(7)
    arrays = {}
    for step in range(12):
        for name, optimizer, window in (("a", 0, step), ("b", 1, step // 3)):
            if optimizer == 1 and step % 3 != 1:
                continue
            array = rng.normal(size=9).astype(np.float32)
            rank.observe(array, "grad_reduced", name, window, optimizer=optimizer)
            arrays[step, name] = array
        if step % 3 == 1:
            rank.monitor.begin_attempt(1)
            rank.monitor.end_attempt(1, "taken", 1.0)
        rank.end_step()
    rank.stop()
    pushed = Pushed(tmp_path / "run").all()
    assert [step for _, step in pushed.order] == list(range(12)), "not those of the other"
    for step, value in pushed.of("trainmon/norm/grad_reduced").items():
        there = [arrays[step, name] for name in "ab" if (step, name) in arrays]
        assert value == pytest.approx(norm(*there))


def test_a_skipped_attempt_and_the_one_that_was_taken_are_one_step(tmp_path):
    rank = WrittenRank(tmp_path / "run")
    rng = np.random.default_rng(8)
    seen = {}
    for window, fate in enumerate(("taken", "skipped", "skipped", "taken", "taken")):
        array = rng.normal(size=9).astype(np.float32)
        if fate == "skipped":
            array[0] = np.inf
        rank.observe(array, "grad_reduced", "w", window)
        seen[window] = array
        rank.end_step(fate)
    rank.stop()
    pushed = Pushed(tmp_path / "run").all()
    assert [step for _, step in pushed.order] == [0, 1, 2]
    assert pushed.of("trainmon/skipped") == {0: 0, 1: 2, 2: 0}
    assert pushed.of("trainmon/non_finite") == {0: 0, 1: 2, 2: 0}
    norms = pushed.of("trainmon/norm/grad_reduced")
    assert norms == {s: pytest.approx(norm(seen[w])) for s, w in ((0, 0), (1, 3), (2, 4))}


def test_an_unfinished_step_waits_for_the_end_of_the_run(tmp_path):
    rank, _ = write(tmp_path / "run", steps=3)
    rank.observe(np.ones(4, np.float32), "grad_reduced", NAMES[0], 3)
    rank.monitor.seal("backward_end")
    assert rank.monitor.settle(10.0)
    pushed = Pushed(tmp_path / "run").all()
    assert 3 not in [step for _, step in pushed.order] and not pushed.steps.is_over
    rank.stop()
    pushed.all()
    assert [step for _, step in pushed.order] == [0, 1, 2, 3] and pushed.steps.is_over
    assert pushed.of("trainmon/norm/grad_reduced")[3] == 2.0


def test_a_folder_used_again_is_another_run(tmp_path):
    rank, _ = write(tmp_path / "run", steps=4)
    rank.stop()
    pushed = Pushed(tmp_path / "run", state=tmp_path / "state").all()
    pushed.steps.done("")
    first = {start for start, _ in pushed.values}
    del pushed
    (tmp_path / "run").rename(tmp_path / "moved")
    assert Pushed(tmp_path / "moved", state=tmp_path / "state").look() == 0, "the same elsewhere"
    run_json = next((tmp_path / "moved").glob("rank_*/restart_*/run.json"))
    said = json.loads(run_json.read_text())
    run_json.write_text(json.dumps({**said, "started": "2020-01-01T00:00:00Z"}))
    pushed = Pushed(tmp_path / "moved", state=tmp_path / "state").all()
    assert len(pushed.order) == 4 and {start for start, _ in pushed.values} != first


def test_damage_costs_what_it_damages_and_is_counted(tmp_path):
    rank, _ = write(tmp_path / "run", steps=40)
    rank.stop()
    (segment,) = rank.directory.glob("*.tmlog")
    whole = segment.read_bytes()
    at = len(whole) // 2
    segment.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    pushed = Pushed(tmp_path / "run").all()
    steps = [step for _, step in pushed.order]
    assert len(steps) >= 38 and steps == sorted(set(steps)) and steps[-1] == 39
    damage = pushed.steps.damage()
    assert damage and pushed.steps.damage() == []
    assert pushed.of("trainmon/damaged_places")[39] == len(damage)


def test_large_frames_and_many_segments(tmp_path):
    rng = np.random.default_rng(9)
    rank = WrittenRank(tmp_path / "run", segment_mb=0.01)
    names = [f"layers.{i}.w" for i in range(300)]
    for step in range(30):
        take_step(rank, step, rng, names=names, kinds=("grad_reduced",))
    rank.stop()
    assert len(list(rank.directory.glob("*.tmlog"))) > 3
    assert [step for _, step in Pushed(tmp_path / "run").all().order] == list(range(30))
    done = subprocess.run([program(), "compact", tmp_path / "run"], capture_output=True, timeout=60)
    assert done.returncode == 0
    assert [step for _, step in Pushed(tmp_path / "run").all().order] == list(range(30))


def test_only_the_newest_values(tmp_path):
    rank, _ = write(tmp_path / "run", steps=5)
    rank.monitor.add_scalar("eval", 7.0)
    take_step(rank, 5, np.random.default_rng(1))
    take_step(rank, 6, np.random.default_rng(1))
    rank.stop()
    pushed = Pushed(tmp_path / "run", newest_only=True).all()
    assert pushed.order[-1] == (0, 6) and len(pushed.order) <= 2
    assert pushed.of("eval")[6] == 7.0 and pushed.of("loss")[6] == 1 / 7


def test_hostile_names(tmp_path):
    rank = WrittenRank(tmp_path / "run")
    for step in range(2):
        for name in ("a\x1b[31m\n", "损失", "a/../../b", "trainmon/lag_seconds", "x" * 5000):
            rank.monitor.add_scalar(name, 1.0)
        rank.observe(np.ones(4, np.float32), "grad_reduced", "trainmon/\u202ew..\x07", step)
        rank.end_step()
    rank.stop()
    pushed = Pushed(tmp_path / "run").all()
    paths = [one.path for one in pushed.series]
    assert len(set(paths)) == len(paths) and all(path.isprintable() for path in paths)
    assert {"a\\x1B[31m\\x0A", "损失"} <= set(paths) or {"a\\x1b[31m\\x0a", "损失"} <= set(paths)
    assert pushed.steps.left_out == {"logged": 1}, "the name of one of ours"
    keys = [key_of(one) for one in pushed.series]
    assert len(set(keys)) == len(keys) and max(map(len, keys)) <= 250
    assert not any(part in ("..", ".", "") for key in keys for part in key.split("/"))


def call(*arguments, **environment):
    done = subprocess.run(
        [program(), "push", *map(os.fspath, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("target", ["wandb", "swanlab", "mlflow", "prometheus", "otlp"])
def test_a_missing_library_is_named(tmp_path, target):
    rank, _ = write(tmp_path / "run", steps=2)
    rank.stop()
    (tmp_path / "nothing").mkdir()
    # Whatever this machine has: the interpreter is told that there is none.
    hide = "import sys\nfor n in ('wandb', 'swanlab', 'mlflow', 'prometheus_client', 'opentelemetry'):\n sys.modules[n] = None\n"
    (tmp_path / "nothing" / "sitecustomize.py").write_text(hide)
    path = os.pathsep.join([str(tmp_path / "nothing"), os.environ.get("PYTHONPATH", "")])
    code, out, err = call(
        tmp_path / "run", "--to", target, "-f", "--state", tmp_path / "state", PYTHONPATH=path
    )
    assert (code, out) == (2, "") and "pip install " in err and "Traceback" not in err


def test_wrong_usage(tmp_path):
    code, out, err = call(tmp_path / "run", "--to", "wandbb")
    assert code == 2 and "swanlab" in err
    code, out, err = call(tmp_path / "run")
    assert code == 2 and "--to" in err
    code, out, err = call(tmp_path / "run", "--to", "wandb", "--series", "5")
    assert code == 2 and "--series" in err
    code, out, err = call(tmp_path / "run", "--to", "prometheus")
    assert code == 2 and "-f" in err
    with pytest.raises(RuntimeError, match="no such directory"):
        Pushed(tmp_path / "run")
    write(tmp_path / "run", steps=1)[0].stop()
    with pytest.raises(ValueError, match="no rank 99"):
        Pushed(tmp_path / "run", ranks=[99])


def test_one_push_at_a_time_keeps_a_position(tmp_path):
    rank, _ = write(tmp_path / "run", steps=2)
    rank.stop()
    first = Pushed(tmp_path / "run", state=tmp_path / "state")
    with pytest.raises(RuntimeError, match="another push"):
        Pushed(tmp_path / "run", state=tmp_path / "state")
    del first
    (tmp_path / "state" / "position.json").write_text('{"steps": {"a": "b"}}')
    with pytest.raises(RuntimeError, match=r"position.json is no position of a push"):
        Pushed(tmp_path / "run", state=tmp_path / "state")


def test_secrets_are_not_said(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20verysecret,x=y")
    text = "401 of https://me:pass@host/a?key=0123456789abcdef with Bearer%20verysecret"
    assert redacted(text) == "401 of https://***@host/a?key=*** with ***"


class Server(Target):
    """Holds what it is sent until settle(), and refuses steps as `refuses` says."""

    settle_seconds = math.inf

    def __init__(self, refuses, forgets, stop=None):
        self.refuses, self.forgets, self.stop = refuses, forgets, stop
        self.held, self.has = [], []

    def send(self, steps):
        for step in steps:
            if self.refuses(step.number):
                if self.forgets:
                    self.held = []
                if self.stop:
                    self.stop.set()
                raise ConnectionError("the service is away")
            self.held.append(step.number)

    def settle(self):
        self.has += self.held
        self.held = []


def push_to(server, run, state):
    asked = argparse.Namespace(run=str(run), to="server", project="p", state=str(state), series=100)
    asked.__dict__.update(rank=[], follow=False, quiet=True, no_verdict=True, interval=0.01)
    return Push(asked, server, server.stop or threading.Event()).run()


@pytest.mark.parametrize("forgets", [False, True])
def test_a_stop_while_the_target_is_away_loses_no_step(tmp_path, forgets):
    write(tmp_path / "run", steps=250)[0].stop()
    away = Server(lambda step: step >= 150, forgets, stop=threading.Event())
    assert push_to(away, tmp_path / "run", tmp_path / "state") == 130
    back = Server(lambda step: False, forgets)
    assert push_to(back, tmp_path / "run", tmp_path / "state") == 0
    assert set(away.has) | set(back.has) == set(range(250))
    assert push_to(back, tmp_path / "run", tmp_path / "state") == 0
    assert len(back.has) == len(set(back.has))


def test_what_a_service_held_when_it_died_is_sent_again(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(pushing, "PAUSES", (0.01, 0.02))
    write(tmp_path / "run", steps=250)[0].stop()
    tries = []
    server = Server(lambda step: step == 150 and not (tries.append(step) or len(tries) > 2), True)
    assert push_to(server, tmp_path / "run", tmp_path / "state") == 0
    assert sorted(server.has) == list(range(250)) and len(tries) == 3
    assert capfd.readouterr().err.count("did not take steps 100 to 199") == 2


def test_a_target_that_always_refuses_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(pushing, "PAUSES", (0.01, 0.02))
    write(tmp_path / "run", steps=250)[0].stop()
    server = Server(lambda step: step == 150, True)
    assert push_to(server, tmp_path / "run", tmp_path / "state") == 3
    assert server.has == []


def test_other_ranks_than_before_are_refused_for_they_would_be_left_out(tmp_path):
    for rank in (0, 1):
        written = WrittenRank(tmp_path / "run", rank, world_size=2)
        take_step(written, 0, np.random.default_rng(rank))
        written.stop()
    first = Pushed(tmp_path / "run", ranks=[1, 0], state=tmp_path / "state").all()
    first.steps.done("")
    del first.steps
    assert not Pushed(tmp_path / "run", ranks=[0, 1], state=tmp_path / "state").all().order
    for ranks, said in (([1], "those of --rank 1"), ([], "those of all ranks")):
        with pytest.raises(ValueError, match=said):
            Pushed(tmp_path / "run", ranks=ranks, state=tmp_path / "state")
    position = json.loads((tmp_path / "state" / "position.json").read_text())
    del position["ranks"]  # of an earlier version
    (tmp_path / "state" / "position.json").write_text(json.dumps(position))
    Pushed(tmp_path / "run", ranks=[1], state=tmp_path / "state")


def test_a_rank_that_died_before_it_recorded_in_the_first_start_is_sent_with_the_second(tmp_path):
    """The second start is over on rank 0 and goes on on rank 1, whose number is that of the first."""
    run = tmp_path / "run"

    def started(rank, second, steps):
        written = WrittenRank(run, rank, world_size=2)
        for step in range(steps):
            take_step(written, step, np.random.default_rng(rank))
        written.monitor.flush(60)
        said = json.loads((written.directory / "run.json").read_text())
        said["started"] = f"2026-01-31T00:{second // 60:02}:{second % 60:02}Z"
        (written.directory / "run.json").write_text(json.dumps(said))
        return written

    started(0, 0, 3).stop()
    health = next(run.rglob("health.json"))
    text = json.loads(health.read_text())
    health.write_text(json.dumps({**text, "updated": "2026-01-31T00:00:40Z"}))
    ranks = [started(0, 100, 5), started(1, 101, 5)]
    pushed = Pushed(run)
    for _ in range(50):
        pushed.look()
    assert pushed.order == [(0, 0), (0, 1), (0, 2)] + [(1, step) for step in range(5)]
    (values,) = [v for (_, step), v in pushed.values.items() if step == 4]
    assert "loss/rank1" in values
    for rank in ranks:
        rank.stop()
