# Two processes by msrun, gradients reduced by nn.DistributedGradReducer: against the NumPy training.
import json
import os
import socket
import subprocess
import sys

import mlp

import trainmon


def launch(tmp_path, which: str) -> list:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    msrun = os.path.join(os.path.dirname(sys.executable), "msrun")
    here = os.path.dirname(__file__)
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    command = [msrun, "--worker_num=2", "--local_worker_num=2", f"--master_port={port}"]
    command += [f"--log_dir={tmp_path / which}", "--join=True", f"{here}/parallel_run.py"]
    done = subprocess.run(
        [*command, str(tmp_path), which],
        env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=240, cwd=tmp_path,
    )  # fmt: skip
    logs = "".join(p.read_text()[-2000:] for p in sorted((tmp_path / which).glob("worker_*.log")))
    assert done.returncode == 0, logs + done.stderr[-2000:]
    return [json.loads((tmp_path / f"{which}_{rank}.json").read_text()) for rank in range(2)]


def test_two_processes(tmp_path):
    watched, bare = launch(tmp_path, "watched"), launch(tmp_path, "bare")
    assert watched == bare  # losses and weights, bit for bit
    rows, oracle = trainmon.read(str(tmp_path / "run")), mlp.oracle(ranks=2)
    compared = 0
    for step, seen in enumerate(oracle):
        for rank in range(2):
            own = rows[(rows["rank"] == rank) & (rows.step == step)]
            for name in mlp.SIZES:
                here = own[(own.name == name)]
                expected = {
                    "grad_reduced": seen["grad_reduced"][name],
                    # What goes into the reducer: the sum over this rank's micro-steps.
                    "grad_unreduced": seen["own"][rank][name],
                    "param_updated": seen["param_updated"][name],
                    "exp_avg": seen["exp_avg"][name],
                }
                for kind, value in expected.items():
                    (row,) = here[here.kind == kind].to_dict("records")
                    mlp.check(row, value)
                    compared += 1
                micro = here[here.kind == "grad_micro"].sort_values("accum").to_dict("records")
                for row, found in zip(micro, seen["micro"][2 * rank : 2 * rank + 2], strict=True):
                    mlp.check(row, found[name])
                    compared += 1
    assert compared == 3 * 2 * 4 * 6
    merged = trainmon.read(str(tmp_path / "run"), merged=True)
    assert len(merged[merged.kind == "param_updated"]) == 3 * 4
