# Promise F3: modes of what is made, and links that somebody planted where it is made.
import os
import stat

import pytest
import torch

import trainmon

SINKS = ["log", "csv", "sqlite", "tensorboard"]


def train(run):
    """Under umask 0; an alert in the last step has the flight recorder copied."""
    before = os.umask(0)
    try:
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with trainmon.watch(model, optimizer, out=run, sinks=SINKS, recorder_mb=1) as monitor:
            for step in range(3):
                model(torch.full((1, 3), float("nan") if step == 2 else 1.0)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                monitor.log(loss=1.0)
    finally:
        os.umask(before)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = tmp_path_factory.mktemp("modes") / "run"
    train(run)
    return run


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def test_modes_of_everything_under_umask_0(run):
    assert mode(run) == 0o750
    there = list(run.rglob("*"))
    names = {path.name for path in there}
    assert {"lock", "run.json", "stats.db", "flight-000000.ring", "frozen_at_step_2"} <= names
    for path in there:
        assert mode(path) == (0o750 if path.is_dir() else 0o640), path


def test_a_link_in_place_of_a_restart_is_left_alone(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    folder = tmp_path / "run" / "rank_00000"
    folder.mkdir(parents=True, mode=0o750)
    (folder / "restart_0000").symlink_to(tmp_path / "elsewhere")
    train(tmp_path / "run")
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert (folder / "restart_0001" / "run.json").exists()


@pytest.mark.parametrize(
    "folder", ["rank_00000", "tensorboard", "tensorboard/rank_0", "frozen_at_step_2"]
)
def test_a_link_to_a_folder_is_said(tmp_path, folder, capfd):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "run" / folder
    link.parent.mkdir(parents=True, mode=0o750)
    link.symlink_to(tmp_path / "elsewhere")
    train(tmp_path / "run")
    said = capfd.readouterr().err
    is_followed = any((tmp_path / "elsewhere").iterdir())
    assert is_followed == (f"{link} is a link" in said), said


def test_a_link_in_place_of_a_copy_is_not_written_through(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("kept")
    folder = tmp_path / "run" / "frozen_at_step_2" / "rank_00000" / "restart_0000"
    folder.mkdir(parents=True, mode=0o750)
    (folder / "flight-000000.ring.tmp").symlink_to(mine)
    train(tmp_path / "run")
    assert mine.read_text() == "kept"
    assert [path.name for path in folder.iterdir()] == ["flight-000000.ring"]
    assert not (folder / "flight-000000.ring").is_symlink()
