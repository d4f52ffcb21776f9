"""Loops that reduce gradients by themselves: `diagnose` sees that they do, and names what is left out. What
ranks of one program rightly do otherwise is no verdict, and is noticed once at most."""

from __future__ import annotations

import pytest

import launch
import trainmon

BEGIN, TENSOR = 12, "2.weight"
EVERY = [f"{layer}.{name}" for layer in (0, 2, 3, 4) for name in ("weight", "bias")]
BY_HAND = {"reduce", "replicas"}  # what is said of ranks that reduce by hand
# name: check, stage, step, ranks that evidence cannot tell apart, tensors, a part of the text
FAULTS = {
    "forgets": ("reduce", "grad_reduced", 0, [0, 1], [TENSOR], "is not reduced over ranks"),
    "forgets_from_12": ("reduce", "grad_reduced", BEGIN, [0, 1], [TENSOR], "as it was in"),
    "forgets_a_bias": ("reduce", "grad_reduced", 0, [0, 1], ["2.bias"], "is not reduced"),
    "leaves_out": ("reduce", "grad_reduced", BEGIN, [1], [TENSOR], "as it was in"),
    "undivided": ("reduce", "grad_reduced", 0, [0, 1], [TENSOR], "is not the mean"),
    "undivided_from_12": ("reduce", "grad_reduced", BEGIN, [0, 1], [TENSOR], "is not the mean"),
    "rate_of_a_rank": ("replicas", "update", BEGIN, [0, 1], EVERY, "param_updated differs"),
}
# name: checks that may say something, once
LEGITIMATE = {
    "by_hand": set(), "clipped": set(), "accumulated": set(), "sum": {"reduce"}, "rate_of_a_layer": {"reduce"},
    "local_sgd": {"gap"}, "local_sgd_later": {"reduce", "gap"}, "reduced_in_turn": {"reduce"}, "own": set(),
    "one_seed": {"input"}, "one_seed_rate": {"config"}, "one_seed_head": set(), "own_head": {"reduce"},
    "experts": set(), "server": {"gap"}, "gan": set(), "tensor_parallel": set(), "tensor_parallel_seeds": set(),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("by_hand")
    launch.run("by_hand_run.py", out, *FAULTS, *LEGITIMATE, ranks=2)
    assert (out / "done.json").exists()
    return out


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_loop_leaves_out_is_noticed(name, runs):
    check, stage, step, ranks, tensors, text = FAULTS[name]
    answer = trainmon.diagnose(str(runs / name))
    assert answer["verdict"] is None
    (one,) = answer["findings"]
    assert (one["check"], one["stage"], one["step"]) == (check, stage, step), one
    assert (one["ranks"], sorted(one["tensors"])) == (ranks, sorted(tensors)), one
    assert text in one["text"] and "by hand" in one["text"], one
    assert answer["checked"]["reduce"] > 0 and answer["checked"]["replicas"] > 0


@pytest.mark.parametrize("name", LEGITIMATE)
def test_what_ranks_rightly_do_is_no_verdict(name, runs):
    answer = trainmon.diagnose(str(runs / name))
    assert answer["verdict"] is None, answer["verdict"]
    assert {one["check"] for one in answer["findings"]} <= LEGITIMATE[name], answer["findings"]
    said = [one for one in answer["findings"] if one["check"] in BY_HAND]
    assert len(said) <= 1, said


def test_shared_batches_are_noticed_and_hooks_that_may_reduce_leave_no_unreduced_gradient(tmp_path):
    launch.run("by_hand_run.py", tmp_path, "reduced_in_hooks", "shares_batches", ranks=2)
    (shared,) = trainmon.diagnose(str(tmp_path / "shares_batches"))["findings"]
    assert (shared["check"], shared["step"], shared["ranks"]) == ("input", BEGIN, [0, 1])
    assert not shared["certain"]
    answer = trainmon.diagnose(str(tmp_path / "reduced_in_hooks"))
    assert answer["findings"] == [] and "reduce" not in answer["checked"]
    assert "grad_unreduced" not in set(trainmon.read(str(tmp_path / "reduced_in_hooks")).kind)
    said = [one["why"] for one in answer["not_checked"] if "grad_unreduced" in one["why"]]
    assert any("hooks of parameters come before ours" in why for why in said), answer["not_checked"]


def test_of_three_ranks_the_one_that_leaves_out_is_named(tmp_path):
    launch.run("by_hand_run.py", tmp_path, "leaves_out", ranks=3)
    (one,) = trainmon.diagnose(str(tmp_path / "leaves_out"))["findings"]
    assert (one["step"], one["ranks"], one["tensors"]) == (BEGIN, [1], [TENSOR])
