"""Dynamic mode of the compatible face: the manual's six scenarios, and files torn while written."""

import csv
import json
import os
import pathlib
import random
import threading
import time

import pytest
import torch
from torch import nn

import launch
from trainmon.compat.msprobe.config_file import ConfigFile
from trainmon.compat.msprobe.pytorch import TrainerMon

BASE = {"targets": {}, "wg_distribution": True, "ops": ["norm"], "format": "csv"}


class Run:
    """Trains step by step; edit() before a step as a person would."""

    def __init__(self, folder, monkeypatch, dynamic, **config):
        self.out = folder / "out"
        monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(self.out))
        if dynamic is None:
            monkeypatch.delenv("DYNAMIC_MONITOR", raising=False)
        else:
            monkeypatch.setenv("DYNAMIC_MONITOR", dynamic)
        self.path = folder / "config.json"
        self.path.write_text(json.dumps({**BASE, **config}))
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.monitor = TrainerMon(str(self.path), params_have_main_grad=False)
        self.monitor.set_monitor(self.model, grad_acc_steps=1, optimizer=self.optimizer)
        self.step = 0

    def train(self, until):
        while self.step < until:
            self.model(torch.randn(2, 4)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1

    def edit(self, **changes):
        self.write(json.dumps({**json.loads(self.path.read_text()), **changes}))

    def write(self, text):
        temporary = self.path.with_suffix(".new")
        temporary.write_text(text)
        os.replace(temporary, self.path)

    def collected(self, kind="grad_reduced"):
        """{step: columns of statistics}"""
        self.monitor.stop()
        found = {}
        for path in self.out.glob(f"*/{kind}_*.csv"):
            with open(path, newline="") as file:
                for row in csv.DictReader(file):
                    columns = [c for c in row if c in ("norm", "min", "max", "mean")]
                    found[int(row["step"])] = columns
        return dict(sorted(found.items()))

    def is_on(self):
        return json.loads(self.path.read_text())["dynamic_on"]


@pytest.mark.parametrize("environment", [None, "False", "false", "0"])
def test_scenario_1_static(tmp_path, monkeypatch, environment):
    run = Run(tmp_path, monkeypatch, environment, dynamic_on=False)
    run.train(3)
    assert list(run.collected()) == [0, 1, 2]


@pytest.mark.parametrize("config", [{}, {"dynamic_on": False}])
def test_scenario_2_off_at_first(tmp_path, monkeypatch, config):
    run = Run(tmp_path, monkeypatch, "True", **config)
    run.train(3)
    assert run.collected() == {} and not run.out.exists()


def test_scenario_3_on_from_the_start(tmp_path, monkeypatch):
    run = Run(tmp_path, monkeypatch, "TRUE", dynamic_on=True, collect_times=2, start_step=50)
    run.train(6)
    assert not run.is_on()  # the file says that it has ended
    assert list(run.collected()) == [1, 2]  # start_step has no effect here


def test_scenario_4_on_while_training(tmp_path, monkeypatch):
    run = Run(tmp_path, monkeypatch, "True", dynamic_on=False, collect_times=3)
    run.train(2)
    run.edit(dynamic_on=True)
    run.train(10)
    assert list(run.collected()) == [3, 4, 5]


def test_scenario_5_edited_while_collecting(tmp_path, monkeypatch):
    run = Run(tmp_path, monkeypatch, "True", dynamic_on=True, collect_times=4)
    run.train(3)  # collects 1 2
    run.edit(ops=["min", "max"], step_interval=2, mv_distribution=True)
    run.train(20)
    assert run.collected() == {
        1: ["norm"], 2: ["norm"], 3: ["norm"],
        **{step: ["min", "max"] for step in (4, 6, 8, 10)},  # counted from 0 again
    }  # fmt: skip
    assert set(run.collected("exp_avg")) == {4, 6, 8, 10}


def test_scenario_5_collect_times_0_ends_at_once(tmp_path, monkeypatch):
    run = Run(tmp_path, monkeypatch, "True", dynamic_on=True)
    run.train(4)
    run.edit(collect_times=0)
    run.train(8)
    assert list(run.collected()) == [1, 2, 3, 4]


def test_scenario_6_started_again(tmp_path, monkeypatch):
    run = Run(tmp_path, monkeypatch, "True", dynamic_on=True, collect_times=2)
    run.train(6)
    assert not run.is_on()
    run.edit(dynamic_on=True)
    run.train(12)
    assert list(run.collected()) == [1, 2, 7, 8]


def test_dynamic_on_false_stops_a_running_collection(tmp_path, monkeypatch):
    run = Run(tmp_path, monkeypatch, "True", dynamic_on=True, xy_distribution=True)
    run.train(3)
    run.edit(dynamic_on=False)
    run.train(6)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in run.model.modules())
    assert all(not p._post_accumulate_grad_hooks for p in run.model.parameters())
    assert list(run.collected()) == [1, 2, 3]


@pytest.mark.parametrize(
    "wrong", ['{"ops": ["norm"', "", "[]", '{"ops": "norm", "dynamic_on": true}', '{"alert": 3}']
)
def test_a_wrong_edit_keeps_what_was_and_is_said_once(tmp_path, monkeypatch, caplog, wrong):
    run = Run(tmp_path, monkeypatch, "True", dynamic_on=True)
    good = run.path.read_text()
    run.train(3)
    run.write(wrong)
    run.train(8)
    assert caplog.text.count("is not taken over") == 1
    run.write(good.replace("norm", "max"))  # mended: taken over at once
    run.train(10)
    collected = run.collected()
    assert list(collected) == list(range(1, 10))
    assert collected[8] == ["norm"] and collected[9] == ["max"]


def test_wrong_while_idle_is_mended_later(tmp_path, monkeypatch):
    run = Run(tmp_path, monkeypatch, "True", dynamic_on=False)
    run.train(2)
    run.write("{")
    run.train(4)
    run.write(json.dumps({**BASE, "dynamic_on": True}))
    run.train(7)
    assert list(run.collected()) == [5, 6]


def test_own_rewrite_keeps_every_other_field(tmp_path, monkeypatch):
    run = Run(tmp_path, monkeypatch, "True", dynamic_on=True, collect_times=1, eps=1e-5)
    before = json.loads(run.path.read_text())
    run.train(4)
    assert json.loads(run.path.read_text()) == {**before, "dynamic_on": False}
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["config.json"]


def test_an_edit_at_the_end_of_a_collection_is_not_written_over(tmp_path, monkeypatch):
    run = Run(tmp_path, monkeypatch, "True", dynamic_on=True, collect_times=2)
    run.train(2)
    run.edit(dynamic_on=True, ops=["max"])  # seen at the step that would end the collection
    run.train(8)
    collected = run.collected()
    assert collected == {1: ["norm"], 2: ["norm"], 3: ["max"], 4: ["max"]}


def test_only_valid_versions_apply_in_order_and_the_last_always(tmp_path):
    """An editor that writes whole, torn and wrong versions, by rename and in place."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**BASE, "start_step": 0}))
    file, taken, done = ConfigFile(path), [], threading.Event()
    chance = random.Random(5)

    def edit():
        for number in range(1, 10001):
            text = json.dumps({**BASE, "start_step": number})
            how = chance.choice(["whole", "in place", "torn", "wrong", "empty"])
            if how == "whole":
                new = path.with_suffix(".new")
                new.write_text(text)
                os.replace(new, path)
            elif how == "in place":
                path.write_text(text)
            elif how == "torn":
                path.write_text(text[: chance.randrange(1, len(text))])
            elif how == "wrong":
                path.write_text(json.dumps({**BASE, "start_step": number, "ops": 3}))
            else:
                path.write_text("")
            if number % 50 == 0:
                time.sleep(0.001)  # lets the other thread look
        path.write_text(json.dumps({**BASE, "start_step": 10001}))
        done.set()

    editor = threading.Thread(target=edit)
    editor.start()
    while not done.is_set():
        config = file.changed()
        taken += [config["start_step"]] if config is not None else []
    editor.join()
    deadline = time.monotonic() + 20
    while (not taken or taken[-1] != 10001) and time.monotonic() < deadline:
        config = file.changed()
        taken += [config["start_step"]] if config is not None else []
    assert taken[-1] == 10001
    assert taken == sorted(set(taken)) and len(taken) > 20


def test_two_ranks(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**BASE, "wg_distribution": False}))
    out = tmp_path / "out"
    ended = launch.run("compat_dynamic_run.py", config, out, ranks=2, timeout=120)
    expected = [*range(4, 7), *range(10, 16), *range(19, 22)]
    for rank, end in enumerate(ended):
        assert "after 7: False" in end.out
        assert "hooks left: 0" in end.out
        steps = set()
        for path in pathlib.Path(out).glob(f"*-rank{rank}-*/grad_reduced_*.csv"):
            steps.add(int(path.name.split("_")[-1].split("-")[0]))
            columns = path.read_text().splitlines()[0].split(",")
            step = int(path.name.split("_")[-1].split("-")[0])
            assert ("min" in columns) == (step >= 13), (path.name, columns)
        assert sorted(steps) == expected
