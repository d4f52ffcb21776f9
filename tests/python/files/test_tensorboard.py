"""Event files as TensorBoard's own reader sees them, against the log of the same run."""

import itertools
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing import event_accumulator as accumulators
from torch import nn

import launch
import trainmon
from written_run import WrittenRank

STATS = ("norm", "mean", "min", "max")


def events_of(directory):
    found = accumulators.EventAccumulator(
        str(directory), size_guidance=dict.fromkeys(accumulators.DEFAULT_SIZE_GUIDANCE, 0)
    )
    found.Reload()
    return found


def points(events, tag):
    return [(event.step, event.value) for event in events.Scalars(tag)]


def float32(value):
    return float(np.float32(value))


def same(got, wanted):
    return len(got) == len(wanted) and all(
        a[0] == b[0] and np.array_equal(a[1], float32(b[1]), equal_nan=True)
        for a, b in zip(got, wanted)
    )


def expected(out, stats=STATS):
    """{tag: [(step, value), ...]} from the log, for runs with one row per series and step, and one
    optimizer."""
    table = trainmon.read_table(out, stats=stats)
    found = {}
    for i in range(table.num_rows):
        name, element = str(table["name"][i]), str(table["element"][i])
        name = ".".join(part for part in (name, element) if part)
        chunk = int(table["chunk"][i])
        name = f"{chunk}:{name}" if chunk else name
        for stat in stats:
            tag = f"{stat}/{table['kind'][i]}/{name}"
            found.setdefault(tag, []).append((int(table["step"][i]), float(table[stat][i])))
    declared = table.declared
    for i in np.flatnonzero(declared["type"] == "number"):
        tag = f"declared/group_{declared['param_group'][i]}/{declared['name'][i]}"
        found.setdefault(tag, []).append((int(declared["step"][i]), float(declared["value"][i])))
    return {tag: sorted(values, key=lambda pair: pair[0]) for tag, values in found.items()}


class Training:
    def __init__(self, out, optimizer=None, **keys):
        torch.manual_seed(5)
        self.model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        self.optimizer = optimizer or torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.numbers = torch.Generator().manual_seed(8)
        keys = {"sinks": ["log", "tensorboard"], "every": 1, **keys}
        self.watch = trainmon.watch(self.model, self.optimizer, out=str(out), **keys)

    def step(self, micro=1, poison=None):
        for _ in range(micro):
            data = torch.randn(4, 6, generator=self.numbers)
            self.loss = self.model(data).square().mean()
            self.loss.backward()
        if poison is not None:
            self.model[0].weight.grad[0, 0] = poison
        self.optimizer.step()
        self.optimizer.zero_grad()

    def stop(self):
        health = self.watch.stop()
        sink = next(sink for sink in health["sinks"] if sink["name"] == "tensorboard")
        lost = sum(sink["rows_dropped"].values())
        assert sink["rows_written"] + lost == health["rows_produced"]
        assert health["errors"] == 0 and health["parts_off"] == {}
        return sink


def test_every_value_is_that_of_the_log(tmp_path):
    training = Training(tmp_path, kinds=["grads", "weights", "moments", "activations"])
    for step in range(6):
        training.step(poison=math.inf if step == 3 else None)
        training.watch.log(loss=training.loss, lr=0.05)
    assert training.stop()["rows_dropped"] == {}
    events = events_of(tmp_path / "tensorboard" / "rank_0")
    wanted = expected(tmp_path)
    assert set(wanted) | {"loss", "lr"} == set(events.Tags()["scalars"])
    for tag, values in wanted.items():
        assert same(points(events, tag), values), tag
    # The oracle has the bad step, and so the curves have it as it is.
    assert points(events, "norm/grad_reduced/0.weight")[3] == (3, math.inf)
    assert any(math.isnan(value) for _, value in points(events, "norm/param_updated/0.weight"))


def test_scalars_of_the_run(tmp_path):
    training = Training(tmp_path)
    wanted = []
    for step in range(5):
        training.step()
        training.watch.log(loss=step / 3)
        wanted.append((step, step / 3))
    training.stop()
    assert same(points(events_of(tmp_path / "tensorboard/rank_0"), "loss"), wanted)


def test_one_point_per_step_of_many_backwards(tmp_path):
    training = Training(tmp_path, kinds=["activations", "grad_unreduced"], flush_seconds=60)
    for _ in range(4):
        training.step(micro=3)
    training.stop()
    table = trainmon.read_table(tmp_path, stats=STATS)
    events = events_of(tmp_path / "tensorboard/rank_0")

    def of(kind, name, element, stat):
        values = {}
        for i in range(table.num_rows):
            if (table["kind"][i], table["name"][i], table["element"][i]) == (kind, name, element):
                values.setdefault(int(table["step"][i]), []).append(float(table[stat][i]))
        assert all(len(v) == 3 for v in values.values()) and len(values) == 4
        return values

    element = next(str(e) for k, n, e in zip(table["kind"], table["name"], table["element"])
                   if k == "actv" and n == "1" and str(e).startswith("output"))  # fmt: skip
    tag = f"actv/1.{element}"
    largest = of("actv", "1", element, "max")
    assert same(points(events, f"max/{tag}"), [(s, max(v)) for s, v in sorted(largest.items())])
    norms = of("actv", "1", element, "norm")
    for step, value in points(events, f"norm/{tag}"):
        assert value == pytest.approx(math.sqrt(sum(v * v for v in norms[step])), rel=1e-6)
    sums = of("grad_unreduced", "0.weight", "", "norm")
    assert same(
        points(events, "norm/grad_unreduced/0.weight"),
        [(s, v[-1]) for s, v in sorted(sums.items())],
    )


def test_histograms_of_updates(tmp_path):
    training = Training(tmp_path, kinds=["update_ratio"])
    for _ in range(5):
        training.step()
    training.stop()
    events = events_of(tmp_path / "tensorboard/rank_0")
    assert "histogram/update_ratio/0.weight.update" in events.Tags()["histograms"]
    found = events.Histograms("histogram/update_ratio/0.weight.update")
    assert [event.step for event in found] == [0, 1, 2, 3, 4]
    # Adam's first step is the sign of the gradient for every element.
    first = found[0].histogram_value
    assert first.min == -1 and first.max == 1
    assert len(first.bucket) == 30 and first.bucket[0] + first.bucket[-1] == first.num == 30
    np.testing.assert_allclose(first.bucket_limit, np.linspace(-1, 1, 31)[1:], atol=1e-15)


@pytest.mark.parametrize("budget", [200, 100, 60])
def test_a_budget_of_tags(tmp_path, capfd, budget):
    """What has no curve of its own is in that of its layer, or of its kind: 80 series, 320 tags."""
    rank = WrittenRank(tmp_path, sinks=["log", "tensorboard"], tensorboard_tags=budget)
    generator = np.random.default_rng(1)
    kinds, arrays = ("grad_reduced", "param_updated"), {}
    for step in range(3):
        for layer, i in itertools.product(range(4), range(10)):
            for kind in kinds:
                array = generator.standard_normal(7).astype(np.float32)
                arrays[step, kind, layer, i] = array
                rank.observe(array, kind, f"layers.{layer}.w{i}", step)
        rank.end_step()
    rank.stop()
    assert capfd.readouterr().err.count(f"tensorboard_tags is {budget}") == 1
    events = events_of(tmp_path / "tensorboard/rank_0")
    tags = events.Tags()["scalars"]
    assert len(tags) <= budget
    own = {tag for tag in tags if tag.startswith("norm/") and not tag.endswith("*")}
    assert points(events, "trainmon/series_merged")[-1][1] == 80 - len(own)
    merged = {}  # curve -> series in it
    for kind, layer, i in itertools.product(kinds, range(4), range(10)):
        stem = f"{kind}/layers.{layer}"
        if f"norm/{stem}.w{i}" not in own:
            shared = f"{stem}.*" if f"norm/{stem}.*" in tags else f"{kind}/*"
            merged.setdefault(shared, []).append((kind, layer, i))
    assert {f"norm/{stem}" for stem in merged} == {
        tag for tag in tags if tag.startswith("norm/") and tag not in own
    }
    for kind in kinds:  # each has its share
        assert sum(f"/{kind}/" in tag for tag in own) * 4 * len(kinds) >= budget / 2
    for (stem, series), step in itertools.product(merged.items(), range(3)):
        whole = np.concatenate([arrays[(step, *one)] for one in series]).astype(np.float64)
        values = {s: dict(points(events, f"{s}/{stem}"))[step] for s in STATS}
        assert values["max"] == whole.max() and values["min"] == whole.min()
        assert values["norm"] == pytest.approx(np.linalg.norm(whole), rel=1e-6)
        assert values["mean"] == pytest.approx(whole.mean(), rel=1e-5)


def test_names_of_any_bytes(tmp_path):
    rank = WrittenRank(tmp_path, sinks=["log", "tensorboard"])
    array = np.ones(4, np.float32)
    names = ["", "größe", "日本", "a b\t\n", "x" * 5000, "{a}/b:c"]
    for name in names:
        rank.observe(array, "grad_reduced", name, 0)
    rank.end_step()
    rank.stop()
    tags = events_of(tmp_path / "tensorboard/rank_0").Tags()["scalars"]
    assert {f"norm/grad_reduced/{name}" for name in names} <= set(tags)


def test_ranks_are_runs_and_files_are_private(tmp_path):
    for rank in (0, 11):
        written = WrittenRank(tmp_path, rank=rank, world_size=12, sinks=["tensorboard"])
        written.observe(np.full(4, rank, np.float32), "grad_reduced", "w", 0)
        written.end_step()
        written.stop()
    assert sorted(os.listdir(tmp_path / "tensorboard")) == ["rank_0", "rank_11"]
    for rank in (0, 11):
        (file,) = os.listdir(tmp_path / f"tensorboard/rank_{rank}")
        assert re.fullmatch(r"events\.out\.tfevents\.\d{10}\.0000\.[\w-]+\.\d+", file)
        events = events_of(tmp_path / f"tensorboard/rank_{rank}")
        assert points(events, "mean/grad_reduced/w") == [(0, rank)]


# For programs given as text: they import from this directory, too.
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(
        [os.fspath(launch.SHARED), *filter(None, [os.getenv("PYTHONPATH")])]
    ),
}

KILLED = """
import os, signal, sys
import numpy as np
from written_run import WrittenRank
out, first, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rank = WrittenRank(out, sinks=["log", "tensorboard"], flush_seconds=0.05)
rank.monitor.set_start_step(0, first)
for window in range(steps):
    rank.observe(np.full(3, 1000 * first + first + window, np.float32), "grad_reduced", "w", window)
    rank.end_step()
rank.monitor.settle(10)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_and_resumed_run_shows_all_steps(tmp_path):
    """The restart goes through steps 6 to 9 again: its values hold."""
    for first, steps in ((0, 10), (6, 8)):
        command = [sys.executable, "-c", KILLED, str(tmp_path), str(first), str(steps)]
        died = subprocess.run(command, timeout=60, env=ENVIRONMENT)
        assert died.returncode == -signal.SIGKILL
    directory = tmp_path / "tensorboard/rank_0"
    assert len(os.listdir(directory)) == 2
    wanted = [(s, s) for s in range(6)] + [(s, 6000 + s) for s in range(6, 14)]
    assert points(events_of(directory), "mean/grad_reduced/w") == wanted
    # What was cut off in the middle of a record hides nothing of the file after it.
    first, second = sorted(directory.iterdir())
    with open(first, "rb+") as file:
        file.truncate(first.stat().st_size - 5)
    got = points(events_of(directory), "mean/grad_reduced/w")
    assert got[-8:] == wanted[-8:] and got[:5] == wanted[:5]


PRODUCING = """
import itertools, sys
import numpy as np
from written_run import WrittenRank
rank = WrittenRank(sys.argv[1], sinks=["tensorboard"], flush_seconds=0.02)
print("ready", flush=True)
for window in itertools.count():
    rank.observe(np.full(3, window, np.float32), "grad_reduced", "w", window)
    rank.end_step()
"""


def test_killed_at_any_instant(tmp_path):
    """A prefix without holes; two of four die in the middle of a write."""
    random = np.random.default_rng(int(time.time()))
    for i in range(4):
        out = tmp_path / str(i)
        environment = dict(ENVIRONMENT)
        if i % 2:
            hit, size = random.integers(20, 200), random.integers(1, 60)
            spec = f"file.write=short:{size}@{hit};file.write=kill@{hit + 1}"
            environment["TRAINMON_FAILPOINTS_SPEC"] = spec
        command = [sys.executable, "-c", PRODUCING, str(out)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert child.stdout.readline() == b"ready\n"
        time.sleep(random.uniform(0.05, 0.6))
        child.kill()
        child.wait()
        got = points(events_of(out / "tensorboard/rank_0"), "mean/grad_reduced/w")
        assert got == [(step, step) for step in range(len(got))] and len(got) > 3


def test_a_restart_that_ends_in_its_first_step_hides_nothing(tmp_path):
    """Nobody knows yet which step that is: a checkpoint may have been loaded."""
    first = WrittenRank(tmp_path, sinks=["log", "tensorboard"])
    for window in range(5):
        first.observe(np.ones(3, np.float32), "grad_reduced", "w", window)
        first.end_step()
    first.stop()
    again = WrittenRank(tmp_path, sinks=["log", "tensorboard"])
    again.observe(np.ones(3, np.float32), "actv", "w", 0)
    again.stop()
    found = points(events_of(tmp_path / "tensorboard/rank_0"), "mean/grad_reduced/w")
    assert found == [(step, 1) for step in range(5)]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A run, and the address of a TensorBoard that shows it."""
    out = tmp_path_factory.mktemp("served")
    training = Training(out, kinds=["grads", "update_ratio"])
    for _ in range(4):
        training.step()
    training.stop()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "no_proxy": "127.0.0.1"}
    program = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", str(out / "tensorboard"),
         "--host", "127.0.0.1", "--port", str(port), "--load_fast=false"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    yield out, f"http://127.0.0.1:{port}/data/plugin"
    program.kill()
    program.wait()


def fetch(address):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(address, timeout=10) as answer:
        return json.load(answer)


def wait_for(address, run, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            found = fetch(address)
            if found.get(run):
                return found
        except OSError:
            pass
        time.sleep(0.2)
    pytest.fail(f"{address} had nothing of {run}")


def test_tensorboard_itself_shows_it(served):
    out, address = served
    tags = wait_for(f"{address}/scalars/tags", "rank_0")["rank_0"]
    wanted = expected(out)
    assert set(tags) == set(wanted)
    for tag in wanted:
        query = urllib.parse.urlencode({"run": "rank_0", "tag": tag})
        got = fetch(f"{address}/scalars/scalars?{query}")
        assert same([(step, value) for _, step, value in got], wanted[tag]), tag
    histograms = wait_for(f"{address}/histograms/tags", "rank_0")["rank_0"]
    assert "histogram/update_ratio/0.weight.ratio" in histograms
    query = urllib.parse.urlencode(
        {"run": "rank_0", "tag": "histogram/update_ratio/0.weight.update"}
    )
    drawn = fetch(f"{address}/histograms/histograms?{query}")
    assert [step for _, step, _ in drawn] == [0, 1, 2, 3]
    assert sum(count for _, _, count in drawn[0][2]) == pytest.approx(30)
