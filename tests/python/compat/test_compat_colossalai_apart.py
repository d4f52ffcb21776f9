# ColossalAIMonitor that merges shards, on ranks of which one skips a step, stops, never begins or
# comes no more: training ends as it should, and every row is the whole's or the part's, by torch's
# gradients.
import pytest
import torch

import compat_colossalai_case as case
import launch

STEPS = 6


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("apart")
    return folder, launch.run("compat_colossalai_apart_run.py", folder, ranks=2, timeout=120)


def kinds(folder, name, rank, skipped=None):
    """step -> "whole" or "part": what the rank's global rows are. All of them must be one."""
    _, reduced = case.read(folder / name)
    seen = {}
    for step, key, part, whole in torch.load(folder / f"{name}.{rank}.pt"):
        # After the step that was not declared, numbers are one less; its gradients come first.
        declared = step - (skipped is not None and step > skipped)
        seen.setdefault((declared, key), []).append((part, whole))
    found = {}
    for step, _, key, values in (r for r in reduced if r[1] == rank):
        part, whole = seen[step, key].pop(0)
        if skipped == step:
            continue  # two optimizer steps in one
        is_whole = abs(values["norm"] - whole.double().norm().item()) < 1e-6
        case.assert_is(values, whole if is_whole else part)
        assert not torch.equal(part, whole)
        assert found.setdefault(step, is_whole) == is_whole
    return {step: "whole" if is_whole else "part" for step, is_whole in found.items()}


def test_together_all_is_merged(ended):
    folder, _ = ended
    for rank in (0, 1):
        assert kinds(folder, "together", rank) == dict.fromkeys(range(STEPS), "whole")


def test_a_rank_that_stops_leaves_the_others_their_parts(ended):
    folder, _ = ended
    assert kinds(folder, "stops", 1) == dict.fromkeys(range(3), "whole")
    alone = kinds(folder, "stops", 0)
    assert alone == {step: "whole" if step < 3 else "part" for step in range(STEPS)}


def test_a_rank_that_skips_a_step_ends_the_merging(ended):
    """What is of different steps is not merged."""
    folder, _ = ended
    alone = kinds(folder, "skips", 0)
    assert alone == {step: "whole" if step < 2 else "part" for step in range(STEPS)}


def test_a_rank_that_never_begins_is_not_waited_for_long(ended):
    folder, _ = ended
    assert kinds(folder, "absent", 0) == dict.fromkeys(range(STEPS), "part")


def test_a_process_ends_though_another_rank_comes_no_more(ended):
    """Rank 1 waits for the end of rank 0 here."""
    folder, (first, second) = ended
    alone = kinds(folder, "behind", 0)
    assert alone == {step: "whole" if step < 2 else "part" for step in range(STEPS)}
    assert "other ranks had not ended their steps when this one stopped" in first.err
    assert second.code == 0


def test_it_is_said_and_counted(ended):
    _, (first, second) = ended
    assert first.err.count("are not merged from now on") == 4
    assert "rank 1 has stopped its monitor" in first.err
    assert "rank 1 ended 3 steps with 4 of its optimizers, this rank 3 with 3" in first.err
    assert "ranks [1] did not come to monitor()" in first.err
    assert (
        "12 global rows of rank 0 are of its shards (rank 1 has stopped its monitor)" in first.err
    )
    assert "Traceback" not in first.err + second.err
