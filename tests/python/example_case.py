# Runs one of examples/ as its reader would, and looks at what it wrote.
import os
import pathlib
import subprocess
import sys

import trainmon

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(trainmon.__file__)))
KINDS = {
    "grad_unreduced", "grad_reduced", "param_origin", "param_updated", "exp_avg", "exp_avg_sq",
}  # fmt: skip


def check(name, out, steps=2):
    """Every kind of every parameter is there in every step, on both ranks."""
    out = out / "run"
    ended = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", "--out", out, "--steps", str(steps)],
        env={**os.environ, "PYTHONPATH": PACKAGE, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-6000:]
    assert f"next: trainmon top {out}" in ended.stdout
    assert "not covered" not in ended.stderr and "switched off" not in ended.stderr
    table = trainmon.read_table(str(out), merged=True)
    found = {}
    for kind, name, step in zip(table["kind"], table["name"], table["step"]):
        found.setdefault((str(kind), int(step)), set()).add(str(name))
    assert found.keys() == {(kind, step) for kind in KINDS for step in range(steps)}
    parameters = found["param_updated", 0]
    assert len(parameters) > 20 and all(names == parameters for names in found.values())
    assert set(trainmon.read_table(str(out)).ranks) == {0, 1}
    scalars = trainmon.read_table(str(out)).scalars
    assert {"loss"} <= set(scalars["name"])
    assert all(0 < value < 10 for value in scalars["value"][scalars["name"] == "loss"])
