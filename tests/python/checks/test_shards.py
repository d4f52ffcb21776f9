"""The check `reduce` in trainings of two processes that hold shards of their gradients: what FSDP
makes of micro steps and dtypes is sound, and what a reduce-scatter loses is placed."""

from __future__ import annotations

import pytest

import launch
import trainmon
import versions

STEPS, FAULT_AT, LATE = 14, 9, 5  # as the program has them
TENSOR = "2.weight"
TENSORS = [f"{layer}.{name}" for layer in (0, 1, 2, 4) for name in ("bias", "weight")]
SOUND = (
    "fsdp2", "fsdp2_clip", "fsdp2_micro", "fsdp2_micro_once", "fsdp2_micro_once_late_clip",
    "fsdp2_bf16_micro", "fsdp2_wide_micro", "fsdp2_wide_micro_once",
    "fsdp1_clip", "fsdp1_micro_once", "fsdp1_flat_micro_late", "fsdp1_flat_wide_micro",
)  # fmt: skip
# name: ranks that evidence cannot tell apart, tensors
FAULTS = {
    "fsdp2_lost": ([1], [TENSOR]),
    "fsdp2_lost_clip": ([1], [TENSOR]),
    "fsdp2_lost_micro": ([1], [TENSOR]),
    "fsdp2_dropped_micro_once": ([1], TENSORS),
    "fsdp2_bit": ([0, 1], [TENSOR]),  # in the shard of one of them
    "fsdp1_flat_dropped": ([1], TENSORS),
}


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("shards")
    names = launch.chosen_rows(request)
    launch.run("shards_run.py", out, *names, ranks=2)
    assert (out / "done.json").exists()
    return {name: trainmon.diagnose(str(out / name)) for name in names}


@pytest.mark.parametrize("row", versions.marked(SOUND))
def test_shards_of_a_sound_training_add_up_to_the_mean(runs, row):
    assert runs[row]["verdict"] is None and runs[row]["findings"] == []
    # But for gradients that have a round number by chance.
    assert 0.9 * STEPS * len(TENSORS) < runs[row]["evidence"]["reduce"]["sketches"]
    assert runs[row]["checked"]["reduce"] <= STEPS * len(TENSORS)


@pytest.mark.parametrize("row", [pytest.param("tensor_clip", marks=versions.fsdp2)])
def test_moments_of_gradients_that_the_optimizer_adds_up_are_not_checked(runs, row):
    assert runs[row]["verdict"] is None and runs[row]["findings"] == []
    # Of all tensors but the weight and the bias of the LayerNorm.
    assert runs[row]["checked"]["exp_avg"] == 2 * (STEPS - 1) * (len(TENSORS) - 2)


@pytest.mark.parametrize("row", versions.marked(FAULTS))
def test_what_is_not_the_mean_is_the_verdict(runs, row):
    ranks, tensors = FAULTS[row]
    (finding,) = runs[row]["findings"]
    assert finding == runs[row]["verdict"]
    assert (finding["check"], finding["stage"]) == ("reduce", "grad_reduced")
    assert (finding["step"], finding["ranks"]) == (FAULT_AT, ranks)
    assert sorted(finding["tensors"]) == tensors and finding["certain"]


@pytest.mark.parametrize("row", versions.marked(["fsdp2_micro_pairs_late"]))
def test_micro_steps_that_are_reduced_in_groups_are_not_checked(runs, row):
    assert runs[row]["verdict"] is None and runs[row]["findings"] == []
    assert 0.9 * LATE * len(TENSORS) < runs[row]["checked"]["reduce"] <= LATE * len(TENSORS)


@pytest.mark.parametrize("row", versions.marked(["fsdp1_flat_narrow", "fsdp2_narrow"]))
def test_gradients_that_the_reduction_rounds_are_not_checked(runs, row):
    assert runs[row]["verdict"] is None and runs[row]["findings"] == []
    assert "reduce" not in runs[row]["checked"]
    (why,) = [x["why"] for x in runs[row]["not_checked"] if x["check"] == "reduce"]
    assert "reduce_dtype" in why
