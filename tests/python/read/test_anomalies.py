"""Ranking alerts: the msprobe module and `trainmon anomalies` against a sort written in Python."""

from __future__ import annotations

import itertools
import json
import os
import random
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import trainmon
from launch import command_line as program

MODULES = [
    "trainmon.compat.msprobe.core.monitor.anomaly_processor",
    "trainmon.compat.msprobe.pytorch.monitor.anomaly_analyse",
]
FORWARD = {"actv"}
BACKWARD = {"actv_grad", "pre_grad", "post_grad", "acc_grad"}
OPTIMIZER = {"exp_avg", "exp_avg_sq"}
UNKNOWN = {"qkt", "sr", "router_weight", "router_logit", "param_origin", "param_updated", "new"}
TASKS = sorted(FORWARD | BACKWARD | OPTIMIZER | UNKNOWN)


def order(entry):
    """The peer's order, stage by stage: what it does not know comes first, as stage -1."""
    task = entry["tag_name"].split("/")[-1]
    place = (entry["vpp_stage"], entry["pp_stage"])
    if task in FORWARD:
        stage = 0
    else:
        stage = 1 if task in BACKWARD else 2 if task in OPTIMIZER else -1
        place = tuple(-number for number in place)
    return entry["step"], entry["micro_step"], stage, *place, entry["call_id"], entry["rank"]


def entry(rank, step, micro=0, task="actv", pp=0, vpp=0, call=0):
    tag = f"{vpp}:fc.weight/rank{rank}/{task}"
    return {
        "rank": rank,
        "step": step,
        "micro_step": micro,
        "pp_stage": pp,
        "vpp_stage": vpp,
        "call_id": call,
        "tag_name": tag,
        "message": f"Rule AnomalyNan reports anomaly signal in ('{tag}', 'max') at step {step}.",
        "group_mates": [0, 1],
    }


def write(directory: Path, entries) -> None:
    """As the sink does: one file per rank, keys of the documented form."""
    for rank in {e["rank"] for e in entries}:
        own = {
            f"{e['tag_name']}_max_step_{e['step']}_call_{e['call_id']}_{n}": e
            for n, e in enumerate(entries)
            if e["rank"] == rank
        }
        path = directory / f"rank{rank}" / "anomaly.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(own, indent=1))


def some_entries(count=300):
    chance = random.Random(7)
    return [
        entry(
            rank=chance.randrange(4),
            step=chance.randrange(3),
            micro=chance.randrange(2),
            task=chance.choice(TASKS),
            pp=chance.randrange(3),
            vpp=chance.randrange(3),
            call=n,
        )
        for n in range(count)
    ]


def sort(module, *arguments):
    command = [sys.executable, "-m", module, *map(os.fspath, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def call(*arguments):
    command = [program(), *map(os.fspath, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("module", MODULES)
def test_the_first_eight_of_all_ranks(tmp_path, module):
    entries = some_entries()
    write(tmp_path, entries)
    done = sort(module, "-d", tmp_path)
    assert done.returncode == 0, done.stderr
    expected = sorted(entries, key=order)[:8]
    file = tmp_path / "anomaly_analyse.json"
    assert list(json.loads(file.read_text()).values()) == expected
    assert file.read_text().startswith('{\n "')
    assert file.read_text() == json.dumps(json.loads(file.read_text()), indent=1)
    assert stat.S_IMODE(file.stat().st_mode) & 0o137 == 0
    lines = [line for line in done.stdout.splitlines() if "Rule AnomalyNan" in line]
    assert lines == [f"{n}. {e['message']}" for n, e in enumerate(expected, 1)]


def test_every_option_by_both_names(tmp_path):
    entries = some_entries()
    write(tmp_path / "in", entries)
    expected = [e for e in sorted(entries, key=order) if e["step"] in (1, 2)][:17]
    short = ("-d", "-o", "-k", "-s")
    for names in (
        short,
        ("--data_path", "--out_path", "--topk", "--step_list"),
        (*short[:3], "--step"),
    ):
        out = tmp_path / f"out{names[-1]}"
        values = (tmp_path / "in", out, "17", "[1, 2]")
        done = sort(MODULES[0], *itertools.chain(*zip(names, values, strict=True)))
        assert done.returncode == 0, done.stderr
        written = json.loads((out / "anomaly_analyse.json").read_text())
        assert list(written.values()) == expected
    assert sort(MODULES[0], "-d", tmp_path / "in", "-s", "[]").returncode == 0


@pytest.mark.parametrize(
    "wrong",
    [["-k", "0"], ["-k", "-1"], ["-k", "x"], ["-s", "1"], ["-s", "[1.5]"], ["-s", "(["], ["-s", "[True]"]],
)  # fmt: skip
def test_wrong_arguments_are_refused(tmp_path, wrong):
    write(tmp_path, [entry(0, 0)])
    done = sort(MODULES[0], "-d", tmp_path, *wrong)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "anomaly_analyse.json").exists()


def test_damage_is_named_and_passed_over(tmp_path):
    good = entry(0, 5)
    write(tmp_path, [good])
    (tmp_path / "rank1").mkdir()
    (tmp_path / "rank1/anomaly.json").write_text('{"cut": {"ra')
    (tmp_path / "rank2").mkdir()
    lacking = {k: v for k, v in good.items() if k != "step"}
    (tmp_path / "rank2/anomaly.json").write_text(json.dumps({"lacking": lacking, "ok": good}))
    done = sort(MODULES[0], "-d", tmp_path)
    assert done.returncode == 0
    assert "rank1/anomaly.json" in done.stderr
    assert "lacking" in done.stderr and "no step" in done.stderr
    assert len(json.loads((tmp_path / "anomaly_analyse.json").read_text())) == 2
    native = call("anomalies", tmp_path, "--json")
    assert native.returncode == 3
    assert "rank1/anomaly.json" in native.stderr
    assert [e["step"] for e in json.loads(native.stdout)] == [5, 5]


def test_nothing_to_read_is_an_error_in_one_line(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        done = sort(MODULES[0], "-d", path, "-o", tmp_path)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert call("anomalies", path).returncode == 2


def test_names_cannot_send_escape_codes(tmp_path):
    odd = entry(0, 0) | {"message": "\x1b[31m\u202e red\n"}
    write(tmp_path, [odd])
    for done in (sort(MODULES[0], "-d", tmp_path), call("anomalies", tmp_path)):
        assert "\x1b" not in done.stdout and "\u202e" not in done.stdout


def test_the_program_orders_alike(tmp_path):
    entries = some_entries()
    write(tmp_path / "in", entries)
    expected = sorted(entries, key=order)
    done = call("anomalies", tmp_path / "in", "--json", "-k", "1000", "-o", tmp_path)
    assert done.returncode == 1  # there is something to look at
    read = json.loads(done.stdout)
    assert [{k: v for k, v in e.items() if k != "key"} for e in read] == expected
    assert list(json.loads((tmp_path / "anomaly_analyse.json").read_text()).values()) == expected
    for steps in ("1", "[1]", "1,7", "[1, 7]"):
        done = call("anomalies", tmp_path / "in", "--json", "-k", "1000", "--step", steps)
        assert [e["step"] for e in json.loads(done.stdout)] == [
            e["step"] for e in expected if e["step"] == 1
        ]
    assert not (tmp_path / "in/anomaly_analyse.json").exists()  # only where asked
    text = call("anomalies", tmp_path / "in", "-k", "3")
    assert len(text.stdout.splitlines()) == 4
    assert "of 300 alerts" in text.stderr
    for wrong in ("x", "1,", ",1", "[1", "1 2x"):
        assert call("anomalies", tmp_path / "in", "--step", wrong).returncode == 2


def test_alerts_of_a_run(tmp_path):
    import torch

    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = tmp_path / "run"
    monitor = trainmon.watch(model, optimizer, out=os.fspath(run))
    for step in range(4):
        optimizer.zero_grad()
        model(torch.full((3, 4), float("nan") if step == 2 else 1.0)).sum().backward()
        optimizer.step()
    monitor.stop()
    done = call("anomalies", run, "--json")
    assert done.returncode == 1, done.stderr
    entries = json.loads(done.stdout)
    assert {(e["step"], e["tag_name"]) for e in entries} == {
        (2, "0:weight/rank0/post_grad"),
        (3, "0:.output:0/rank0/actv"),  # recorded because of the one before
    }
    alerts = trainmon.read_table(run).alerts
    assert [a["stat"] for a in alerts] == [""] * len(entries)
