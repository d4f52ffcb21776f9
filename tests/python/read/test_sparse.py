"""Runs with very many lines of few values each, and texts with escape codes: readers end soon, take little
memory, and write nothing to a terminal that it obeys."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from written_run import WrittenRank

LINES, STEPS = 10_000, 40_000


def limited(*arguments, code=0, seconds=15, megabytes=1200):
    """What a command says that may take no more of a processor and of memory."""

    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    command = [str(Path(sys.executable).with_name("trainmon")), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == code, done.stderr[-500:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    """Each step has a row of one tensor."""
    out = tmp_path_factory.mktemp("sparse") / "run"
    rank = WrittenRank(out)
    value = np.ones(4, np.float32)
    for step in range(STEPS):
        rank.observe(value, "grad_reduced", f"a{step % LINES}.w", step)
        rank.seen.clear()
        rank.end_step()
    rank.stop()
    return out


def test_diagnose_looks_at_the_tensors_of_a_step_alone(sparse):
    assert "nothing certainly wrong" in limited("diagnose", sparse, seconds=4)


def test_a_page_has_room_for_few_values_of_many_lines(sparse, tmp_path):
    limited("report", sparse, "-o", tmp_path / "a.html")


def test_a_picture_of_too_many_cells_is_refused(sparse, tmp_path):
    said = limited("plot", sparse, "-o", tmp_path / "a.png", code=2, seconds=30, megabytes=4000)
    assert f"{LINES:,} lines of {STEPS:,} steps are too many for a picture" in said
    limited("plot", sparse, "--name", "a7.w", "-o", tmp_path / "a.png", seconds=30, megabytes=4000)


PICTURE_WITHOUT_MEMORY = """
import resource, sys, matplotlib.backends.backend_agg, pandas
from trainmon import drawing, plot
size = int(open("/proc/self/status").read().split("VmSize:")[1].split()[0]) << 10
resource.setrlimit(resource.RLIMIT_AS, (size + (4 << 20),) * 2)
sys.exit(plot.main(sys.argv[1:]))
"""


def test_a_picture_for_which_there_is_no_memory_ends_as_other_commands_do(sparse, tmp_path):
    command = [sys.executable, "-c", PICTURE_WITHOUT_MEMORY, sparse, "-o", tmp_path / "a.png"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 70
    assert done.stderr == "trainmon plot: there is not enough memory; nothing was written\n"
    assert not (tmp_path / "a.png").exists()


def test_a_page_has_room_for_many_logged_values_of_one_step_each(tmp_path):
    rank = WrittenRank(tmp_path / "run")
    for step in range(10_000):
        rank.monitor.add_scalar(f"x{step}", 1.0)
        rank.observe(np.ones(4, np.float32), "grad_reduced", "w", step)
        rank.end_step()
    rank.stop()
    limited("report", tmp_path / "run", "-o", tmp_path / "a.html", megabytes=700)


def test_reasons_of_a_record_obey_no_terminal(tmp_path):
    out = tmp_path / "run"
    rank = WrittenRank(out)
    rank.observe(np.ones(4, np.float32), "grad_reduced", "w", 0)
    rank.end_step()
    rank.stop()
    (run_json,) = out.rglob("run.json")
    record = json.loads(run_json.read_text())
    record["not_covered"] = {"a\x1b[31mb": "because\x1b]0;of\x07"}
    run_json.write_text(json.dumps(record))
    said = limited("diagnose", out)
    assert "because" in said and "\x1b" not in said and "\x07" not in said
