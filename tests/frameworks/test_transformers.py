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
        unreduced = rows(run, kind="grad_unreduced", rank=rank)
        places = {(r["step"], r["micro_step"], r["name"]): r for r in unreduced}
        assert len(unreduced) == len(places)
        names = list(report["gradients"][0])
        every = [(s, m, n) for s in range(STEPS) for m in range(MICROS) for n in names]
        assert places.keys() == ({*every} if ranks > 1 else set())
        for (step, micro, name), found_there in places.items():
            parts = report["local"][step * MICROS : step * MICROS + micro + 1]
            assert_is(found_there, sum(part[names.index(name)] for part in parts))
        # Evaluation, between two steps, leaves nothing.
        outputs = keys(
            run, "step", "micro_step", kind="actv", rank=rank, name="", element="output.loss"
        )
        assert outputs == [(s, m) for s in range(STEPS) for m in range(MICROS)]
        resumed = keys(tmp_path / "resumed", "step", kind="grad_reduced", rank=rank, name=names[0])
        assert resumed == [(STEPS,)]
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
