"""`trainmon diagnose`: faults planted in real trainings of two processes are placed, and what is
harmless is not called a fault."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

import launch

STEP, TENSOR = 15, "2.weight"
EVERY = [f"{layer}.{name}" for layer in (0, 2, 4) for name in ("weight", "bias")]
# name: check, stage, ranks that evidence cannot tell apart, tensors
FAULTS = {
    "weight_bit_30": ("gap", "weights", [1], [TENSOR]),
    "weight_bit_0": ("gap", "weights", [1], [TENSOR]),
    "first_moment": ("exp_avg", "moments", [1], [TENSOR]),
    "second_moments_lost": ("exp_avg_sq", "moments", [0, 1], EVERY),
    "dropped": ("reduce", "grad_reduced", [1], [TENSOR]),
    "lost": ("reduce", "grad_reduced", [1], [TENSOR]),
    "dropped_clipping": ("reduce", "grad_reduced", [1], [TENSOR]),
    "all_doubled": ("reduce", "grad_reduced", [0, 1], EVERY),
    "nan": ("finite", "grad_reduced", [1], [TENSOR]),
}
HARMLESS = (
    "clean", "clipping", "accumulation", "accumulation_no_sync_clipping", "autocast",
    "warm_up_and_cosine", "step_schedule", "sgd", "sgd_momentum_clipping", "announced_edit",
    "clipping_by_value", "checkpoint", "loaded_state",
)  # fmt: skip
NOTICED = ("lr", "doubled_in_every_step")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("diagnose")
    launch.run("diagnose_run.py", out, *FAULTS, *HARMLESS, *NOTICED, ranks=2)
    assert (out / "done.json").exists()
    return out


def diagnosed(run, *more):
    done = subprocess.run(
        [launch.command_line(), "diagnose", os.fspath(run), *more],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "not_checked" in done.stdout or "not checked" in done.stdout, done.stderr
    return done


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_placed(runs, name):
    check, stage, ranks, tensors = FAULTS[name]
    done = diagnosed(runs / name, "--json")
    verdict = json.loads(done.stdout)["verdict"]
    assert done.returncode == 1
    assert (verdict["check"], verdict["stage"], verdict["step"]) == (check, stage, STEP), verdict
    assert verdict["certain"] and sorted(verdict["tensors"]) == sorted(tensors), verdict
    assert verdict["ranks"] == ranks, verdict
    text = diagnosed(runs / name).stdout
    assert text.startswith(f"first wrong: step {STEP}, {stage}")


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_harmless_is_no_fault(runs, name):
    done = diagnosed(runs / name, "--json")
    answer = json.loads(done.stdout)
    assert answer["verdict"] is None and answer["findings"] == [] and done.returncode == 0, answer
    made = answer["checked"]
    steps, tensors, ranks = 24, len(EVERY), 2
    # Where an edit was announced, weights are not held against the step before.
    edited = 1 if name in ("announced_edit", "checkpoint", "loaded_state") else 0
    assert made["gap"] == (steps - 1 - edited) * tensors * ranks
    if name == "clipping_by_value":  # those whose largest element is the limit are left out
        assert 0 < made["reduce"] < steps * tensors * ranks
    else:
        # A norm is round by itself now and then.
        assert 0.9 * steps * tensors * ranks < made["reduce"] <= steps * tensors * ranks
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
        text = diagnosed(runs / name).stdout
        assert (
            text.startswith("nothing certainly wrong in ") and "noticed, and perhaps meant" in text
        )


def test_text_says_what_to_do_next(runs):
    done = diagnosed(runs / "dropped")
    assert "off by" in done.stdout and "rounding explains" in done.stdout
    assert "check reduce, certain" in done.stdout and f"rank 1, {TENSOR}" in done.stdout
    assert f"--name {TENSOR} --steps 14:15" in done.stderr
    clean = diagnosed(runs / "clean")
    assert clean.stdout.startswith("nothing certainly wrong in ")
