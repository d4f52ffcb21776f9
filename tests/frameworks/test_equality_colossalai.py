# The equality table, ColossalAI: its DDP plugin and LowLevelZero give the rows of a training without it.
import csv
import functools
import json
import os
import pathlib
import socket

import pytest
import torch

import equality_compare
import equality_gpt as gpt
import equality_oracle
import launch

RUN = pathlib.Path(__file__).with_name("equality_colossalai_run.py")
# scripts/test_frameworks.sh names the environment that has ColossalAI, which needs one of its own.
PYTHON = os.environ.get("COLOSSALAI_PYTHON", ".venv-colossalai/bin/python")
# Each micro step is reduced, so nothing is added up before.
MICRO = {"each_micro": True, "reduce_each": True}
ZERO = {"plugin": "zero"}
BF16 = {"compute": torch.bfloat16, "begin": torch.bfloat16, **MICRO}
# name -> (title, what is run, precision, what the oracle does)
ROWS = {
    "colossalai_ddp": (
        "ColossalAI, TorchDDPPlugin", {"plugin": "ddp", "no_sync": True}, "fp32", {}),
    "colossalai_zero1": ("ColossalAI, LowLevelZero 1", {**ZERO, "stage": 1}, "fp32", MICRO),
    "colossalai_zero1_no_sync": (
        "ColossalAI, LowLevelZero 1, no_sync", {**ZERO, "stage": 1, "no_sync": True}, "fp32", {}),
    "colossalai_zero2": (
        "ColossalAI, LowLevelZero 2, clipped",
        {**ZERO, "stage": 2, "clip": 0.5, "given": "inner"}, "fp32", {"clip": 0.5, **MICRO}),
    "colossalai_zero2_bf16": (
        "ColossalAI, LowLevelZero 2, bf16", {**ZERO, "stage": 2, "precision": "bf16"}, "bf16", BF16),
}  # fmt: skip
STAGES = (0, 1, 2)  # of the manual's snippet; 0: its DDP plugin


@functools.cache
def _oracle(options):
    return equality_oracle.train(**dict(options))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Every training of this file, one after the other in one start. The folder has one for each."""
    folder = tmp_path_factory.mktemp("rows")
    cases = {row: [case, "bare", "watched"] for row, (_, case, *_) in ROWS.items()}
    for stage in STAGES:
        row = f"stage{stage}"
        case = {**ZERO, "stage": stage} if stage else {"plugin": "ddp"}
        cases[row] = [case, "bare", "face"]
        mode = f"zero{stage}" if stage == 1 else "dp"
        config = {"parallel_mode": mode, "output_dir": str(folder / row)}
        (folder / row).mkdir()
        (folder / row / "monitor_config.json").write_text(json.dumps(config))
    for row in ROWS:
        (folder / row).mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    launch.run(
        RUN, folder, json.dumps(cases),
        ranks=gpt.RANKS, timeout=900, environment=where, interpreter=os.path.abspath(PYTHON),
    )  # fmt: skip
    return folder


def _assert_untouched(folder, how):
    for rank in range(gpt.RANKS):
        watched, bare = (torch.load(folder / f"{h}.{rank}.pt") for h in (how, "bare"))
        for what in ("losses", "final"):
            pairs = list(zip(watched[what], bare[what], strict=True))
            assert pairs and all(torch.equal(a, b) for a, b in pairs), what


@pytest.mark.parametrize("row", ROWS)
def test_rows_equal_those_of_the_oracle_and_training_is_untouched(row, trained):
    title, _, precision, options = ROWS[row]
    folder = trained / row
    _assert_untouched(folder, "watched")
    expected = _oracle(tuple(options.items()))
    result = equality_compare.compare(folder / "run", expected, row, title, precision)
    cells = result["cells"].values()
    assert [c["compared"] for c in cells] == [29] * len(gpt.KINDS)
    assert sum(c["rows"] for c in cells) == 29 * gpt.STEPS * (5 + gpt.RANKS * gpt.MICRO_STEPS)


@pytest.mark.parametrize("stage", STAGES)
def test_the_manuals_snippet_under_the_real_plugins(stage, trained):
    """ColossalAIMonitor: local rows are what each backward gave, global ones the reduced gradient; of
    LowLevelZero those of the rank's part, whose squares add up."""
    folder = trained / f"stage{stage}"
    _assert_untouched(folder, "face")
    # DDP without no_sync() reduces at each backward what has been added up; so does the local value.
    expected = _oracle(tuple(MICRO.items()))
    found = {}
    for which in ("local", "global"):
        with open(folder / f"grad_stats_{which}.csv") as file:
            for row in csv.DictReader(file):
                name = row["param_name"].split("module.")[-1]
                key = which, int(row["step"]), int(row["rank"]), name
                found.setdefault(key, []).append(float(row["norm"]))
    names = [key[1] for key in expected if key[0] == "param_origin" and key[2] == 0]
    for step in range(gpt.STEPS):
        for name in names:
            for rank in range(gpt.RANKS):
                wanted = [
                    expected["grad_unreduced", name, step, micro, rank]["norm"]
                    for micro in range(gpt.MICRO_STEPS)
                ]
                assert found["local", step, rank, name] == pytest.approx(wanted, rel=1e-4)
            wanted = expected["grad_reduced", name, step, -1, -1]["norm"]
            parts = [found["global", step, rank, name] for rank in range(gpt.RANKS)]
            assert all(len(part) == 1 for part in parts)
            norms = [part[0] for part in parts]
            if stage:
                assert sum(n * n for n in norms) ** 0.5 == pytest.approx(wanted, rel=1e-4)
            else:
                assert norms == pytest.approx([wanted] * gpt.RANKS, rel=1e-4)
