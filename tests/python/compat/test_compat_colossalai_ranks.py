# ColossalAIMonitor on two ranks: before and after reduction, sharded, merged, in one pair of files.
import numpy as np
import pytest
import torch

import compat_colossalai_case as case
import launch

STEPS = 3
CASES = ["ddp", "accumulated", "zero1", "fsdp2", "fsdp2_zero2", "fsdp2_merged", "tp", "tp_merged", "pp",
         "not_reduced"]  # fmt: skip
REDUCED_IN_FULL = ["ddp", "accumulated", "zero1", "fsdp2_merged", "tp_merged"]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("colossalai")
    return folder, launch.run("compat_colossalai_run.py", folder, ranks=2, timeout=200)


@pytest.fixture(scope="module")
def out(ended):
    return ended[0]


def read(out, name):
    return [case.rows(out / name / f"grad_stats_{which}.csv") for which in ("local", "global")]


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_gradients_torch_shows(name, out):
    local, reduced = read(out, name)
    for rank in (0, 1):
        seen = torch.load(out / f"{name}.{rank}.pt")
        assert {step for step, *_ in seen["global"]} == set(range(STEPS))
        # FSDP2's are compared with a model that is not sharded.
        case.assert_rows(local, seen["local"], rank, rtol=1e-6 if "fsdp2" in name else 1e-12)
        case.assert_rows(reduced, seen["global"], rank)


@pytest.mark.parametrize("name", CASES)
def test_local_differs_and_global_is_the_same_on_all_ranks(name, out):
    local, reduced = read(out, name)
    differ, same = differences(local), differences(reduced)
    if name not in ("tp", "tp_merged"):  # there a rank's part is all there is, and one is in full
        assert all(differ.values())
    if name in REDUCED_IN_FULL:
        assert same and not any(same.values())
    elif name in ("fsdp2", "fsdp2_zero2", "pp", "not_reduced"):
        assert all(same.values())


def differences(rows):
    """(step, name) -> whether the ranks disagree; names that both have."""
    by_rank = [{(r[0], r[2]): r[3] for r in rows if r[1] == rank} for rank in (0, 1)]
    return {key: by_rank[0][key] != by_rank[1][key] for key in by_rank[0] if key in by_rank[1]}


def test_the_reduced_mean_is_the_mean_of_the_local_ones(out):
    for name in ("ddp", "zero1", "fsdp2_merged"):
        local, reduced = read(out, name)
        for step, _, parameter, values in reduced:
            alone = [r[3] for r in local if (r[0], r[2]) == (step, parameter)]
            assert len(alone) == 2
            scale = max(values["norm"] for values in alone)
            wanted = np.mean([values["mean"] for values in alone])
            assert values["mean"] == pytest.approx(wanted, rel=1e-6, abs=1e-6 * scale)


def test_a_rank_without_a_gradient_is_not_waited_for(out):
    """What is merged is what there is, and every rank writes of what it has a part."""
    _, reduced = read(out, "tp_absent")
    seen = {
        rank: {(step, name): tensor for step, name, tensor in both["global"]}
        for rank, both in ((r, torch.load(out / f"tp_absent.{r}.pt")) for r in (0, 1))
    }
    assert (0, "up.weight") in seen[0] and (0, "up.weight") not in seen[1]
    assert len(reduced) == (4 + 3) * STEPS
    for step, _, name, values in reduced:
        parts = [seen[rank][step, name] for rank in (0, 1) if (step, name) in seen[rank]]
        is_part = name in ("up.weight", "up.bias", "down.weight")
        case.assert_is(values, torch.cat([p.ravel() for p in parts]) if is_part else parts[0])


def test_every_backward_has_its_local_rows(out):
    local, reduced = read(out, "accumulated")
    assert len(local) == 3 * len([r for r in reduced if "unused" not in r[2]])
    assert len({(r[0], r[1], r[2]) for r in reduced}) == len(reduced)


def test_names_and_unused_parameters(out):
    local, reduced = read(out, "ddp")
    used = {f"module.{m}.{p}" for m in ("up", "down") for p in ("weight", "bias")}
    assert {r[2] for r in local} == used
    assert used <= {r[2] for r in reduced}


def test_what_the_mode_contradicts_is_said(ended):
    said = ended[1][0].err
    assert said.count("parameters are sharded") == 3  # not where they are merged
    assert said.count("nothing in the model reduces gradients") == 1
    assert "sharded" not in ended[1][1].err
