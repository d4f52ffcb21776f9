# Lightning's and Fabric's callbacks: what the optimizers saw is recorded, on one rank and on two.
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import launch
import trainmon
from adapter_rows import assert_is, rows

CASES = ("automatic", "manual", "scaled", "fused", "resumed", "fabric")
MICROS, STILL_SCALED = 2, 1
# (step, attempt) of each update that an optimizer made or was asked to make.
UPDATES = {
    "automatic": [(0, 0), (1, 0), (2, 0)],
    "manual": [(0, 0), (1, 0), (2, 0), (3, 0)],
    "scaled": [(0, 0), (1, 1), (2, 0)],  # the skipped attempt reaches no optimizer
    "fused": [(0, 0), (1, 0), (1, 1), (2, 0)],  # this one does
    "resumed": [(0, 0), (1, 0), (2, 0), (3, 0)],
    "fabric": [(0, 0), (1, 0), (2, 0)],
}


@pytest.fixture(scope="module", params=[1, 2])
def ended(request, tmp_path_factory):
    """All cases in one process per rank: importing Lightning is most of the time."""
    out = tmp_path_factory.mktemp(f"lightning{request.param}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "HERE", pathlib.Path(__file__).resolve().parent)
        ends = launch.run("lightning_run.py", out, *CASES, ranks=request.param)
    assert "NOTHING WAS RECORDED" not in ends[0].err
    return out, request.param


def reports(ended, case):
    out, ranks = ended
    return [(rank, torch.load(out / case / f"{rank}.pt")) for rank in range(ranks)]


@pytest.mark.parametrize("case", CASES)
def test_what_the_optimizers_saw_is_recorded(case, ended):
    run = ended[0] / case / "run"
    for rank, report in reports(ended, case):
        health = report["health"]
        assert report["same"], "watching changed losses or weights"
        assert health["parts_off"] == {} and health["errors"] == 0 and health["refused"] == {}
        mine = rows(run, kind="grad_reduced", rank=rank)
        found = {(r["name"], r["step"], r["attempt"]): r for r in mine}
        expected = {
            (name, *update): gradient
            for names, seen in zip(report["names"], report["seen"])
            for update, gradients in zip(UPDATES[case], seen)
            for name, gradient in zip(names, gradients)
        }
        assert len(report["seen"][0]) == len(UPDATES[case])
        assert len(found) == len(mine) and found.keys() == expected.keys()
        for key, gradient in expected.items():
            # A fused optimizer divides by the loss scale itself; rows have what it uses.
            scale = found[key]["loss_scale"] if case == "fused" else 1.0
            assert_is(found[key], gradient / scale)
            assert not found[key]["flags"] & STILL_SCALED


@pytest.mark.parametrize("case", ["automatic", "resumed", "scaled", "fused"])
def test_unreduced_gradients_are_those_of_the_rank(case, ended):
    out, ranks = ended
    for rank, report in reports(ended, case):
        found = rows(out / case / "run", kind="grad_unreduced", rank=rank)
        by_place = {(r["name"], r["step"], r["attempt"], r["micro_step"]): r for r in found}
        assert len(by_place) == len(found)
        (names,), local = report["names"], report["local"]
        if case == "automatic":  # running sums of what was divided by their number
            for index in range(len(local)):
                step, micro = divmod(index, MICROS)
                for place, name in enumerate(names):
                    parts = local[step * MICROS : index + 1]
                    total = sum(part[place] / MICROS for part in parts)
                    assert_is(by_place[name, step, 0, micro], total)
            assert len(found) == len(local) * len(names)
        elif case == "resumed":  # the second fit is that of the module in the report
            for step, gradients in enumerate(local, start=2):
                for name, gradient in zip(names, gradients):
                    assert_is(by_place[name, step, 0, 0], gradient)
        else:  # still multiplied with the loss scale, which fell by half after the infinite loss
            scales = {(0, 0): 1024.0, (1, 1): 512.0, (2, 0): 512.0}
            assert {key[1:3] for key in by_place} == {*scales, (1, 0)}
            for ((step, attempt), scale), gradients in zip(scales.items(), local):
                for name, gradient in zip(names, gradients):
                    row = by_place[name, step, attempt, 0]
                    assert row["flags"] & STILL_SCALED
                    # 16-bit activations round, and a scaled loss rounds elsewhere.
                    assert row["norm"] / scale == pytest.approx(float(gradient.norm()), rel=5e-2)
            bad = [r for r in found if (r["step"], r["attempt"]) == (1, 0)]
            assert any(r["nans"] + r["infs"] for r in bad)


@pytest.mark.parametrize("case", ["scaled", "fused"])
def test_a_skipped_step_is_an_attempt(case, ended):
    run = ended[0] / case / "run"
    for rank, _ in reports(ended, case):
        outcomes = {(r["step"], r["attempt"]): r["fate"] for r in rows(run, kind="actv", rank=rank)}
        assert outcomes == {
            (0, 0): "taken",
            (1, 0): "skipped",
            (1, 1): "taken",
            (2, 0): "taken",
        }


def test_validation_leaves_no_rows(ended):
    """One training forward per backward: 2 batches are validated at the start and in between."""
    run = ended[0] / "automatic" / "run"
    for rank, _ in reports(ended, "automatic"):
        found = rows(run, kind="actv", rank=rank, name="net", element="output")
        places = [(r["step"], r["micro_step"], r["call"]) for r in found]
        assert places == [(step, micro, 0) for step in range(3) for micro in range(MICROS)]


def test_loss_and_learning_rate_are_recorded(ended):
    run = ended[0] / "automatic" / "run"
    scalars = trainmon.read_table(str(run)).scalars
    for rank, report in reports(ended, "automatic"):
        mine = scalars["rank"] == rank
        named = {
            name: dict(
                zip(
                    scalars["step"][mine & (scalars["name"] == name)],
                    scalars["value"][mine & (scalars["name"] == name)],
                )
            )
            for name in ("loss", "lr")
        }
        last_of_each = report["losses"][MICROS - 1 :: MICROS]
        assert named["loss"] == {s: pytest.approx(float(v)) for s, v in enumerate(last_of_each)}
        # After the step: the scheduler has set that of the next one.
        assert named["lr"] == {s: pytest.approx(0.01 * 0.5 ** (s + 1)) for s in range(3)}


def test_a_resumed_run_is_one_timeline(ended):
    run = ended[0] / "resumed" / "run"
    found = rows(run, kind="grad_reduced", rank=0, name="net.0.bias")
    assert sorted((r["restart"], r["step"]) for r in found) == [(0, 0), (0, 1), (1, 2), (1, 3)]


# --- entry points --------------------------------------------------------------------------------

TRAINER = """
import sys, torch, lightning as L
class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 2)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
    def training_step(self, batch, index):
        return self.net(batch).pow(2).mean()
data = torch.utils.data.DataLoader(torch.randn(4, 3), batch_size=2)
trainer = L.Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Module(), data)
print("watched", "trainmon.monitor" in sys.modules, "core", "trainmon._core" in sys.modules)
"""
FABRIC = """
import sys, torch, lightning as L
fabric = L.Fabric(accelerator="cpu")
model = torch.nn.Linear(3, 2)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(2):
    fabric.backward(model(torch.randn(4, 3)).pow(2).mean())
    optimizer.step()
print("watched", "trainmon.monitor" in sys.modules, "core", "trainmon._core" in sys.modules)
"""


def start(script, config=None, **more):
    environment = {**os.environ, **more}
    environment.pop("TRAINMON_CONFIG", None)
    if config is not None:
        environment["TRAINMON_CONFIG"] = str(config)
    return subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("script", [TRAINER, FABRIC], ids=["trainer", "fabric"])
def test_the_environment_switches_a_run_on(script, tmp_path):
    config = tmp_path / "watch.json"
    config.write_text(json.dumps({"kinds": ["grads"], "out": str(tmp_path / "run")}))
    ended = start(script, config)
    assert ended.returncode == 0, ended.stderr
    assert "watched True" in ended.stdout
    names = {(r["name"], r["step"]) for r in rows(tmp_path / "run", kind="grad_reduced")}
    prefix = "net." if script is TRAINER else ""
    assert names == {(f"{prefix}{n}", step) for n in ("weight", "bias") for step in (0, 1)}


@pytest.mark.parametrize("script", [TRAINER, FABRIC], ids=["trainer", "fabric"])
def test_without_it_nothing_is_loaded(script):
    ended = start(script)
    assert ended.returncode == 0, ended.stderr
    assert "watched False core False" in ended.stdout


def test_a_bad_file_is_an_error_at_the_start(tmp_path):
    config = tmp_path / "watch.json"
    config.write_text('{"kindz": ["grads"]}')
    ended = start(TRAINER, config)
    assert ended.returncode == 1 and "watched" not in ended.stdout
    last = ended.stderr[ended.stderr.index("ConfigError") :]
    assert "TRAINMON_CONFIG" in last and str(config) in last and "kindz" in last
    ended = start(TRAINER, tmp_path / "missing.json")
    assert ended.returncode == 1
    assert "TRAINMON_CONFIG" in ended.stderr and "missing.json" in ended.stderr


SECOND = {
    TRAINER: """
class Wider(Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 5)
L.Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
          enable_progress_bar=False, enable_model_summary=False).fit(Wider(), data)
print("both trained")
""",
    FABRIC: """
fabric = L.Fabric(accelerator="cpu")
model = torch.nn.Linear(3, 5)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
fabric.backward(model(torch.randn(4, 3)).pow(2).mean())
optimizer.step()
print("both trained")
""",
}


@pytest.mark.parametrize("script", [TRAINER, FABRIC], ids=["trainer", "fabric"])
@pytest.mark.parametrize("gone", [False, True], ids=["another model", "file gone"])
def test_a_later_start_that_fails_leaves_the_training_alone(script, gone, tmp_path):
    config = tmp_path / "watch.json"
    config.write_text(json.dumps({"kinds": ["grads"], "out": str(tmp_path / "run")}))
    remove = f"import os; os.remove({str(config)!r})\n" if gone else ""
    ended = start(script + remove + SECOND[script], config)
    assert ended.returncode == 0, ended.stderr
    assert "both trained" in ended.stdout
    (said,) = (line for line in ended.stderr.splitlines() if "not watched" in line)
    assert ("watch.json" if gone else "holds the run of another model") in said
    assert len(rows(tmp_path / "run", kind="grad_reduced")) == 4  # two steps of the first model


def test_the_file_is_read_once(tmp_path):
    config = tmp_path / "watch.json"
    config.write_text(json.dumps({"kinds": ["grads"], "out": str(tmp_path / "run")}))
    moved = TRAINER.replace("trainer.fit(", f"import os; os.chdir({str(tmp_path)!r})\ntrainer.fit(")
    ended = start(moved, os.path.relpath(config))
    assert ended.returncode == 0, ended.stderr
    assert rows(tmp_path / "run", kind="grad_reduced")


def test_the_scripts_own_callback_comes_first(tmp_path):
    config = tmp_path / "watch.json"
    config.write_text(json.dumps({"kinds": ["weights"], "out": str(tmp_path / "other")}))
    script = TRAINER.replace(
        "trainer = L.Trainer(",
        "from trainmon.integrations.lightning import TrainmonCallback\n"
        f"own = TrainmonCallback(out={str(tmp_path / 'own')!r})\n"
        "trainer = L.Trainer(callbacks=[own], ",
    )
    ended = start(script, config)
    assert ended.returncode == 0, ended.stderr
    assert "TRAINMON_CONFIG is unused" in ended.stderr
    assert not (tmp_path / "other").exists()
    assert rows(tmp_path / "own", kind="grad_reduced")
