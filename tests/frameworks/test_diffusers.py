# A diffusion model on two ranks: every one of its 208 parameters, and outputs that are dataclasses.
import pathlib

import torch

import launch
from adapter_rows import assert_is, rows

PARAMETERS, STEPS = 208, 2


def test_a_unet_is_watched(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "HERE", pathlib.Path(__file__).resolve().parent)
    launch.run("diffusers_run.py", tmp_path, ranks=2)
    run = tmp_path / "run"
    reports = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for rank, report in enumerate(reports):
        health = report["health"]
        assert report["same"], "watching changed losses or weights"
        assert health["parts_off"] == {} and health["errors"] == 0 and health["refused"] == {}
        assert len(report["names"]) == PARAMETERS
        for kind, values in (("grad_reduced", report["seen"]), ("grad_unreduced", report["local"])):
            found = rows(run, kind=kind, rank=rank)
            by_place = {(r["name"], r["step"]): r for r in found}
            assert len(found) == len(by_place) == PARAMETERS * STEPS
            for step in range(STEPS):
                for name, value in zip(report["names"], values[step]):
                    # The twin's gradient is added up by the same kernels: to the last bit.
                    assert_is(by_place[name, step], value)
        elements = {r["element"] for r in rows(run, kind="actv", rank=rank, name="")}
        assert {"input.0", "input.1", "input.encoder_hidden_states", "output.sample"} <= elements
        gradients = rows(run, kind="actv_grad", rank=rank, name="", element="output.sample")
        assert [r["step"] for r in gradients] == [*range(STEPS)]
    # What was reduced is the mean over the ranks of what was not.
    for step in range(STEPS):
        pairs = zip(reports[0]["local"][step], reports[1]["local"][step], reports[0]["seen"][step])
        for one, other, seen in pairs:
            assert torch.allclose((one + other) / 2, seen, rtol=1e-5, atol=1e-7)
