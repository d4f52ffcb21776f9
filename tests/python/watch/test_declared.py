"""What optimizers' groups say (lr, weight decay, ...): recorded when it changes, told by every reader.
The oracle is the list of values that the training itself used."""

from __future__ import annotations

import json
import math
import os
import subprocess

import pytest
import torch
from torch import nn

import launch
import log_decoder
import trainmon


def train(out, steps=6, lr=0.1, change=None, model=None, make=None, monitor_options=None):
    """Returns {(group, name): [value used at each step]}."""
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    groups = [
        {"params": model[0].parameters(), "weight_decay": 0.5},
        {"params": model[1].parameters()},
    ]
    optimizer = make(groups) if make else torch.optim.AdamW(groups, lr=lr)
    used = {}
    with trainmon.watch(model, optimizer, out=out, **(monitor_options or {})):
        for step in range(steps):
            if change:
                change(step, optimizer.param_groups)
            optimizer.zero_grad()
            model(torch.ones(2, 3)).pow(2).mean().backward()
            for number, group in enumerate(optimizer.param_groups):
                for name in ("lr", "weight_decay"):
                    used.setdefault((number, name), []).append(float(group[name]))
            optimizer.step()
    return used


def declared(run, **options):
    table = trainmon.read_table(run, **options).declared
    return [dict(zip(table, line, strict=True)) for line in zip(*table.values(), strict=True)]


def history(run, group, name, **options):
    lines = declared(run, **options)
    return [
        (d["step"], d["value"]) for d in lines if (d["param_group"], d["name"]) == (group, name)
    ]


def changes(values):
    return [(s, v) for s, v in enumerate(values) if s == 0 or values[s - 1] != v]


def halve_second(step, groups):
    if step in (2, 4):
        groups[1]["lr"] /= 3.0


def program(*arguments, code=0):
    done = subprocess.run(
        [launch.command_line(), *map(os.fspath, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "160"},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_what_changes_is_recorded_when_it_does_and_exactly(tmp_path):
    used = train(tmp_path, change=halve_second)
    for (group, name), values in used.items():
        assert history(tmp_path, group, name) == changes(values)
    first = {d["name"]: d for d in declared(tmp_path) if d["step"] == 0 and d["param_group"] == 0}
    assert (first["betas.0"]["value"], first["betas.1"]["value"]) == (0.9, 0.999)
    assert (first["eps"]["value"], first["amsgrad"]["value"]) == (1e-8, 0.0)
    assert first["foreach"]["text"] == "None" and math.isnan(first["foreach"]["value"])
    assert "params" not in {n.split(".")[0] for n in first}
    # Only what is not as before is told again.
    assert {(d["step"], d["name"]) for d in declared(tmp_path) if d["step"]} == {
        (2, "lr"),
        (4, "lr"),
    }


def test_values_that_are_no_rows_leave_counts_alone(tmp_path):
    train(tmp_path, change=halve_second)
    health = json.loads((tmp_path / "rank_00000/restart_0000/health.json").read_text())
    assert health["rows_produced"] == trainmon.read_table(tmp_path).num_rows == 6 * 4
    assert health["parts_off"] == {}


def test_steps_before_the_first_one_asked_for_still_hold(tmp_path):
    used = train(tmp_path, change=halve_second)
    lr = used[1, "lr"]
    assert history(tmp_path, 1, "lr", steps=(3, 5)) == [(2, lr[2]), (4, lr[4])]
    assert history(tmp_path, 1, "lr", steps=(0, 2)) == [(0, lr[0]), (2, lr[2])]


def test_odd_values_of_a_group(tmp_path):
    class Odd(torch.optim.SGD):
        pass

    def change(step, groups):
        groups[0].update(
            note="\ud800", huge=10**400, text="warm" if step < 2 else "cold", tuple=(1, 2.5, None),
            words=["a", "b"], function=len, inner={"a": 1}, missing=math.nan, nothing=None,
            many=tuple(range(100)), empty=(), whole=3, flag=True,
        )  # fmt: skip
        groups[0][7] = 1.0
        groups[1]["lr"].fill_(0.5 / (step + 1))  # in place: the object stays the same
        if step == 3:
            groups[0] = dict(reversed(groups[0].items()))  # as after load_state_dict()

    def make(groups):
        groups[1]["lr"] = torch.tensor(0.5, dtype=torch.float64)
        return Odd(groups, lr=0.1)

    used = train(tmp_path, change=change, make=make)
    assert history(tmp_path, 1, "lr") == changes(used[1, "lr"])
    lines = [d for d in declared(tmp_path) if d["param_group"] == 0]
    text = [(d["step"], d["text"]) for d in lines if d["name"] == "text"]
    assert text == [(0, "warm"), (2, "cold")]
    values = {d["name"]: d["value"] for d in lines if d["step"] == 0}
    assert (values["tuple.0"], values["tuple.1"]) == (1.0, 2.5)
    assert (values["whole"], values["flag"]) == (3.0, 1.0)
    assert math.isnan(values["missing"])
    assert not {"note", "huge", "function", "inner", "many.0", "words.0", "empty"} & set(values)
    assert [d["step"] for d in lines if d["step"]] == [2]


def test_a_restart_tells_everything_again(tmp_path):
    for lr in (0.1, 0.2):
        train(tmp_path, steps=2, lr=lr)
    assert history(tmp_path, 0, "lr") == [(0, 0.2)]
    assert [v for _, v in history(tmp_path, 0, "lr", all_restarts=True)] == [0.1, 0.2]
    assert history(tmp_path, 0, "weight_decay") == [(0, 0.5)]


def test_query_and_show_tell_them(tmp_path):
    used = train(tmp_path, change=halve_second)
    asked = "SELECT step, value FROM declared WHERE name = 'lr' AND param_group = 1 ORDER BY step"
    answer = json.loads(program("--json", "query", tmp_path, asked))
    assert [tuple(line.values()) for line in answer] == changes(used[1, "lr"])
    asked = "SELECT value FROM declared WHERE name = 'foreach' AND param_group = 0"
    assert json.loads(program("--json", "query", tmp_path, asked)) == [{"value": "None"}]
    shown = json.loads(program("--json", "show", tmp_path, "--declared", "--count", "0"))
    found = [(d["step"], d["value"]) for d in shown if (d["param_group"], d["name"]) == (1, "lr")]
    assert found == changes(used[1, "lr"])
    lines = program("show", tmp_path, "--declared", "--count", "0").splitlines()
    assert lines[0].split() == ["restart", "step", "rank", "optimizer", "group", "name", "value"]
    assert lines[1].split()[5:] == ["weight_decay", "0.5"]


def test_compare_tells_from_which_step_on(tmp_path):
    train(tmp_path / "a")
    used = train(tmp_path / "b", change=halve_second)
    report = trainmon.compare(tmp_path / "a", tmp_path / "b")
    assert report["declared"] == [
        {"step": 2, "optimizer": 0, "param_group": 1, "name": "lr", "a": "0.1",
         "b": repr(used[1, "lr"][2]), "ranks": []}
    ]  # fmt: skip
    out = program("compare", tmp_path / "a", tmp_path / "b", code=1)
    first, second = out.splitlines()[:2]
    assert first == f"lr of group 1 differs from step 2 on: 0.1 in A, {used[1, 'lr'][2]!r} in B"
    assert second.startswith("first difference: step 3")  # what the step 2 did shows then
    late = trainmon.compare(tmp_path / "a", tmp_path / "b", steps=(3, None))
    assert [(d["step"], d["name"]) for d in late["declared"]] == [(3, "lr")]
    same = trainmon.compare(tmp_path / "a", tmp_path / "a")
    assert same["declared"] == []


@pytest.mark.parametrize("every", [1, 2])
def test_steps_that_are_not_recorded(tmp_path, every):
    used = train(tmp_path, change=halve_second, monitor_options={"every": every})
    seen = [v for s, v in enumerate(used[1, "lr"]) if s % every == 0]
    assert [v for _, v in history(tmp_path, 1, "lr")] == [v for _, v in changes(seen)]


def test_conversions_write_them(tmp_path):
    train(tmp_path / "run", change=halve_second)
    lines = declared(tmp_path / "run")
    program("convert", tmp_path / "run", "--to", "jsonl", "-o", tmp_path / "lines")
    written = [json.loads(line) for line in (tmp_path / "lines/declared.jsonl").open()]
    values = [(d["step"], d["param_group"], d["name"]) for d in lines]
    assert [(d["step"], d["param_group"], d["name"]) for d in written] == values
    numbers = [d["value"] for d in written if not isinstance(d["value"], str)]
    assert numbers == [d["value"] for d in lines if not math.isnan(d["value"])]
    program("convert", tmp_path / "run", "--to", "csv", "-o", tmp_path / "table")
    assert (tmp_path / "table/declared.csv").read_text().startswith("restart,rank,step,optimizer,")


def test_the_bytes_are_those_of_the_page_of_formats(tmp_path):
    used = train(tmp_path, change=halve_second)
    data = (tmp_path / "rank_00000/restart_0000/log-000000.tmlog").read_bytes()
    told = [d for batch in log_decoder.decode(data).batches for d in batch.get("declared", [])]
    assert [(d["optimizer"], d["group"], d["window"]) for d in told] == [
        (0, 0, 0), (0, 1, 0), (0, 1, 2), (0, 1, 4)
    ]  # fmt: skip
    lr = used[1, "lr"]
    assert [d["values"]["lr"] for d in told[1:]] == [lr[0], lr[2], lr[4]]
    assert told[0]["values"]["foreach"] == "None" and set(told[2]["values"]) == {"lr"}
