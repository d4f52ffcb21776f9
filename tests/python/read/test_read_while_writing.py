# Whoever reads in the process that trains sees every step that has ended, without a stop().
import json

import pytest
import torch

import trainmon
from trainmon.compat.msprobe.pytorch import TrainerMon
from trainmon.compat.msprobe.pytorch.monitor.csv2tb import csv2tensorboard_by_step

STEPS = 7


def train(model, optimizer, steps=STEPS):
    for _ in range(steps):
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture
def parts():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.fixture
def monitor(parts, tmp_path):
    # No flush by itself comes in time.
    with trainmon.watch(*parts, out=str(tmp_path / "run"), every=1, flush_seconds=3600) as monitor:
        yield monitor


def test_read_finds_the_last_step(parts, monitor, tmp_path):
    train(*parts)
    table = trainmon.read_table(str(tmp_path / "run"))
    assert set(table["step"].tolist()) == set(range(STEPS))
    train(*parts, steps=1)
    assert max(trainmon.read_table(str(tmp_path / "run"))["step"].tolist()) == STEPS


def test_convert_and_first_bad_do(parts, monitor, tmp_path):
    train(*parts)
    report = trainmon.convert(str(tmp_path / "run"), str(tmp_path / "rows.csv"), "csv")
    assert report.written == 2 * STEPS
    model, _ = parts
    with torch.no_grad():
        model.weight[0, 0] = float("inf")
    train(*parts, steps=1)
    model(torch.full((1, 4), float("nan"))).sum().backward()
    parts[1].step()
    assert trainmon.first_bad(str(tmp_path / "run")) is not None


def test_another_directory_is_not_waited_for(parts, monitor, tmp_path):
    with trainmon.watch(*parts, out=str(tmp_path / "other"), every=1, flush_seconds=3600):
        train(*parts)
        assert set(trainmon.read_table(str(tmp_path / "other"))["step"].tolist()) == set(
            range(STEPS)
        )


def test_a_conversion_right_after_training_has_the_last_steps(parts, tmp_path, monkeypatch):
    out = tmp_path / "monitor"
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(out))
    config = {
        "targets": {"": {}},
        "wg_distribution": True,
        "format": "csv",
        "ops": ["norm", "max"],
        "step_count_per_record": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    model, optimizer = parts
    monitor = TrainerMon(str(tmp_path / "config.json"), params_have_main_grad=False)
    monitor.set_monitor(model, optimizer=optimizer)
    train(model, optimizer)
    csv2tensorboard_by_step(str(out), output_dirpath=str(tmp_path / "events"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    steps = set()
    for file in (tmp_path / "events").rglob("events*"):
        events = EventAccumulator(str(file)).Reload()
        for tag in events.Tags()["scalars"]:
            steps |= {event.step for event in events.Scalars(tag)}
    assert steps == set(range(STEPS))
    monitor.stop()
