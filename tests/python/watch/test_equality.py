# The equality table, torch's own wrappers: the same model gives the same rows, whatever wraps it.
import copy
import functools
import json
import types

import pytest
import torch
from torch import nn

import equality_compare
import equality_gpt as gpt
import equality_oracle
import launch
import trainmon
import versions
from equality_torch_run import TENSOR_RANKS
from trainmon.torch.wrappers import fsdp1

BF16 = {"compute": torch.bfloat16}
# From 2.15 on FSDP2 adds up micro steps in the dtype of the original parameters.
FSDP2_BF16 = {**BF16, "accumulate": torch.float32} if versions.TORCH >= (2, 15) else BF16
# name -> (title, ranks, precision, what the oracle does)
ROWS = {
    "plain": ("plain", 1, "fp32", {"data_ranks": 1}),
    "ddp": ("DDP", 2, "fp32", {}),
    "fsdp2": ("FSDP2", 2, "fp32", {}),
    "fsdp2_bf16": ("FSDP2, bf16 policy", 2, "bf16", FSDP2_BF16),
    "fsdp1": ("FSDP1, use_orig_params", 2, "fp32", {}),
    "fsdp1_flat": ("FSDP1, flat parameters", 2, "fp32", {}),
    "fsdp1_grad_op": ("FSDP1 SHARD_GRAD_OP, use_orig_params", 2, "fp32", {}),
    "fsdp1_grad_op_flat": ("FSDP1 SHARD_GRAD_OP, flat parameters", 2, "fp32", {}),
    "fsdp1_no_shard": ("FSDP1 NO_SHARD, use_orig_params", 2, "fp32", {}),
    "fsdp1_no_shard_flat": ("FSDP1 NO_SHARD, flat parameters", 2, "fp32", {}),
    "fsdp1_bf16": ("FSDP1, bf16 policy, use_orig_params", 2, "bf16", BF16),
    "fsdp1_bf16_flat": ("FSDP1, bf16 policy, flat parameters", 2, "bf16", BF16),
    "fsdp1_hybrid": ("FSDP1 HYBRID_SHARD 2 x 2, use_orig_params", 4, "fp32", {"data_ranks": 4}),
    "fsdp1_hybrid_flat": (
        "FSDP1 HYBRID_SHARD 2 x 2, flat parameters",
        4,
        "fp32",
        {"data_ranks": 4},
    ),
    "fsdp2_hybrid": ("FSDP2, replicated and sharded 2 x 2", 4, "fp32", {"data_ranks": 4}),
    "fsdp2_tensor_parallel": ("FSDP2 over tensor parallelism 2 x 2", 4, "fp32", {}),
    "zero_redundancy": ("DDP, ZeroRedundancyOptimizer", 2, "fp32", {}),
    "tensor_parallel": ("DTensor tensor parallel", 2, "fp32", {"data_ranks": 1}),
}


@functools.cache
def _oracle(options):
    return equality_oracle.train(**dict(options))


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """row -> folder with a bare and a watched training; those of so many ranks are one start."""
    rows = launch.chosen_rows(request)

    @functools.cache
    def all_of(ranks):
        folder = tmp_path_factory.mktemp("rows")
        those = ",".join(row for row in rows if ROWS[row][1] == ranks)
        launch.run("equality_torch_run.py", folder, those, "both", ranks=ranks, timeout=600)
        return folder

    return lambda row: all_of(ROWS[row][1]) / row


@pytest.mark.parametrize("row", versions.marked(ROWS))
def test_rows_equal_those_of_the_oracle_and_training_is_untouched(row, trained):
    title, ranks, precision, options = ROWS[row]
    folder = trained(row)
    for rank in range(ranks):
        watched, bare = (torch.load(folder / f"{how}.{rank}.pt") for how in ("watched", "bare"))
        for what in ("losses", "final"):
            pairs = list(zip(watched[what], bare[what], strict=True))
            assert pairs and all(torch.equal(a, b) for a, b in pairs), what
        health = json.loads((folder / f"health.{rank}.json").read_text())
        assert health["parts_off"] == {} and health["errors"] == 0, health
        assert health["refused"] == {}, health
    expected = _oracle(tuple(options.items()))
    data_ranks = options.get("data_ranks", gpt.RANKS)
    if data_ranks == 1:  # nothing is reduced: every row is that of the whole run
        expected = {(*key[:-1], -1): value for key, value in expected.items()}
    tensor_ranks = TENSOR_RANKS if row == "fsdp2_tensor_parallel" else 1
    result = equality_compare.compare(
        folder / "run", expected, row, title, precision, tensor_ranks=tensor_ranks
    )
    cells = result["cells"].values()
    assert [c["compared"] for c in cells] == [29] * len(gpt.KINDS)
    assert sum(c["rows"] for c in cells) == 29 * gpt.STEPS * (5 + data_ranks * gpt.MICRO_STEPS)


def test_the_comparison_sees_every_planted_difference(tmp_path):
    launch.run("equality_torch_run.py", tmp_path, "plain", "watched", timeout=300)
    exact = {(*k[:-1], -1): v for k, v in _oracle((("data_ranks", 1),)).items()}

    def fails(expected, message):
        with pytest.raises(AssertionError, match=message):
            equality_compare.compare(tmp_path / "plain/run", expected, "planted", "planted")

    key = ("exp_avg_sq", "blocks.1.down.bias", 2, -1, -1)
    for statistic in equality_oracle.STATISTICS:
        wrong = copy.deepcopy(exact)
        wrong[key][statistic] += 1 if statistic == "count" else 0.1 * (wrong[key]["absmax"] + 1)
        fails(wrong, "down.bias")
    fails({**exact, ("grad_reduced", "no.such", 0, -1, -1): exact[key]}, "no row")
    fails({k: v for k, v in exact.items() if k != key}, "a row too many")
    assert not (equality_compare.FOLDER / "planted.json").exists()


def test_an_fsdp1_whose_attributes_moved_is_said_not_to_be_covered(tmp_path, monkeypatch):
    """Gradients, weights and moments are given up, by name; activations are there."""

    class Other(nn.Sequential):
        _handle = types.SimpleNamespace(
            flat_param=types.SimpleNamespace(_param_infos=()), _use_orig_params=False
        )

        @staticmethod
        def fsdp_modules(root):
            return [root]

    monkeypatch.setattr(fsdp1, "fsdp1_type", lambda: Other)
    model = Other(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trainmon.watch(model, optimizer, kinds=["grads", "actv"], out=str(tmp_path / "run"))
    for _ in range(2):
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.stop()
    assert monitor.health()["parts_off"] == {}
    said = json.loads(next((tmp_path / "run").glob("rank_*/restart_*/run.json")).read_text())
    assert "_numels_with_padding" in json.dumps(said["not_covered"])
    assert set(trainmon.read_table(str(tmp_path / "run"), stats=["norm"])["kind"]) == {"actv"}
