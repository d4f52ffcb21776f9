# Two processes by msrun, gradients reduced by nn.DistributedGradReducer: against the NumPy training.
import json
import os
import socket
import subprocess
import sys

import mlp
import numpy as np
import pandas as pd
import pytest

import trainmon


def run(tmp_path, which: str, script: str, *arguments: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    msrun = os.path.join(os.path.dirname(sys.executable), "msrun")
    here = os.path.dirname(__file__)
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    command = [msrun, "--worker_num=2", "--local_worker_num=2", f"--master_port={port}"]
    command += [f"--log_dir={tmp_path / which}", "--join=True", f"{here}/{script}"]
    done = subprocess.run(
        [*command, str(tmp_path), *arguments],
        env={**os.environ, "PATH": path, "MS_NODE_TIMEOUT": "120"}, capture_output=True, text=True, timeout=240, cwd=tmp_path,
    )  # fmt: skip
    logs = [p.read_text() for p in sorted((tmp_path / which).glob("worker_*.log"))]
    said = "".join(log[-2000:] for log in logs) + done.stderr[-2000:]
    assert len(logs) == 2 and all(mlp.AT_ITS_END in log for log in logs), said
    # Now and then a thread of MindSpore's cluster (RECV_EVENT_LOOP) dies after that line, when nothing of trainmon runs.
    assert done.returncode == 0 or "Error code: -11." in done.stderr, said


def launch(tmp_path, which: str, *fault: str) -> list:
    run(tmp_path, which, "parallel_run.py", which, *fault)
    return [json.loads((tmp_path / f"{which}_{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("bare"), "bare")


@pytest.mark.parametrize("fault", ["unwatched", "sink", "raising"])
def test_a_rank_that_differs_holds_up_nobody(tmp_path, bare, fault):
    assert launch(tmp_path, "watched", fault) == bare
    health = json.loads((tmp_path / "health_0.json").read_text())
    assert health["parts_off"] == {} and health["errors"] == 0
    rows = trainmon.read(str(tmp_path / "run"))
    for kind in ("grad_unreduced", "grad_reduced", "param_updated", "exp_avg"):
        assert len(rows[(rows["rank"] == 0) & (rows.kind == kind)]) == 3 * 4
    others = rows[rows["rank"] == 1]
    if fault == "unwatched":
        assert others.empty and not (tmp_path / "health_1.json").exists()
        return
    health = json.loads((tmp_path / "health_1.json").read_text())
    if fault == "sink":
        assert others.empty and health["errors"] > 0, health
    else:
        assert any("ZeroDivisionError: planted" in why for why in health["parts_off"].values())


def test_two_processes(tmp_path, bare):
    watched = launch(tmp_path, "watched")
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


def test_equations_over_ranks_hold(tmp_path):
    run(tmp_path, "logs", "checks_run.py", "sound")
    found = trainmon.diagnose(str(tmp_path / "run"))
    assert found["findings"] == []
    tensors, steps, ranks = 4, 12, 2
    assert found["checked"]["reduce"] == tensors * steps * ranks
    assert found["evidence"]["reduce"] == {"sketches": tensors * steps * ranks}
    assert found["evidence"]["update"] == {"sketches": tensors * steps * ranks}
    assert found["evidence"]["replicas"]["fingerprints"] >= tensors * steps


def test_a_gradient_that_one_rank_doubles_is_found(tmp_path):
    run(tmp_path, "logs", "checks_run.py", "doubled")
    verdict = trainmon.diagnose(str(tmp_path / "run"))["verdict"]
    assert (verdict["check"], verdict["step"], verdict["ranks"]) == ("reduce", 7, [1])
    assert verdict["tensors"] == ["fc2.weight"] and verdict["certain"]


def test_collectives(tmp_path):
    """Functions and primitives called by hand, what they were given and gave, against NumPy."""
    run(tmp_path, "logs", "collectives_run.py")
    rows = trainmon.read(str(tmp_path / "run"))
    for rank in range(2):
        found = json.loads((tmp_path / f"found_{rank}.json").read_text())
        assert found["bare"] == found["watched"] == found["compat"]
        assert found["parts_off"] == {} and found["restored"] is True and found["ended"] == 1
        for step in range(3):
            each = [np.arange(4.0) + 10 * r + step for r in range(2)]
            own, total = each[rank], each[0] + each[1]
            expected = {
                ("AllReduce", "pre.0", 0): [own],
                ("AllReduce", "post.0", 0): [total],
                ("AllGather", "pre.0", 0): [own],
                ("AllGather", "post.0", 0): [np.concatenate(each)],
                ("Broadcast", "pre.0", 0): [own],
                ("Broadcast", "post.0", 0): [each[0]],
                ("all_reduce", "pre.0", 0): [own],
                ("all_reduce", "post.0", 0): [total],
                ("all_reduce", "pre.0", 1): [own],
                ("all_reduce", "post.0", 1): [total],
                ("all_gather", "pre.1", 0): [own],
                ("all_gather", "post.0", 0): each,
                ("all_gather", "post.1", 0): [own],
            }
            here = rows[(rows["rank"] == rank) & (rows.step == step)]
            assert len(here) == 14 and set(here.kind) == {"cc"}  # none of the graph's
            for (name, element, call), values in expected.items():
                some = here[(here.name == name) & (here.element == element) & (here.call == call)]
                for row, value in zip(some.to_dict("records"), values, strict=True):
                    mlp.check(row, value)
    for step in range(3):
        for rank in range(2):
            (path,) = (tmp_path / "compat").glob(f"*-rank{rank}-*/other_{step}-{step}.csv")
            table = pd.read_csv(path).set_index("name")
            own, total = (np.arange(4.0) * n + 10 * r + n * step for n, r in ((1, rank), (2, 1)))
            for name, value in (("AllReduce.pre_0", own), ("AllReduce.post_0", total)):
                assert abs(table.loc[name]["norm"] - np.linalg.norm(value)) < 1e-4
            twice = np.linalg.norm([total, total])  # both calls in one line, as on PyTorch
            assert abs(table.loc["all_reduce.post_0"]["norm"] - twice) < 1e-4
    log = (tmp_path / "log_0.txt").read_text()
    assert "Used communication ops" in log and "collectives_run.py" in log and "AllGather" in log
