# trainmon ctl while a run goes on: who follows when, what is left while off, what wrong edits do.
import json
import subprocess
import time

import pytest
import torch

import control_run
import launch
import trainmon
from adapter_rows import healthy, keys, rows, run_json

BEGAN = {"grad_reduced", "param_origin", "param_updated", "actv", "actv_grad"}


def ctl(*arguments, code=0, flags=()):
    done = subprocess.run(
        [launch.command_line(), *flags, "ctl", *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def seen(monitor, versions):
    """Waits until the writer thread has read the file so often; no step ends meanwhile."""
    deadline = time.monotonic() + 30
    while monitor._core.control_versions() < versions:
        assert time.monotonic() < deadline, "control.json was not read"
        time.sleep(0.02)


def written(monitor, key, holds):
    """Waits until run.json has such a note, and returns it."""
    deadline = time.monotonic() + 30
    while not holds(note := run_json(monitor)["notes"].get(key)):
        assert time.monotonic() < deadline, note
        time.sleep(0.02)
    return note


class Training:
    def __init__(self, folder, model=None, optimizer=torch.optim.AdamW, **keys):
        torch.manual_seed(0)
        model = model or torch.nn.Sequential(
            torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)
        )
        self.model, self.optimizer = model, optimizer(model.parameters(), lr=0.01)
        self.run = folder / "run"
        self.monitor = trainmon.watch(self.model, self.optimizer, out=self.run, **keys)

    def steps(self, count=1):
        for _ in range(count):
            self.optimizer.zero_grad()
            self.model(torch.randn(3, 4)).sum().backward()
            self.optimizer.step()

    def hooks(self):
        count = sum(
            len(hooks)
            for module in self.model.modules()
            for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        )
        for parameter in self.model.parameters():
            count += len(parameter._post_accumulate_grad_hooks or ())
            count += len(parameter._backward_hooks or ())
        return count

    def recorded(self):
        """{step: kinds}"""
        found = {}
        for step, kind in keys(self.run, "step", "kind"):
            found.setdefault(step, set()).add(kind)
        return found


@pytest.mark.parametrize("mode", ["single", "ddp", "fsdp2"])
def test_ranks_switch_at_the_same_step_and_training_is_the_same(mode, tmp_path):
    ranks = 1 if mode == "single" else 2
    launch.run("control_run.py", tmp_path, mode, ranks=ranks)
    began = BEGAN | ({"grad_unreduced"} if ranks > 1 else set())
    expected = dict.fromkeys([*range(5), *range(9, 12), *range(16, 20)], began)
    expected |= dict.fromkeys([12, 14], {"actv", "exp_avg"})
    found = {rank: {} for rank in range(ranks)}
    for rank, step, kind in keys(tmp_path / "run", "rank", "step", "kind"):
        found[rank].setdefault(step, set()).add(kind)
    assert found == dict.fromkeys(range(ranks), expected)
    for rank in range(ranks):
        report = json.loads((tmp_path / f"{rank}.json").read_text())
        assert report["watched"] == report["bare"] and len(report["bare"]) == control_run.STEPS
        assert report["left_while_off"] == [[], []] and report["left_at_end"] == [[], []]
        health = report["health"]
        assert health["parts_off"] == {} and health["errors"] == 0 and health["refused"] == {}
        told = json.loads((tmp_path / f"run/rank_{rank:05}/restart_0000/run.json").read_text())
        changes = told["notes"]["control"]["changes"]
        assert [(c["number"], c["on"], c["from_step"]) for c in changes] == [
            (1, False, 5),
            (2, True, 9),
            (3, True, 12),
            (4, True, 16),
        ]
    # Every row of a step on again is there: as many as before, for each kind.
    counts = {}
    for rank, step, kind in keys(tmp_path / "run", "rank", "step", "kind"):
        counts[rank, step, kind] = counts.get((rank, step, kind), 0) + 1
    for rank in range(ranks):
        for kind in began:
            assert len({counts[rank, step, kind] for step in (4, 9, 16, 19)}) == 1, kind


def test_off_leaves_no_hook_and_steps_are_counted(tmp_path):
    training = Training(tmp_path, kinds=["grads", "activations", "spectral"])
    training.steps(2)
    assert training.hooks() > 0
    ctl("off", training.run)
    seen(training.monitor, 1)
    training.steps()  # on until the next boundary
    assert training.hooks() == 0
    step_hooks = (
        training.optimizer._optimizer_step_pre_hooks,
        training.optimizer._optimizer_step_post_hooks,
    )
    assert [len(hooks) for hooks in step_hooks] == [1, 1]
    training.monitor.log(loss=1.0)  # nothing is recorded
    training.steps(4)
    ctl("on", training.run)
    seen(training.monitor, 2)
    training.steps(2)
    health = healthy(training.monitor)
    recorded = training.recorded()
    assert sorted(recorded) == [0, 1, 2, 8] and recorded[8] == recorded[1]
    assert health["rows_pending"] == 0
    assert [len(hooks) for hooks in step_hooks] == [0, 0]


def test_settings_go_over_what_the_run_began_with(tmp_path):
    training = Training(tmp_path, kinds=["grads"], every=1)
    training.steps(2)
    ctl("set", training.run, "every=3", "include=2", "kinds=weights,momentum_buffer,exp_avg")
    seen(training.monitor, 1)
    training.steps(1)
    training.steps(4)  # 3 4 5 6
    ctl("set", training.run, "include=[]", "every=", "stop_step=9")
    seen(training.monitor, 2)
    training.steps(1)  # 7
    training.steps(4)  # 8 and others that are not recorded
    healthy(training.monitor)
    names = {
        step: {(kind, name) for kind, name in keys(training.run, "kind", "name", step=step)}
        for step in training.recorded()
    }
    everything = {"0.weight", "0.bias", "2.weight", "2.bias"}
    weights = ("param_origin", "param_updated", "exp_avg")
    later = {(kind, name) for kind in weights for name in ("2.weight", "2.bias")}
    assert names == {
        **dict.fromkeys(range(3), {("grad_reduced", name) for name in everything}),
        **dict.fromkeys((3, 6), later),
        8: {(kind, name) for kind in weights for name in everything},
    }
    assert json.loads((training.run / "control.json").read_text())["set"] == {
        "include": [],
        "kinds": ["weights", "momentum_buffer", "exp_avg"],
        "stop_step": 9,
    }


def test_values_after_a_switch_are_those_of_the_tensors(tmp_path):
    training = Training(tmp_path, kinds=["weights"])
    ctl("set", training.run, "kinds=actv,grads")
    seen(training.monitor, 1)
    training.steps()
    training.optimizer.zero_grad()
    data = torch.randn(3, 4)
    inner = torch.nn.functional.linear(data, training.model[0].weight, training.model[0].bias)
    norms = {"actv": float(inner.detach().double().norm())}
    training.model(data).sum().backward()
    norms["grad_reduced"] = float(training.model[0].weight.grad.double().norm())
    training.optimizer.step()
    healthy(training.monitor)
    (found,) = rows(training.run, kind="actv", name="0", element="output")
    assert found["step"] == 1 and found["norm"] == pytest.approx(norms["actv"], rel=1e-6)
    (found,) = rows(training.run, kind="grad_reduced", name="0.weight")
    assert found["step"] == 1 and found["norm"] == pytest.approx(norms["grad_reduced"], rel=1e-6)


def test_parameters_replaced_while_off_are_found(tmp_path):
    training = Training(tmp_path, kinds=["grads", "activations"])
    ctl("off", training.run)
    seen(training.monitor, 1)
    training.steps()
    new = torch.nn.Linear(4, 1)
    training.model[2] = new
    training.optimizer.param_groups[0]["params"] = list(training.model.parameters())
    ctl("on", training.run)
    seen(training.monitor, 2)
    training.steps(2)
    norm = float(new.weight.grad.double().norm())
    healthy(training.monitor)
    (found,) = rows(training.run, kind="grad_reduced", name="2.weight", step=2)
    assert found["norm"] == pytest.approx(norm, rel=1e-6)


def test_wrong_edits_keep_what_holds(tmp_path, capfd):
    training = Training(tmp_path, every=2)
    file = training.run / "control.json"
    ctl("set", training.run, "every=1")
    seen(training.monitor, 1)
    training.steps(2)
    wrong = {
        '{"format": 1, "on": fal': "line 1, column 24",
        '{"format": 1, "set": {"every": 0, "queue_mb": 1}}': "queue_mb = 1: does not change",
        "": "unexpected end of input",
        "[]": "must be a JSON object",
    }
    for text, fault in wrong.items():
        file.write_text(text)
        written(training.monitor, "control_file", lambda note, fault=fault: fault in (note or ""))
        training.steps(1)
        assert ctl("status", training.run, code=1).stdout.count("not valid") >= 1
        ctl("set", training.run, "every=3", code=2)
        assert file.read_text() == text, "ctl does not write over what it cannot read"
    training.steps(2)
    file.unlink()
    written(training.monitor, "control_file", lambda note: not note)
    ctl("off", training.run)
    seen(training.monitor, 2)
    training.steps()
    written(training.monitor, "control", lambda note: note["number"] == 2)
    ctl("status", training.run)
    training.steps(2)
    healthy(training.monitor)
    assert sorted(training.recorded()) == list(range(9))
    said = capfd.readouterr().err
    for fault in wrong.values():
        assert said.count(fault) == 1, fault


def test_a_change_that_cannot_be_made_is_refused(tmp_path):
    training = Training(tmp_path, kinds=["grads"])
    training.steps(1)
    ctl("set", training.run, "kinds=cc", 'collective_callers=["("]')
    seen(training.monitor, 1)
    training.steps(2)
    note = written(training.monitor, "control", lambda note: note and "refused" in note)
    assert note["refused"] == 1 and note["on"] is True and note["number"] == 0
    assert "refused change 1" in ctl("status", training.run, code=1).stdout
    before = training.hooks()
    ctl("set", training.run, "kinds=", "collective_callers=", "every=2")
    seen(training.monitor, 2)
    training.steps(3)
    assert training.hooks() == before > 0
    note = written(training.monitor, "control", lambda note: note["number"] == 2)
    assert "refused" not in note
    healthy(training.monitor)
    assert training.recorded() == dict.fromkeys((0, 1, 2, 3, 4), {"grad_reduced"})


def test_status_tells_who_waits_and_who_follows(tmp_path):
    training = Training(tmp_path)

    def status(code):
        return json.loads(ctl("status", training.run, code=code, flags=["--json"]).stdout)

    assert status(0)["asked"] is None
    ctl("off", training.run, "--at-step", "4")
    found = status(3)
    assert found["asked"]["apply_at_step"] == 4 and found["ranks"][0]["number"] == 0
    seen(training.monitor, 1)
    training.steps(1)
    written(training.monitor, "control", lambda note: note and note.get("waiting") == 1)
    assert status(3)["ranks"][0]["waiting"] == 1
    training.steps(4)
    written(training.monitor, "control", lambda note: note["number"] == 1)
    (rank,) = status(0)["ranks"]
    assert (rank["on"], rank["since_step"], rank["waiting"]) == (False, 4, None)
    assert training.hooks() == 0
    text = ctl("status", training.run).stdout
    assert "change 1: off, from step 4" in text and "follows" in text
    healthy(training.monitor)
    assert sorted(training.recorded()) == [0, 1, 2, 3]
    assert "has ended" in ctl("on", training.run, code=2).stderr


def test_a_step_that_has_passed_is_said(tmp_path, capfd):
    training = Training(tmp_path)
    training.steps(3)
    ctl("off", training.run, "--at-step", "1")
    seen(training.monitor, 1)
    training.steps(3)
    healthy(training.monitor)
    assert sorted(training.recorded()) == [0, 1, 2, 3]
    assert capfd.readouterr().err.count("(step 1 had passed)") == 1


def test_a_restart_follows_from_its_first_step(tmp_path):
    training = Training(tmp_path)
    training.steps(1)
    ctl("set", training.run, "kinds=weights")
    training.monitor.stop()
    again = Training(tmp_path)
    again.steps(2)
    healthy(again.monitor)
    table = trainmon.read_table(str(training.run), all_restarts=True)
    assert set(zip(table["restart"], table["kind"])) == {
        (0, "grad_reduced"),
        (1, "param_origin"),
        (1, "param_updated"),
    }


def test_a_step_inside_a_backward(tmp_path):
    """The optimizer steps in a hook of the last gradient: hooks change when the backward is over."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    stepped = []

    def step(parameter):
        if all(p.grad is not None for p in model.parameters()):
            optimizer.step()
            optimizer.zero_grad()
            stepped.append(sum(len(p._post_accumulate_grad_hooks) for p in model.parameters()))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    monitor = trainmon.watch(model, optimizer, out=tmp_path / "run")
    ctl("off", tmp_path / "run")
    seen(monitor, 1)
    for _ in range(2):
        model(torch.randn(3, 4)).sum().backward()
    left = len(model._forward_hooks) + len(model._forward_pre_hooks)
    healthy(monitor)
    assert stepped == [4, 2] and left == 0
    assert {step for (step,) in keys(tmp_path / "run", "step")} == {0}


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["off", "nowhere"], "no such directory"),
        (["set", "."], "KEY=VALUE"),
        (["set", ".", "every"], "no run in"),
        (["off", ".", "--at-step", "-1"], "--at-step"),
        (["status", "nowhere"], "no such directory"),
        (["pause", "."], "subcommand"),
    ],
)
def test_wrong_arguments(arguments, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert says in ctl(*arguments, code=2).stderr


def test_ctl_names_every_fault(tmp_path):
    training = Training(tmp_path)
    said = ctl(
        "set", training.run, "every=0", "kindz=grads", "queue_mb=3", "kinds=gards", code=2
    ).stderr
    for part in ("every = 0", 'did you mean "kinds"', "queue_mb = 3: does not change", "gards"):
        assert said.count(part) == 1, said
    assert "novalue" in ctl("set", training.run, "novalue", code=2).stderr
    assert not (training.run / "control.json").exists()
    training.steps(2)
    healthy(training.monitor)


def test_no_control_where_the_directory_was_given(tmp_path):
    """The compatible face has a directory and a dynamic mode of its own."""
    core = trainmon._core.Monitor("{}", "{}", json.dumps({"directory": str(tmp_path / "a/b/c")}))
    (tmp_path / "a/control.json").write_text('{"format": 1, "on": false}')
    time.sleep(1.3)
    assert core.control_versions() == 0
    core.stop()


def test_alert_rules_change(tmp_path, capfd):
    training = Training(tmp_path, kinds=["weights"])
    training.steps(3)
    ctl("set", training.run, "alert_limit=1e-9", "alert_stats=absmax", "--at-step", "5")
    seen(training.monitor, 1)
    training.steps(3)  # 3 4 5
    ctl("set", training.run, "alert_limit=")
    seen(training.monitor, 2)
    training.steps(1)  # 6
    assert training.monitor._core.settle(30)
    alerted = training.monitor.health()["alerts"]
    training.steps(3)
    healthy(training.monitor)
    assert alerted > 0 and training.monitor.health()["alerts"] == alerted
    told = capfd.readouterr().err
    found = trainmon_json("anomalies", training.run, "-k", 1000)
    assert {one["step"] for one in found} == {5}  # repeats are counted: two steps
    assert len(found) == 8 and sum("2 times" in line for line in told.splitlines()) == 8
    assert "trainmon anomalies" in told


def trainmon_json(*arguments):
    done = subprocess.run(
        [launch.command_line(), "--json", *map(str, arguments)], capture_output=True
    )
    return json.loads(done.stdout)
