# Accelerate's prepared objects and its tracker: what the optimizer saw is recorded.
import pathlib

import pytest
import torch

import launch
import trainmon
from adapter_rows import assert_is, rows

STEPS, MICROS, STILL_SCALED = 3, 2, 1
CASES = ("prepared", "given", "bf16", "tracker", "scaled")


@pytest.fixture(scope="module", params=[1, 2])
def ended(request, tmp_path_factory):
    out = tmp_path_factory.mktemp(f"accelerate{request.param}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "HERE", pathlib.Path(__file__).resolve().parent)
        ends = launch.run("accelerate_run.py", out, *CASES, ranks=request.param)
    assert "NOTHING WAS RECORDED" not in ends[0].err
    return out, request.param


def reports(ended, case):
    out, ranks = ended
    for rank in range(ranks):
        report = torch.load(out / case / f"{rank}.pt")
        assert report["same"], "watching changed losses or weights"
        health = report["health"]
        assert health["parts_off"] == {} and health["errors"] == 0 and health["refused"] == {}
        yield rank, report


@pytest.mark.parametrize("case", CASES[:-1])
def test_what_the_optimizer_saw_is_recorded(case, ended):
    run = ended[0] / case / "run"
    for rank, report in reports(ended, case):
        mine = rows(run, kind="grad_reduced", rank=rank)
        found = {(r["name"], r["step"]): r for r in mine}
        expected = {
            (name, step): gradient
            for step, gradients in enumerate(report["seen"])
            for name, gradient in zip(report["names"], gradients)
        }
        assert len(report["seen"]) == STEPS and len(mine) == len(found)
        assert found.keys() == expected.keys()
        for key, gradient in expected.items():
            assert_is(found[key], gradient)
            assert found[key]["micro_step"] == MICROS - 1
        mine = rows(run, kind="grad_unreduced", rank=rank)
        found = {(r["name"], r["step"], r["micro_step"]): r for r in mine}
        local = report["local"]
        assert len(found) == len(mine) == len(local) * len(report["names"])
        for (name, step, micro), row in found.items():
            place = report["names"].index(name)
            parts = local[step * MICROS : step * MICROS + micro + 1]
            assert_is(row, sum(part[place] / MICROS for part in parts))
        outputs = rows(run, kind="actv", rank=rank, name="3", element="output")
        assert [(r["step"], r["micro_step"]) for r in outputs] == [
            (s, m) for s in range(STEPS) for m in range(MICROS)
        ]


def test_the_tracker_records_numbers(ended):
    scalars = trainmon.read_table(str(ended[0] / "tracker" / "run")).scalars
    (_, report), *_ = reports(ended, "tracker")
    assert set(scalars["name"]) == {"loss"} and set(scalars["rank"]) == {0}  # of the main process
    assert list(scalars["value"]) == pytest.approx([float(loss) for loss in report["losses"]])
    assert list(scalars["step"]) == [step for step in range(STEPS) for _ in range(MICROS)]


def test_a_prepared_optimizers_scaler_is_found(ended):
    for rank, report in reports(ended, "scaled"):
        run = ended[0] / "scaled" / "run"
        found = rows(run, kind="grad_reduced", name="3.bias", rank=rank)
        # The infinite second loss reached no optimizer, and what did was unscaled.
        assert [(r["step"], r["attempt"]) for r in found] == [(0, 0), (1, 1), (2, 0)]
        for row, gradients in zip(found, report["seen"]):
            assert_is(row, gradients[report["names"].index("3.bias")])
            assert not row["flags"] & STILL_SCALED
        unreduced = rows(run, kind="grad_unreduced", name="3.bias", rank=rank)
        fates = {(r["step"], r["attempt"]): r["fate"] for r in unreduced}
        assert fates == {(0, 0): "taken", (1, 0): "skipped", (1, 1): "taken", (2, 0): "taken"}
        assert all(r["flags"] & STILL_SCALED for r in unreduced)
