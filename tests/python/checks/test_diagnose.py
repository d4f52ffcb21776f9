"""`trainmon diagnose`: faults planted in real trainings of two processes are placed, and what is
harmless is not called a fault."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import pytest
import torch

import launch
import trainmon

STEP, TENSOR = 15, "2.weight"
EVERY = [f"{layer}.{name}" for layer in (0, 2, 4) for name in ("weight", "bias")]
# name: check, stage, ranks that evidence cannot tell apart, tensors
FAULTS = {
    "weight_bit_30": ("gap", "weights", [1], [TENSOR]),
    "weight_bit_0": ("gap", "weights", [1], [TENSOR]),
    "average_of_a_rank": ("replicas", "weights", [1], EVERY),
    "first_moment": ("exp_avg", "moments", [1], [TENSOR]),
    "second_moments_lost": ("exp_avg_sq", "moments", [0, 1], EVERY),
    "dropped": ("reduce", "grad_reduced", [1], [TENSOR]),
    "lost": ("reduce", "grad_reduced", [1], [TENSOR]),
    "dropped_clipping": ("reduce", "grad_reduced", [1], [TENSOR]),
    "all_doubled": ("reduce", "grad_reduced", [0, 1], EVERY),
    "nan": ("finite", "grad_reduced", [1], [TENSOR]),
    "gradient_none": ("present", "grad_reduced", [1], [TENSOR]),
}
# What statistics do not see: found with checks alone.
UNSEEN = {
    "cancelling": ("reduce", "grad_reduced", [0, 1], [TENSOR]),
    "zero_sum": ("reduce", "grad_reduced", [0, 1], [TENSOR]),
}
# By its bits; which of two ranks is wrong cannot be told.
BITS = {
    "gradient_bit_0": ("replicas", "grad_reduced", [0, 1], [TENSOR]),
    "rate_of_a_rank": ("config", "update", [0, 1], EVERY),
}
CHECKED = "checked_"
CHECKED_FAULTS = {CHECKED + name: place for name, place in (FAULTS | UNSEEN | BITS).items()}
HARMLESS = (
    "clean", "clipping", "accumulation", "accumulation_no_sync_clipping", "autocast",
    "warm_up_and_cosine", "step_schedule", "sgd", "sgd_momentum_clipping", "announced_edit",
    "ignored_by_ddp", "head_outside_ddp", "groups_that_move",
    "clipping_by_value", "clipped_in_groups", "checkpoint", "loaded_state",
)  # fmt: skip
NOTICED = ("lr", "doubled_in_every_step")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("diagnose")
    names = [*FAULTS, *HARMLESS, *NOTICED, *UNSEEN, *CHECKED_FAULTS]
    checked = [CHECKED + name for name in HARMLESS]
    launch.run("diagnose_run.py", out, *names, *checked, ranks=2)
    assert (out / "done.json").exists()
    return out


def diagnosed(run, *more):
    done = subprocess.run(
        [launch.command_line(), "diagnose", os.fspath(run), *more],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "checked" in done.stdout, done.stderr
    return done


@pytest.mark.parametrize("name", [*FAULTS, *CHECKED_FAULTS])
def test_a_fault_is_placed(runs, name):
    check, stage, ranks, tensors = (FAULTS | CHECKED_FAULTS)[name]
    done = diagnosed(runs / name, "--json")
    verdict = json.loads(done.stdout)["verdict"]
    assert done.returncode == 1
    assert (verdict["check"], verdict["stage"], verdict["step"]) == (check, stage, STEP), verdict
    assert verdict["certain"] and sorted(verdict["tensors"]) == sorted(tensors), verdict
    assert verdict["ranks"] == ranks, verdict
    text = diagnosed(runs / name).stdout
    assert text.startswith(f"first wrong: step {STEP}, {stage}")
    assert verdict["evidence"] == evidence_for(check, name.startswith(CHECKED))
    if check not in ("finite", "present", "config"):
        assert f", by {verdict['evidence']}" in text


def test_only_what_follows_may_be_a_consequence(runs):
    """What is of the step of the verdict stands apart, as on the page."""
    heads = {"also at this step:": "here", "then, perhaps because of it:": "later"}
    seen = {"here": 0, "later": 0}
    for name in (*FAULTS, *CHECKED_FAULTS):
        under = None
        for line in diagnosed(runs / name).stdout.splitlines():
            if not line.startswith("  "):
                under = heads.get(line)
            elif under and (place := re.match(r"  step (\d+),", line)):
                assert (int(place[1]) == STEP) == (under == "here"), (name, line)
                seen[under] += 1
    assert all(seen.values()), seen


def evidence_for(check, has_checks):
    if not has_checks or check in ("finite", "present", "exp_avg_sq", "config"):
        return "statistics"
    return "fingerprints" if check in ("gap", "replicas") else "sketches"


@pytest.mark.parametrize("name", UNSEEN)
def test_statistics_alone_do_not_see_it(runs, name):
    assert json.loads(diagnosed(runs / name, "--json").stdout)["verdict"] is None


def test_what_needs_checks_takes_one_line(tmp_path):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.watch(model, optimizer, out=tmp_path):
        for _ in range(3):
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
    lines = diagnosed(tmp_path).stdout.splitlines()
    (line,) = [line for line in lines if "checks=True" in line]
    named = line.removeprefix("not checked: ").split(": ")[0].split(", ")
    assert {"start", "gap", "update", "fingerprints and sketches"} <= set(named)
    assert "exp_avg" not in named  # which SGD does not have
    assert len([line for line in lines if line.startswith("not checked")]) == 3


@pytest.mark.parametrize("name", [*HARMLESS, *(CHECKED + name for name in HARMLESS)])
def test_what_is_harmless_is_no_fault(runs, name):
    done = diagnosed(runs / name, "--json")
    answer = json.loads(done.stdout)
    assert answer["verdict"] is None and answer["findings"] == [] and done.returncode == 0, answer
    assert answer["left_history"] is None, answer["left_history"]
    has_checks = name.startswith(CHECKED)
    name = name.removeprefix(CHECKED)
    made = answer["checked"]
    for check in ("gap", "replicas", "reduce", "exp_avg", "exp_avg_sq", "update"):
        if check not in made:
            continue
        by = answer["evidence"][check]
        assert sum(by.values()) == made[check]
        if check == "update":  # weights that had to move, and equations
            assert set(by) <= ({"fingerprints", "sketches"} if has_checks else {"statistics"})
        else:
            assert set(by) == {evidence_for(check, has_checks)}, (check, by)
    unchecked = [one for one in answer["not_checked"] if "fingerprints" in one["check"]]
    assert bool(unchecked) != has_checks
    edits = [one["why"] for one in answer["not_checked"] if one["check"].startswith("gap, ")]
    assert bool(edits) == (name in ("announced_edit", "checkpoint", "loaded_state"))
    assert all(f"after step {STEP - 1} (ranks 0-1)" in why for why in edits), edits
    steps, tensors, ranks = 24, len(EVERY), 2
    # Where an edit was announced, weights are not held against the step before.
    edited = 1 if name in ("announced_edit", "checkpoint", "loaded_state") else 0
    assert made["gap"] == (steps - 1 - edited) * tensors * ranks
    if name == "clipping_by_value":  # those whose largest element is the limit are left out
        assert 0 < made["reduce"] < steps * tensors * ranks
    else:
        # A norm is round by itself now and then.
        reduced = tensors - 2 if name in ("ignored_by_ddp", "head_outside_ddp") else tensors
        assert 0.9 * steps * reduced * ranks < made["reduce"] <= steps * reduced * ranks
    assert made["zero"] == steps * tensors * ranks
    if name.startswith("sgd"):
        assert made["update"] == steps * tensors * ranks
    else:
        assert made["exp_avg"] == made["exp_avg_sq"] == (steps - 1 - edited) * tensors * ranks


def test_what_may_be_meant_is_noticed_and_no_verdict(runs):
    for name, check, step in (("lr", "config", STEP), ("doubled_in_every_step", "reduce", 0)):
        done = diagnosed(runs / name, "--json")
        answer = json.loads(done.stdout)
        assert answer["verdict"] is None and done.returncode == 0, answer
        (one,) = answer["findings"]
        assert (one["check"], one["step"], one["certain"]) == (check, step, False), one
        assert one["ranks"] == [0, 1]
        done = diagnosed(runs / name)
        text = done.stdout
        assert (
            text.startswith("nothing certainly wrong in ") and "noticed, and perhaps meant" in text
        )
        # Where no line left its history, the command leads to what was noticed.
        if not answer["left_history"]:
            words = "--declared " if check == "config" else ""
            steps = f"--steps {max(0, step - 1)}:{step}"
            assert f"next: trainmon show {runs / name} {words}{steps}\n" in done.stderr


def test_text_says_what_to_do_next(runs):
    done = diagnosed(runs / "dropped")
    assert "off by" in done.stdout and "rounding explains" in done.stdout
    assert "check reduce, certain" in done.stdout and f"rank 1, {TENSOR}" in done.stdout
    assert f"--name {TENSOR} --steps 14:15" in done.stderr
    clean = diagnosed(runs / "clean")
    assert clean.stdout.startswith("nothing certainly wrong in ")


LIVE = """
import sys, time, torch, trainmon
torch.manual_seed(1)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.AdamW(model.parameters())
with trainmon.watch(model, optimizer, out=sys.argv[1], checks=True, flush_seconds=0.1):
    for step in range(int(sys.argv[2])):
        if step == int(sys.argv[3]):
            model.weight.data[0, 0] += 1e-3
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        time.sleep(0.02)
"""


@pytest.mark.parametrize("fault, code", [(40, 1), (-1, 0)])
def test_follow_ends_with_a_verdict_or_with_the_run(fault, code, tmp_path):
    run = tmp_path / "run"
    steps = 2_000 if fault >= 0 else 60
    script = [sys.executable, "-c", LIVE, str(run), str(steps), str(fault)]
    with subprocess.Popen(script, stderr=subprocess.DEVNULL) as training:
        try:
            while not list(run.rglob("run.json")):
                assert training.poll() is None
                time.sleep(0.05)
            done = diagnosed(run, "-f", "--interval", "0.1", "--json")
            if fault >= 0:
                assert training.poll() is None
            else:
                assert training.wait(60) == 0
        finally:
            training.kill()
    assert done.returncode == code
    verdict = json.loads(done.stdout)["verdict"]
    found = (verdict["check"], verdict["step"]) if verdict else None
    assert found == (("gap", fault) if fault >= 0 else None)


def test_of_two_ranks_that_differ_one_is_wrong(runs):
    run = runs / (CHECKED + "gradient_bit_0")
    assert json.loads(diagnosed(run, "--json").stdout)["verdict"]["one_of_ranks"]
    assert f"grad_reduced, rank 0 or 1, {TENSOR}" in diagnosed(run).stdout


def test_what_was_noticed_before_is_no_consequence(tmp_path):
    """Two equal layers from the start, then a changed weight."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 6))
    model[2].load_state_dict(model[0].state_dict())
    optimizer = torch.optim.AdamW(model.parameters())
    with trainmon.watch(model, optimizer, checks=True, out=str(tmp_path)):
        for step in range(6):
            if step == 4:
                model[0].weight.data[0, 0] += 1e-3
            optimizer.zero_grad()
            model(torch.randn(3, 6)).pow(2).mean().backward()
            optimizer.step()
    text = diagnosed(tmp_path).stdout
    assert text.startswith("first wrong: step 4, weights, rank 0, 0.weight")
    assert "because of it" not in text
    assert "noticed, and perhaps meant:\n  step 0, start, rank 0, " in text


def test_a_parameter_that_its_optimizer_lost_is_noticed(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    with trainmon.watch(model, optimizer, checks=True, out=str(tmp_path)):
        for step in range(8):
            if step == 5:
                weight = model[0].weight.detach().clone()
                model[0].weight = torch.nn.Parameter(weight)
            optimizer.zero_grad()
            model(torch.randn(3, 6)).pow(2).mean().backward()
            optimizer.step()
    answer = trainmon.diagnose(str(tmp_path))
    (noticed,) = answer["findings"]
    assert (noticed["check"], noticed["step"], noticed["certain"]) == ("present", 5, False)
    assert noticed["tensors"] == ["0.weight"]
    unrecorded = [one for one in answer["not_checked"] if one["check"] == "what was not recorded"]
    assert any("parameters replaced after watch()" in one["why"] for one in unrecorded)


@pytest.mark.parametrize("what", ["module", "parameter", "swapped", "removed", "unknown"])
def test_what_is_replaced_begins_anew(what, tmp_path):
    """Neither its weights nor its moments are held against those of what had the name before."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(3)))
    optimizer = torch.optim.AdamW(model.parameters())
    with trainmon.watch(model, optimizer, checks=True, out=str(tmp_path)):
        for step in range(12):
            if step == 6 and what == "swapped":
                model[0], model[1] = model[1], model[0]
            elif step == 6 and what == "parameter":
                model[1].weight = torch.nn.Parameter(torch.randn(6, 6))
            elif step == 6:
                model[1] = torch.nn.Identity() if what == "removed" else torch.nn.Linear(6, 6)
            if step == 6 and what != "unknown":
                optimizer.param_groups[0]["params"] = list(model.parameters())
            optimizer.zero_grad()
            model(torch.randn(3, 6)).pow(2).mean().backward()
            optimizer.step()
    answer = trainmon.diagnose(str(tmp_path))
    assert answer["verdict"] is None and not any(one["certain"] for one in answer["findings"])
    assert [one["check"] for one in answer["findings"]] == ["present"] * (what == "unknown")
    assert answer["checked"]["gap"] > 50 and answer["checked"]["update"] > 50


def test_layers_that_are_copies_of_one_are_noticed(tmp_path):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters())
    with trainmon.watch(model, optimizer, checks=True, out=str(tmp_path)):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(3, 4, 8)).pow(2).mean().backward()
            optimizer.step()
    answer = trainmon.diagnose(str(tmp_path))
    assert answer["verdict"] is None
    drawn = ("self_attn.in_proj_weight", "self_attn.out_proj.weight") + tuple(
        f"linear{i}.{what}" for i in (1, 2) for what in ("weight", "bias")
    )
    (noticed,) = answer["findings"]
    assert (noticed["check"], noticed["step"], noticed["certain"]) == ("start", 0, False)
    assert set(noticed["tensors"]) == {f"layers.{i}.{name}" for i in (0, 1) for name in drawn}
