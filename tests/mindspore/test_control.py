# trainmon ctl while a MindSpore training goes on: what is recorded when, and what a wrong edit does.
import glob
import json
import pathlib
import shutil
import subprocess
import time

import mlp
import numpy as np
import pytest
from mindspore import Tensor

import trainmon
from trainmon import _core


def command() -> str:
    """The trainmon that belongs to the package under test: of a build directory, or installed."""
    core = pathlib.Path(_core.__file__).resolve()
    for known in (core.parents[2] / "src/cli/trainmon", core.parents[4] / "bin/trainmon"):
        if known.exists():
            return str(known)
    return shutil.which("trainmon")


def ctl(*arguments):
    done = subprocess.run([command(), "ctl", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


class Training:
    def __init__(self, folder, **keys):
        self.run = str(folder / "run")
        self.model = mlp.net()
        self.optimizer = mlp.adamw(self.model)
        self.grad = mlp.gradients_of(self.model, self.optimizer)
        self.monitor = trainmon.watch(self.model, self.optimizer, out=self.run, **keys)
        self.step, self.versions, self.losses = 0, 0, []

    def steps(self, count: int) -> None:
        for _ in range(count):
            loss, gradients = self.grad(*map(Tensor, mlp.batch(self.step)))
            self.optimizer(gradients)
            self.losses.append(float(loss))
            self.step += 1

    def tell(self, *arguments) -> None:
        """Waits until the writer thread has read the file."""
        ctl(*arguments[:1], self.run, *arguments[1:])
        self.versions += 1
        deadline = time.monotonic() + 30
        while self.monitor._core.control_versions() < self.versions:
            assert time.monotonic() < deadline, "control.json was not read"
            time.sleep(0.02)

    def ended(self):
        health = self.monitor.stop()
        assert health["parts_off"] == {}
        rows = trainmon.read(self.run)
        return {step: set(part.kind) for step, part in rows.groupby("step")}, rows


def hooks(model) -> int:
    return sum(
        len(cell._forward_pre_hook) + len(cell._forward_hook) + len(cell._backward_hook)
        for _, cell in model.cells_and_names()
    )


def test_off_on_and_other_kinds(tmp_path):
    training = Training(tmp_path, kinds=["weights"])
    training.steps(2)
    training.tell("off")
    training.steps(1)  # follows between this step and the next
    training.steps(2)
    assert hooks(training.model) == 0
    training.tell("set", "kinds=grads,activations")
    training.steps(1)
    training.tell("on")
    training.steps(3)
    kinds, rows = training.ended()
    weights = {"param_origin", "param_updated"}
    assert {step: found for step, found in kinds.items() if step <= 2} == dict.fromkeys(
        range(3), weights
    )
    assert set(kinds) == {0, 1, 2, 7, 8}
    assert kinds[7] == kinds[8] == {"grad_reduced", "actv", "actv_grad"}
    oracle = mlp.oracle(steps=9, micro=1)
    for step in (7, 8):
        for name, expected in oracle[step]["grad_reduced"].items():
            (row,) = rows[
                (rows.step == step) & (rows.name == name) & (rows.kind == "grad_reduced")
            ].to_dict("records")
            mlp.check(row, expected)
        here = rows[(rows.step == step) & (rows.kind == "actv_grad") & (rows.name == "fc2")]
        (row,) = here[here.element == "output"].to_dict("records")
        mlp.check(row, oracle[step]["flows"][0]["out"])
    bare = mlp.train(*(lambda model: (model, mlp.adamw(model)))(mlp.net()), steps=9, micro=1)
    assert training.losses == bare


def test_every_is_followed_without_new_hooks(tmp_path):
    training = Training(tmp_path, kinds=["weights"])
    training.steps(1)
    before = hooks(training.model)
    training.tell("set", "every=3")
    training.steps(6)
    assert hooks(training.model) == before
    assert sorted(training.ended()[0]) == [0, 1, 3, 6]


def test_a_wrong_edit_changes_nothing(tmp_path):
    training = Training(tmp_path, kinds=["weights"])
    training.steps(1)
    path = f"{training.run}/control.json"
    with open(path, "w") as file:
        file.write("{")
    time.sleep(0.5)
    training.steps(2)
    with open(path, "w") as file:
        json.dump({"version": 1, "number": 1, "on": True, "set": {"kinds": ["nonsense"]}}, file)
    time.sleep(0.5)
    training.steps(2)
    assert sorted(training.ended()[0]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kinds", [["grads"], ["activations"]])
def test_a_restart_follows_what_its_run_was_told(tmp_path, kinds):
    first = Training(tmp_path, kinds=["weights"])
    first.steps(1)
    first.tell("off")
    first.steps(1)
    first.monitor.stop()
    second = Training(tmp_path, kinds=kinds)
    second.steps(2)
    assert second.monitor.stop()["rows_produced"] == 0
    assert np.isfinite(second.losses).all()
    assert len(glob.glob(f"{second.run}/rank_00000/restart_*")) == 2
