# Promise 2 and 5 when the disk is full, read-only, gone, limited, or no descriptor is left.
import functools
import json
import os
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

import launch
import trainmon

MOUNT = 'mount -t tmpfs -o size=1m none "$1" && shift && exec "$@"'


@functools.cache
def in_small_disk():
    """How to run a command with a small private disk; empty where nothing may be mounted."""
    for flags in (["-Urm"], ["-m"]):
        command = ["unshare", *flags, "sh", "-c", MOUNT, "sh"]
        probe = subprocess.run([*command, "/mnt", "true"], capture_output=True)
        if probe.returncode == 0:
            return command
    return []


def run(fault, folder):
    inside = [*in_small_disk(), str(folder)] if fault in NEED_MOUNT else []
    ended = launch.finish(launch.start("disk_run.py", fault, folder, inside=inside), 120)
    assert ended.code == 0, ended.err
    return json.loads(ended.out.splitlines()[-1]), ended.err


def dropped(health):
    (sink,) = health["sinks"]
    return sum(sink["rows_dropped"].values())


# The reason under which rows may be counted as lost, and whether the fault must cost any.
REASONS = {
    "full": ("no_space", True),
    "too_large": ("file_limit", True),
    "read_only": ("read_only", False),  # the descriptor already open goes on writing
    "deleted": ("deleted", False),  # the directory is made again
    "no_descriptors": ("no_descriptors", False),
}


NEED_MOUNT = {"full", "read_only"}
if not in_small_disk():
    REASONS = {fault: r for fault, r in REASONS.items() if fault not in NEED_MOUNT}
    warnings.warn(
        "nothing may be mounted here: full and read-only disks are not tried", stacklevel=1
    )


@pytest.mark.parametrize("fault", list(REASONS))
def test_training_goes_on_and_the_loss_is_counted(fault, tmp_path):
    report, errors = run(fault, tmp_path)
    assert report["same_losses"], "the disk changed the training"
    assert report["stop_seconds"] < 3.0
    before, during, after, end = (report[k] for k in ("before", "during", "after", "end"))
    assert dropped(before) == 0 and before["parts_off"] == {}
    for health in (during, after, end):
        assert (
            health["rows_produced"]
            == health["rows_pending"] + dropped(health) + (health["sinks"][0]["rows_written"])
        )
    assert end["rows_pending"] == 0 and end["parts_off"] == {}
    reason, costs = REASONS[fault]
    assert end["sinks"][0]["rows_dropped"].keys() <= {reason}
    assert not costs or dropped(during) > 0
    # Writing resumed: the last steps are there, whole.
    steps, sequence = map(np.asarray, report["read"])
    counts = np.bincount(steps, minlength=60)
    assert counts[59] > 0 and counts[59] == counts[58]
    assert len(set(sequence.tolist())) == len(sequence)
    if fault != "deleted":
        assert len(sequence) == end["sinks"][0]["rows_written"], "written and not read back"
        # The data says what it lacks, and no outcome was lost with the rows.
        assert sum(rows for _, rows in report["gaps"]) == dropped(end)
        assert {name for name, _ in report["gaps"]} <= {reason}
        assert report["fates"] == ["taken"]
    else:
        kept = (sequence > before["rows_produced"]).sum()
        produced = end["rows_produced"] - before["rows_produced"]
        assert kept + dropped(end) >= produced - during["rows_produced"] / 20
    # Said once, not once per batch.
    said = [line for line in errors.splitlines() if "trainmon" in line]
    assert 1 <= len(said) <= 12, errors


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path):
    import torch

    import models
    import trainmon

    (tmp_path / "file").write_text("in the way")
    model = models.build("tied")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises((OSError, RuntimeError, ValueError), match="file"):
        trainmon.watch(model, optimizer, out=str(tmp_path / "file" / "run"))
    assert all(not m._forward_hooks for m in model.modules())


STAYS_FULL = """
import json, os, pathlib, subprocess, sys
import torch, trainmon
import disk_run
out = pathlib.Path(sys.argv[1])
torch.set_num_threads(1)
training = disk_run.Training(out / "run")
if sys.argv[2] == "later":
    training.steps(5)
    training.settle()
disk_run.full(out, True)
training.steps(40)
training.monitor.stop()
answers = {}
for command in (["doctor"], ["first-bad"], ["top"], ["anomalies"],
                ["convert", "--to", "csv", "-o", sys.argv[3] + "/csv"],
                ["merge", "-o", sys.argv[3] + "/merged"]):
    done = subprocess.run(
        [sys.argv[4], command[0], out / "run", *command[1:]], capture_output=True, text=True
    )
    answers[command[0]] = [done.returncode, done.stdout + done.stderr]
print(json.dumps(answers))
"""


@pytest.mark.parametrize("later", [0, 2])
@pytest.mark.parametrize("sink", ["log", "csv", "sqlite"])
def test_the_stop_line_says_what_was_deleted(tmp_path, capfd, sink, later):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def steps(count):
        for _ in range(count):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        assert monitor._core.settle(30)

    out = tmp_path / "run"
    monitor = trainmon.watch(model, optimizer, out=out, sinks=[sink], flush_seconds=0.01)
    steps(3)
    shutil.rmtree(out.rename(tmp_path / "gone"))  # no new file comes between
    steps(later)
    monitor.stop()
    said = capfd.readouterr().err.splitlines()[-1]
    assert (
        f"{2 * (3 + later)} rows written (6 of them deleted since by somebody), 0 dropped" in said
    )
    assert "nothing found in the rest; next: trainmon doctor" in said


@pytest.mark.skipif(not in_small_disk(), reason="nothing may be mounted here")
@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_disk_that_stays_full_is_said_by_every_reader(when, tmp_path):
    small, roomy = tmp_path / "small", tmp_path / "roomy"
    small.mkdir()
    roomy.mkdir()
    arguments = [small, when, roomy, launch.command_line()]
    done = subprocess.run(
        [*in_small_disk(), small, sys.executable, "-c", STAYS_FULL, *arguments],
        env={**os.environ, "PYTHONPATH": f"{launch.SHARED}:{launch.HERE}"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for command, (code, said) in json.loads(done.stdout.splitlines()[-1]).items():
        assert code == 3 and "rows were dropped (no_space" in said, (command, code, said)
