# msprobe's TrainerMon under the real Megatron-core: the manual's examples, but for the import.
import json
import pathlib

import pytest
import torch

import compat_case
import launch
from trainmon.compat.msprobe.names import squash

CONFIG = {
    "targets": {},
    "wg_distribution": True,
    "param_distribution": True,
    "mv_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "cc_distribution": {"enable": True, "cc_codeline": []},
    "format": "csv",
    "ops": ["norm", "min", "max", "nans"],
    "ndigits": 9,
}
PARAMETERS = 29


def run(name, out, monkeypatch, **more):
    monkeypatch.setattr(launch, "HERE", pathlib.Path(__file__).resolve().parent)
    (out / "monitor_config.json").write_text(json.dumps({**CONFIG, **more}))
    ended = launch.run("compat_megatron_run.py", out, name, ranks=2, timeout=200)
    found = []
    for rank in (0, 1):
        (folder,) = compat_case.folders(out / "monitor_output", rank)
        found.append((folder, torch.load(out / f"{rank}.pt"), ended[rank]))
    return found


def is_near(row, gradient, close):
    for op in ("norm", "min", "max"):
        value = compat_case.oracle(gradient, op)
        scale = float(gradient.norm() if op == "norm" else gradient.abs().max())
        assert abs(float(row[op]) - value) <= close * scale + 1e-8, (op, row, value)


@pytest.mark.parametrize(
    "name", ["plain", "overlap", "distributed", "bf16", "chunks", "chained", "old"]
)
def test_gradients_are_those_of_the_same_model_unwrapped(name, tmp_path, monkeypatch):
    close = 0.1 if name == "bf16" else 1e-4
    shards = {}
    for folder, seen, _ in run(name, tmp_path, monkeypatch):
        unreduced = compat_case.rows(folder, "grad_unreduced")
        reduced = compat_case.rows(folder, "grad_reduced")
        places = ["vpp_stage", "name", "step"]
        assert not unreduced.duplicated(places).any() and not reduced.duplicated(places).any()
        rows = {tuple(row[places]): row for _, row in unreduced.iterrows()}
        assert len(rows) == sum(len(one["local"]) for one in seen["truth"])
        for one in seen["truth"]:
            for parameter, gradient in one["local"].items():
                row = rows[one["chunk"], squash("module." + parameter), one["step"]]
                is_near(row, gradient, close)
                assert row["dtype"] == "torch.float32"
        for _, row in reduced.iterrows():
            shards.setdefault(tuple(row[places]), []).append(row)
        assert {"exp_avg", "exp_avg_sq"} <= {n.rsplit("_", 1)[0] for n in compat_case.csvs(folder)}
        health = json.loads((folder / "health.json").read_text())
        assert health["parts_off"] == {} and health["errors"] == 0
    for one in seen["truth"]:
        for parameter, gradient in one["mean"].items():
            parts = shards[one["chunk"], squash("module." + parameter), one["step"]]
            sizes = [torch.Size(json.loads(row["shape"])).numel() for row in parts]
            if name in ("distributed", "bf16", "chained"):
                assert sum(sizes) == gradient.numel()
                norm = sum(row["norm"] ** 2 for row in parts) ** 0.5
                assert abs(norm - float(gradient.norm())) <= close * float(gradient.norm()) + 1e-8
            else:
                assert sizes == [gradient.numel()] * 2
                for row in parts:
                    is_near(row, gradient, close)


def test_groups_and_metrics_asked_for_before_the_step(tmp_path, monkeypatch):
    """optimizer.optimizer, process_group, dp_group and tp_group of Megatron's parallel_state."""
    (first, seen, _), (second, other, _) = run("groups", tmp_path, monkeypatch)
    rows = compat_case.rows(first, "grad_reduced")
    assert len(rows) == PARAMETERS * 2
    assert not [n for n in compat_case.csvs(second) if n.startswith("grad_reduced")]
    truth = {one["step"]: one["mean"] for one in seen["truth"]}
    for step, asked in enumerate(seen["asked"]):
        assert len(asked) == PARAMETERS
        for parameter, gradient in truth[step].items():
            tag = f"0:{squash('module.' + parameter)}/rank0/post_grad"
            assert abs(asked[tag] - float(gradient.norm())) <= 1e-4 * float(gradient.norm())
    assert other["asked"] == [{}, {}]
