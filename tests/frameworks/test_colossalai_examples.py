# The two examples of ColossalAIMonitor under torchrun; each checks its files against gradients that
# it computes without the monitor.
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import trainmon

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(trainmon.__file__)))
COLUMNS = "step,rank,param_name,norm,mean,max,min"
STEPS = 2


@pytest.mark.parametrize(
    "script, parameter",
    [
        ("llama_ddp.py", "module.model.layers.3.self_attn.q_proj.weight"),
        (
            "stable_diffusion_ddp.py",
            "module.mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight",
        ),
    ],
)
def test_local_differs_and_global_is_the_mean(script, parameter, tmp_path):
    config = json.loads((EXAMPLES / "monitor_config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "output_dir": str(tmp_path)}))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    arguments = ["--check", "--steps", str(STEPS), "--config", tmp_path / "config.json"]
    ended = subprocess.run(
        [*command, EXAMPLES / script, *arguments],
        env={**os.environ, "PYTHONPATH": PACKAGE},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for rank in (0, 1):
        (count,) = re.findall(rf"check: (\d+) rows of rank {rank} agree", ended.stdout)
        assert int(count) > 50 * STEPS
    for name in ("grad_stats_local.csv", "grad_stats_global.csv"):
        text = (tmp_path / name).read_text()
        assert text.splitlines()[0] == COLUMNS and text.count(COLUMNS) == 1
        for step in range(STEPS):
            assert len(re.findall(rf"^{step},[01],{re.escape(parameter)},", text, re.M)) == 2


def test_the_check_can_fail(tmp_path):
    """A changed digit, a missing row and a swapped rank are seen."""
    script = f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
import types, torch, torch.distributed as dist
from grad_stats_check import GradStatsCheck
dist.init_process_group("gloo", init_method="file://{tmp_path}/meeting", rank=0, world_size=1)
torch.manual_seed(1)
check = GradStatsCheck(torch.nn.Linear(3, 2))
data = torch.randn(4, 3)
check.step(lambda model: model(data).square().mean())
values = check.local[0]
def files(change):
    for which in ("local", "global"):
        lines = [{COLUMNS!r}]
        for name, v in values.items():
            numbers = [v[s] for s in ("norm", "mean", "max", "min")]
            if change and which == change[0] and name == change[1]:
                if change[2] is None:
                    continue
                numbers[change[2]] *= 1.0 + 1e-3
            lines.append(",".join(map(str, (0, 0, "module." + name, *numbers))))
        open(f"{tmp_path}/{{which}}.csv", "w").write("\\r\\n".join(lines) + "\\r\\n")
monitor = types.SimpleNamespace(output_file_local="{tmp_path}/local.csv",
                                output_file_global="{tmp_path}/global.csv")
files(None)
print(check.verdict(monitor))
seen = 0
changes = [(w, n, c) for w in ("local", "global") for n in values for c in (0, 1, 2, 3, None)]
for change in changes:
    files(change)
    try:
        check.verdict(monitor)
    except (AssertionError, KeyError):
        seen += 1
print(seen, len(changes))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "4 rows of rank 0 agree with gradients computed without the monitor",
        "20 20",
    ]
