# Promise 4: the set of rows and every value equal what an independent plain-torch oracle finds.
import collections
import functools
import json

import numpy as np
import pytest
import torch

import launch
import oracle_model
import oracle_stats
import trainmon
import versions

KEY = ("kind", "name", "element", "step", "micro_step", "call")
PER_PARAMETER = {"grad_reduced", "param_origin", "param_updated", "exp_avg", "exp_avg_sq"}
MODES = ["single", "ddp", "ddp views", "fsdp2"]
MARKS = {"d": [versions.ddp_of_oracle], "f": [versions.fsdp2]}
MARKED = [pytest.param(mode, marks=MARKS.get(mode[0], [])) for mode in MODES]


@functools.cache
def runs(mode, folder):
    """Launches the oracle and the watched training; both must have trained the same bits."""
    ranks = 1 if mode == "single" else 2
    launch.run("oracle_run.py", folder, *mode.split(), ranks=ranks)
    launch.run("values_run.py", folder, *mode.split(), ranks=ranks)
    oracles = [torch.load(folder / f"oracle.{rank}.pt") for rank in range(ranks)]
    for rank, oracle in enumerate(oracles):
        watched = torch.load(folder / f"watched.{rank}.pt")
        for what in ("losses", "final"):
            pairs = list(zip(oracle[what], watched[what], strict=True))
            assert pairs and all(torch.equal(a, b) for a, b in pairs), what
        health = json.loads((folder / f"health.{rank}.json").read_text())
        assert health["parts_off"] == {} and health["errors"] == 0 and health["refused"] == {}
    return [oracle["rows"] for oracle in oracles]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {mode: tmp_path_factory.mktemp(mode) for mode in MODES}


def expected_per_rank(rows):
    """(rank, key) -> the tensor this rank holds."""
    return {(rank, row[:6]): row[6] for rank, mine in enumerate(rows) for row in mine}


def expected_merged(mode, rows):
    """(rank, key) -> tensor: -1 for what ranks share; unreduced gradients stay per rank."""
    found, parts = {}, collections.defaultdict(list)
    for rank, mine in enumerate(rows):
        for row in mine:
            kind, key, here, whole = row[0], row[:6], row[6], row[7]
            if mode == "single":
                found[-1, key] = here
            elif kind == "grad_unreduced":
                found[rank, key] = here
            elif kind in PER_PARAMETER:
                if whole is None and (-1, key) in found:
                    assert torch.equal(found[-1, key], here), "replicas differ"
                found[-1, key] = here if whole is None else whole
            else:
                parts[key].append(here.reshape(-1))
    found.update({(-1, key): torch.cat(pieces) for key, pieces in parts.items()})
    return found


def recorded(folder, merged):
    """(rank, key) -> statistics by name."""
    table = trainmon.read_table(str(folder / "run"), merged=merged, stats=list(oracle_stats.NAMES))
    columns = [table[c].tolist() for c in ("rank", *KEY)]
    keys = [
        (int(rank), (k, n, e, int(s), int(m), int(c))) for rank, k, n, e, s, m, c in zip(*columns)
    ]
    assert len(set(keys)) == len(keys), "a row occurs twice"
    values = np.column_stack([np.asarray(table[s], float) for s in oracle_stats.NAMES])
    return dict(zip(keys, (dict(zip(oracle_stats.NAMES, row)) for row in values)))


def compare(expected, got):
    missing, extra = sorted(expected.keys() - got.keys()), sorted(got.keys() - expected.keys())
    assert not missing and not extra, (
        f"{len(missing)} rows missing, first {missing[:8]};"
        f" {len(extra)} too many, first {extra[:8]}"
    )
    wrong = []
    for key, tensor in expected.items():
        exact = oracle_stats.of(tensor)
        wrong += [
            (key, name, exact[name], got[key][name])
            for name in oracle_stats.NAMES
            if not oracle_stats.close(name, exact, got[key][name])
        ]
    assert not wrong, f"{len(wrong)} values differ, first {wrong[:8]}"


@pytest.mark.parametrize("mode", MARKED)
def test_rows_and_values_of_every_rank(mode, folders):
    rows = runs(mode, folders[mode])
    compare(expected_per_rank(rows), recorded(folders[mode], merged=False))


@pytest.mark.parametrize("mode", MARKED)
def test_rows_and_values_merged_over_ranks(mode, folders):
    rows = runs(mode, folders[mode])
    compare(expected_merged(mode, rows), recorded(folders[mode], merged=True))


@pytest.mark.parametrize("mode", MARKED)
def test_the_oracle_meets_every_trap(mode, folders):
    """An oracle that never met the hard cases would prove little."""
    rows = runs(mode, folders[mode])
    keys = [{row[:6] for row in mine} for mine in rows]
    for mine in keys:
        steps = {s for k, n, _, s, *_ in mine if (k, n) == ("grad_reduced", "extra.weight")}
        assert 1 not in steps and {0, 2, 3, 5} <= steps
        assert {c for k, n, *_, c in mine if (k, n) == ("actv", "norm")} == {0, 1, 2}
        assert not any("grad" in k and n == "places.weight" for k, n, *_ in mine)
        assert not any(n == "head.weight" for _, n, *_ in mine)
    if mode.startswith("ddp"):  # reduced on both ranks, seen before reduction on one
        key = ("grad_unreduced", "extra.weight", "", 4, 1, 0)
        assert [key in mine for mine in keys] == [True, False]
        assert all(("grad_reduced", "extra.weight", "", 4, 1, 0) in mine for mine in keys)
    if mode == "fsdp2":
        sizes = {row[1]: row[6].numel() for row in rows[1] if row[0] == "param_origin"}
        assert sizes["mix.gate.weight"] == 0 and sizes["odd.weight"] == 2 * oracle_model.WIDTH


def test_the_comparison_sees_a_planted_difference():
    tensor = torch.linspace(-1, 2, 1000)
    key = (0, ("actv", "a", "output", 0, 0, 0))
    exact = oracle_stats.of(tensor)
    compare({key: tensor}, {key: exact})
    for name in oracle_stats.NAMES:
        wrong = {**exact, name: (exact[name] + 1e-9) * (1 + 3e-6)}
        with pytest.raises(AssertionError, match="values differ"):
            compare({key: tensor}, {key: wrong})
    with pytest.raises(AssertionError, match="1 rows missing"):
        compare({key: tensor}, {})
    with pytest.raises(AssertionError, match="1 too many"):
        compare({}, {key: exact})
