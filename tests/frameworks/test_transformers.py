# The Transformers callback: what the Trainer's optimizer saw is recorded, on one rank and on two.
import pathlib
import subprocess
import sys

import pytest
import torch

import launch
import trainmon
from adapter_rows import assert_is, keys, rows

STEPS, MICROS = 3, 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_trainer_is_watched(ranks, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "HERE", pathlib.Path(__file__).resolve().parent)
    ended = launch.run("transformers_run.py", tmp_path, ranks=ranks)
    assert "NOTHING WAS RECORDED" not in ended[0].err
    run = tmp_path / "run"
    for rank in range(ranks):
        report = torch.load(tmp_path / f"{rank}.pt")
        health = report["health"]
        assert report["same"], "watching changed the weights"
        assert health["parts_off"] == {} and health["errors"] == 0 and health["refused"] == {}
        found = {(r["step"], r["name"]): r for r in rows(run, kind="grad_reduced", rank=rank)}
        expected = {
            (step, name): gradient
            for step, gradients in enumerate(report["gradients"])
            for name, gradient in gradients.items()
        }
        assert len(report["gradients"]) == STEPS and found.keys() == expected.keys()
        for key, gradient in expected.items():
            assert_is(found[key], gradient)
            assert found[key]["micro_step"] == MICROS - 1
        # The bare model is handed to callbacks; that DDP is around it is found all the same.
        unreduced = keys(
            run, "step", "micro_step", kind="grad_unreduced", rank=rank, name="lm_head.weight"
        )
        every = [(s, m) for s in range(STEPS) for m in range(MICROS)]
        assert unreduced == (every if ranks > 1 else [])
        elements = {e for (e,) in keys(run, "element", kind="actv", rank=rank, name="")}
        assert {"input.input_ids", "input.labels", "output.loss", "output.logits"} <= elements
        attention = {
            e
            for (e,) in keys(
                run, "element", kind="actv_grad", rank=rank, name="model.layers.1.self_attn"
            )
        }
        assert {"input.hidden_states", "output.0"} <= attention
    scalars = trainmon.read_table(str(run)).scalars
    losses = scalars["name"] == "loss"
    assert sorted(scalars["step"][losses]) == sorted([*range(STEPS)] * ranks)


def test_importing_trainmon_imports_no_transformers():
    script = (
        "import sys, trainmon, trainmon.integrations.transformers\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)\n"
        "from trainmon.integrations.transformers import TrainmonCallback\n"
        "assert 'transformers' in sys.modules\n"
        "assert TrainmonCallback is TrainmonCallback\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
