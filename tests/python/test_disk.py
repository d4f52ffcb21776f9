# Promise 2 and 5 when the disk is full, read-only, gone, limited, or no descriptor is left.
import functools
import json
import subprocess
import warnings

import numpy as np
import pytest

import launch

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


def run(fault, folder, monkeypatch):
    prefix = [*in_small_disk(), str(folder)] if fault in NEED_MOUNT else []
    start = launch.subprocess.Popen
    monkeypatch.setattr(launch.subprocess, "Popen", lambda c, **k: start([*prefix, *c], **k))
    ended = launch.finish(launch.start("disk_run.py", fault, folder), 120)
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
def test_training_goes_on_and_the_loss_is_counted(fault, tmp_path, monkeypatch):
    report, errors = run(fault, tmp_path, monkeypatch)
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
