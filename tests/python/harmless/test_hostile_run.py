"""Where a run is written: folders that somebody else can change, and names that only look like
restarts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import launch
import trainmon

PROGRAM = """
import sys, numpy as np
from written_run import WrittenRank
rank = WrittenRank(sys.argv[1])
rank.observe(np.full(4, float(sys.argv[2]), np.float32), "grad_reduced", "w", 0)
rank.end_step()
rank.stop()
print(rank.directory.name)
"""


def start(run, value=1.0):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(run), str(value)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(launch.SHARED)},
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize(
    ("there", "next_one"),
    [
        ("restart_9999", "restart_10000"),
        ("restart_20240101", "restart_0001"),
        ("restart_999999999", "restart_0001"),
        ("restart_3000000000", "restart_0001"),
        ("restart_0007.bak", "restart_0001"),
        ("restart_5", "restart_0001"),
        ("restart_00012", "restart_0001"),
    ],
)
def test_folders_that_are_no_restarts_do_not_stop_the_next_start(tmp_path, there, next_one):
    run = tmp_path / "run"
    assert start(run, 1.0)[0] == "restart_0000"
    (run / "rank_00000" / there).mkdir()
    (run / "rank_00000" / there / "notes.txt").write_text("mine")
    assert start(run, 2.0)[0] == next_one
    frame = trainmon.read_table(run).to_pandas()
    assert set(frame["restart"]) == {int(next_one[8:])} and set(frame["mean"]) == {2.0}
    done = subprocess.run(
        [launch.command_line(), "first-bad", run], capture_output=True, text=True, timeout=60
    )
    if there != "restart_9999":  # which has the name of one
        assert done.returncode == 0 and there not in done.stderr, done.stderr


def test_starts_go_on_beyond_four_digits(tmp_path):
    run = tmp_path / "run"
    start(run, 1.0)
    (run / "rank_00000" / "restart_9999").mkdir()
    assert [start(run, value)[0] for value in (2.0, 3.0)] == ["restart_10000", "restart_10001"]
    assert set(trainmon.read_table(run).to_pandas()["mean"]) == {3.0}  # the newest is shown


def test_a_folder_that_others_may_change_is_said(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    assert "trainmon: " not in start(run)[1]
    run.chmod(0o777)
    said = start(run)[1]
    assert said.count("may write") == 1 and str(run) in said and "0777" in said
    run.chmod(0o1777)
    assert "may write" not in start(run)[1]


def test_links_in_a_run_are_said_and_the_users_own_is_not(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mine").mkdir()
    link = tmp_path / "run"
    link.symlink_to(tmp_path / "mine")
    assert "link" not in start(link)[1]
    (tmp_path / "mine" / "rank_00000").rename(tmp_path / "moved")
    (tmp_path / "mine" / "rank_00000").symlink_to(tmp_path / "elsewhere")
    said = start(link)[1]
    assert said.count("is a link") == 1 and "rank_00000" in said
    assert (tmp_path / "elsewhere" / "restart_0000" / "run.json").exists()


def test_a_folder_of_another_user_is_said(tmp_path):
    """Only root can give one away; for anybody else his own is all there is to look at."""
    run = tmp_path / "run"
    (run / "rank_00000").mkdir(parents=True)
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(run / "rank_00000", 12345, 12345)
    said = start(run)[1]
    assert said.count("belongs to another user") == (1 if is_root else 0)
