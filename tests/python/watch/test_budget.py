# A budget for monitoring, on a clock of our own: which steps are recorded, what is said of it, and
# that training does not notice.
import json
import subprocess

import pytest
import torch

import launch
import trainmon
from adapter_rows import healthy, keys, run_json
from test_control import Training, ctl, seen
from trainmon.torch.measuring import own_time

KINDS = ["grad_reduced", "param_origin", "param_updated"]


class FakeClock:
    """Stands still but for what it is told: a forward takes 1 s, a sweep of ours `sweep` s."""

    def __init__(self, monkeypatch, sweep):
        self.seconds, self.sweep = 0.0, sweep
        monkeypatch.setattr(own_time, "now", lambda: self.seconds)

    def install(self, training):
        adapter = training.monitor._adapter
        sweep = adapter.sweep

        def slow_sweep(*arguments):
            self.seconds += self.sweep
            return sweep(*arguments)

        adapter.sweep = slow_sweep
        training.model.register_forward_pre_hook(lambda *_: self.forward())

    def forward(self):
        self.seconds += 1.0


def training_of(tmp_path, monkeypatch, sweep, **keys):
    clock = FakeClock(monkeypatch, sweep)
    training = Training(tmp_path, kinds=KINDS, **keys)
    clock.install(training)
    return training


def is_kept(step, part, of):
    """Steps whose bits, read backwards, are below `part`: written with text, not with shifts."""
    bits = of.bit_length() - 1
    return int(format(step % of, f"0{bits}b")[::-1] or "0", 2) < part if bits else True


def told(training):
    return json.loads(training.monitor._core.budget())


def test_the_budget_is_kept_and_every_reader_can_tell(tmp_path, monkeypatch, capfd):
    # Three sweeps of 0.02 s in a step of 1 s: 6 %, so one step in six is within 1 %.
    training = training_of(tmp_path, monkeypatch, 0.02, budget="1%")
    training.steps(50)
    note = told(training)
    part, of = note["kept"]
    assert 0.008 <= part / of * 0.06 <= 0.012  # the goal: within 20 % after 50 steps
    assert note["share"] == pytest.approx(part / of * 0.06, rel=0.1)
    assert note["factor"] == pytest.approx(1.0, abs=0.05)  # here hooks see all that they cost
    training.steps(150)
    healthy(training.monitor)
    note = run_json(training.monitor)["notes"]["budget"]
    changes = note["changes"]
    assert changes[0] == {"from_step": 0, "kept": [1, 2], "every": 1, "why": "begin"}
    assert note["older_changes"] == 0 and note["kept"] == changes[-1]["kept"]
    expected = set()
    for change, end in zip(changes, [c["from_step"] for c in changes[1:]] + [200]):
        steps = range(change["from_step"], end)
        expected |= {step for step in steps if is_kept(step, *change["kept"])}
    recorded = set(training.recorded())
    assert recorded == expected and 20 < len(recorded) < 60
    # The same by step, without any rule to know.
    scalars = trainmon.read_table(str(training.run)).scalars
    flags = {
        int(step): value
        for step, name, value in zip(scalars["step"], scalars["name"], scalars["value"])
        if name == "trainmon/recorded"
    }
    assert {step for step, value in flags.items() if value == 1.0} == recorded
    assert set(flags) == set(range(200))
    doctor = launch.command_line()
    text = subprocess.run([doctor, "doctor", training.run], capture_output=True, text=True).stdout
    since = changes[-1]["from_step"]
    line = f"{part} of {of} steps recorded since step {since}"
    assert "1%: measured share 0.9" in text and line in text, text
    out = subprocess.run(
        [doctor, "doctor", training.run, "--json"], capture_output=True, text=True
    ).stdout
    (rank,) = json.loads(out)["ranks"]
    assert (rank["budget"]["part"], rank["budget"]["of"]) == (part, of)
    said = capfd.readouterr().err
    assert "for at most 1% of the step's time" in said
    assert f"budget 1%: {part} of {of} steps recorded, 0.9" in said


def test_everything_is_recorded_where_it_fits(tmp_path, monkeypatch):
    training = training_of(tmp_path, monkeypatch, 0.01, budget=0.05)
    training.steps(60)
    assert told(training)["kept"] == [1, 1] and not told(training)["out_of_reach"]
    healthy(training.monitor)
    assert set(range(20, 60)) <= set(training.recorded())


def test_every_stays_the_most_that_is_recorded(tmp_path, monkeypatch):
    training = training_of(tmp_path, monkeypatch, 0.1, budget="1%", every=3)
    training.steps(120)
    assert told(training)["every"] == 3
    healthy(training.monitor)
    recorded = sorted(training.recorded())
    assert all(step % 3 == 0 for step in recorded)
    part, of = run_json(training.monitor)["notes"]["budget"]["kept"]
    assert 0.008 <= part / of / 3 * 0.3 <= 0.012


def test_after_a_finding_every_step_is_recorded_for_a_while(tmp_path, monkeypatch):
    training = training_of(tmp_path, monkeypatch, 0.1, budget="1%")
    training.steps(60)
    adapter = training.monitor._adapter
    while not adapter.clock.recording:
        training.steps()
    bad = training.monitor._core.step(0)
    assert training.monitor._core.health()["alerts"] == 0
    training.optimizer.zero_grad()
    training.model(torch.full((3, 4), float("nan"))).sum().backward()
    training.optimizer.step()
    assert training.monitor._core.settle(30.0)
    training.steps(20)
    (found,) = [c for c in told(training)["changes"] if c["why"] == "found"]
    (over,) = [c for c in told(training)["changes"] if c["why"] == "found_over"]
    assert found["kept"] == [1, 1] and over["from_step"] == found["from_step"] + 8
    assert found["from_step"] in (bad + 1, bad + 2)
    healthy(training.monitor)
    recorded = training.recorded()
    assert set(range(found["from_step"], over["from_step"])) <= set(recorded)
    assert over["from_step"] + 1 not in recorded or over["from_step"] not in recorded


def test_a_budget_may_come_and_go_while_the_run_goes_on(tmp_path, monkeypatch):
    training = training_of(tmp_path, monkeypatch, 0.02)
    training.steps(3)
    assert training.monitor._core.budget() == ""
    ctl("set", training.run, "budget=1%")
    seen(training.monitor, 1)
    training.steps(100)
    note = told(training)
    assert note["budget"] == 0.01 and note["kept"][0] / note["kept"][1] < 0.2
    ctl("set", training.run, "budget=")
    seen(training.monitor, 2)
    training.steps(1)
    assert training.monitor._core.budget() == ""
    training.steps(10)
    healthy(training.monitor)
    recorded = training.recorded()
    assert set(range(104, 114)) <= set(recorded) and len(recorded) < 60
    notes = run_json(training.monitor)["notes"]
    assert notes["budget"]["budget"] is None
    whys = [(c["from_step"], c["why"]) for c in notes["budget"]["changes"]]
    assert whys[0] == (4, "begin") and whys[-1] == (104, "end")
    assert [c["set"] for c in notes["control"]["changes"]] == [{"budget": "1%"}, {}]


@pytest.mark.parametrize(
    "budget",
    ["1", "-1%", "abc", 0, "200%", 1, 2.0, -0.01, "0%", "51%", " 1%", "1 %", True, [0.01], "nan%"],
)
def test_bad_budgets_are_named(budget, tmp_path):
    with pytest.raises(trainmon.ConfigError) as error:
        Training(tmp_path, budget=budget)
    (fault,) = error.value.faults
    assert fault.startswith("budget = ") and json.dumps(budget) in fault
    assert 'a number from 1e-04 to 0.5, text such as "1%", or null' in fault
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("budget", "share"),
    [("1%", 0.01), ("0.5%", 0.005), ("50%", 0.5), (0.02, 0.02), ("0.01%", 1e-4)],
)
def test_budgets_are_shares(budget, share):
    assert json.loads(trainmon.config.config_json(None, budget=budget))["budget"] == share


def train(folder, **keys):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    monitor = None
    if keys:
        monitor = trainmon.watch(model, optimizer, out=folder / "run", **keys)
    seen = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        seen += [loss.detach(), *(p.detach().clone() for p in model.parameters())]
    if monitor is not None:
        health = monitor.stop()
        assert health["parts_off"] == {} and health["errors"] == 0
    seen.append(torch.get_rng_state())
    hooks = [
        *(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()),
        *(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters()),
        len(optimizer._optimizer_step_pre_hooks),
        len(optimizer._optimizer_step_post_hooks),
    ]
    assert not any(hooks)
    return seen


@pytest.mark.parametrize("budget", ["0.01%", "5%", "50%"])
def test_training_is_bit_identical(budget, tmp_path):
    kinds = ["grads", "grad_unreduced", "weights", "moments", "activations"]
    bare, watched = train(tmp_path), train(tmp_path, kinds=kinds, budget=budget)
    assert len(bare) == len(watched) > 60
    assert all(torch.equal(a, b) for a, b in zip(bare, watched, strict=True))
    assert 0 < len(set(keys(tmp_path / "run", "step"))) <= 60  # it was watched, if not all the time


def test_hooks_time_themselves_and_pass_everything_on(monkeypatch):
    clock = FakeClock(monkeypatch, 0.0)

    class Core:
        part_failed = None

    own = own_time.OwnTime(Core())
    assert own.per_call == 0.0 and own.seconds == 0.0  # this clock stands still

    def hook(a, b, *, c):
        clock.seconds += 0.25
        return a, b, c

    timed = own.hook(hook)
    assert timed(1, 2, c=3) == (1, 2, 3) and own.seconds == 0.25
    assert timed(1, 2, c=3) == (1, 2, 3) and own.seconds == 0.5


def test_without_a_budget_nothing_is_timed(tmp_path):
    training = Training(tmp_path, kinds=["grads", "activations"])
    assert training.monitor._adapter.own_time is None
    hooks = [h for m in training.model.modules() for h in m._forward_hooks.values()]
    assert hooks and not any(isinstance(hook, own_time.TimedHook) for hook in hooks)
    training.steps(3)
    healthy(training.monitor)
    assert len(trainmon.read_table(str(training.run)).scalars["step"]) == 0
    assert "budget" not in run_json(training.monitor)["notes"]
