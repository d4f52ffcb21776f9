# The flight recorder of real runs: what outlives a hang and a kill, and who is to blame.
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import textwrap
import time

import numpy
import pytest
import torch

import flight_decoder
import launch
import trainmon

RANKS = 2


def ring_of(run, rank=0, restart=0):
    (path,) = pathlib.Path(run, f"rank_{rank:05}", f"restart_{restart:04}").glob("flight-*.ring")
    return flight_decoder.decode(path.read_bytes())


def command(*arguments):
    done = subprocess.run(
        [launch.command_line(), *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode in (0, 1, 2, 3), done.stderr
    return done


def blackbox(run):
    """Exit code, and what it tells."""
    done = command("blackbox", run, "--json")
    return done.returncode, json.loads(done.stdout) if done.stdout else {}


class Ranks:
    """Two ranks of flight_run.py; ended, whatever they are in, at the end."""

    def __init__(self, run, case):
        self.meeting = run.parent / "meeting"
        self.processes = [
            launch.start("flight_run.py", run, case, rank=r, ranks=RANKS, meeting=self.meeting)
            for r in range(RANKS)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        for process in self.processes:
            process.kill()
            process.communicate()


def hung(run, rank=0):
    """What blackbox tells once `rank` is in a collective that rank 1 will not enter, for a second."""
    deadline = time.monotonic() + 300
    before = None
    while time.monotonic() < deadline:
        if (run / "odd").exists():
            code, told = blackbox(run)
            now = [(one["group"], one["number"], one["inside"]) for one in told["stuck"]]
            is_there = len(told["ranks"]) == RANKS and told["ranks"][rank]["inside"]
            if is_there and now and now == before:
                return code, told
            before = now
        time.sleep(1)  # a rank that is late leaves the call before
    raise AssertionError(f"nobody hangs: {blackbox(run)}")


def train(out, steps=4, **options):
    """One process; the gradients of each step, as torch has them in float64."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = []
    monitor = trainmon.watch(model, optimizer, out=out, recorder_mb=1, **options)
    for step in range(steps):
        model(torch.full((2, 8), float(step))).square().sum().backward()
        gradients.append({n: p.grad.double().numpy() for n, p in model.named_parameters()})
        optimizer.step()
        optimizer.zero_grad()
        monitor.log(loss=step / 3)
    return monitor, gradients


def test_a_ring_holds_what_happened(tmp_path):
    monitor, gradients = train(tmp_path / "run", kinds=["grad_reduced"])
    monitor.stop()
    ring = ring_of(tmp_path / "run")
    assert (ring.rank, ring.world_size, ring.restart, ring.pid) == (0, 1, 0, os.getpid())
    assert ring.closed and ring.unfinished == 0
    assert ring.claimed == len(ring.events)
    rows = {(e["step"], ring.series[e["id"]][1]): e for e in ring.of("row")}
    assert rows.keys() == {(s, name) for s in range(4) for name in ("weight", "bias")}
    for (step, name), row in rows.items():
        gradient = gradients[step][name]
        assert ring.series[row["id"]] == ("grad_reduced", name, "", "float32")
        assert row["count"] == gradient.size and row["nans"] == row["infs"] == 0
        expected = (numpy.sqrt((gradient**2).sum()), gradient.min(), gradient.max())
        numpy.testing.assert_allclose([row[k] for k in "abc"], expected, rtol=1e-12)
        numpy.testing.assert_allclose(row["d"], gradient.mean(), rtol=1e-9, atol=1e-12)
    outcomes = [(e["step"], e["detail"]) for e in ring.of("outcome")]
    assert outcomes == [(step, "taken") for step in range(4)]
    losses = [(ring.words[e["id"]], e["a"]) for e in ring.of("scalar")]
    assert losses == [("loss", step / 3) for step in range(4)]
    stages = [(e["step"], e["detail"]) for e in ring.of("stage")]
    one = (
        *("forward begins", "forward has ended", "backward begins", "backward has ended"),
        *("step begins", "step has ended"),
    )
    assert stages == [(step, stage) for step in range(4) for stage in one]
    times = [e["time"] for e in ring.events]
    assert times == sorted(times) and ring.started <= times[0] and times[-1] <= time.time_ns()


def test_the_file_describes_itself(tmp_path):
    """Its JSON has the members of a slot where docs/formats.md has them."""
    monitor, _ = train(tmp_path / "run")
    monitor.stop()
    slot = ring_of(tmp_path / "run").description["slot"]
    names = (
        *("seq", "time_ns", "type", "detail", "id", "window", "step", "accum", "call", "number"),
        *("count", "nans", "infs", "values", "flags", "optimizer", "group"),
        "crc32c_of_bytes_before",
    )
    at = (0, 8, 16, 18, 20, 24, 32, 40, 44, 48, 56, 64, 72, 80, 112, 116, 120, 124)
    places = dict(zip(names, at, strict=True))
    assert {k: int(v.split("@")[1]) for k, v in slot.items() if "@" in v} == places


def test_a_nan_and_its_alert_are_in_it(tmp_path):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.watch(model, optimizer, out=tmp_path / "run", recorder_mb=1):
        model(torch.full((1, 3), float("nan"))).sum().backward()
        optimizer.step()
    ring = ring_of(tmp_path / "run")
    assert any(e["nans"] == 3 and numpy.isnan(e["a"]) for e in ring.of("row"))
    assert "non_finite" in {ring.words[e["group"]] for e in ring.of("alert")}


def test_a_rank_that_sleeps_is_named(tmp_path):
    run = tmp_path / "run"
    with Ranks(run, "sleeps") as ranks:
        code, told = hung(run)
        (stuck,) = told["stuck"]
        assert (stuck["inside"], stuck["absent"]) == ({"all_reduce": [0]}, [1])
        assert stuck["number"] == 2 * 3 + 1  # two a step, and this is the first of step 3
        assert [r["state"] for r in told["ranks"]] == ["alive", "alive"]
        assert [r["step"] for r in told["ranks"]] == [3, 3]
        assert [r["place"] for r in told["ranks"]] == ["after the backward"] * 2
        (inside,) = told["ranks"][0]["inside"]
        assert inside["operation"] == "all_reduce" and inside["bytes"] == 4 * 8 * 4
        assert told["ranks"][1]["inside"] == []
        frozen = command("freeze", run).stdout.strip()
        ranks.kill()
    code, told = blackbox(run)
    assert code == 1 and told["stuck"][0]["hung"] and told["stuck"][0]["absent"] == [1]
    assert [r["state"] for r in told["ranks"]] == ["killed", "killed"]
    text = command("blackbox", run)
    assert (
        "rank 1 has not entered all_reduce 7 of group 0, in which rank 0 has waited for"
        in text.stdout
    )
    _, copy = blackbox(frozen)
    assert copy["stuck"][0]["absent"] == [1]
    assert [r["state"] for r in copy["ranks"]] == ["unknown", "unknown"]


def test_a_rank_that_a_signal_holds_is_named(tmp_path):
    run = tmp_path / "run"
    with Ranks(run, "sleeps") as ranks:
        hung(run)
        held = ranks.processes[1]
        held.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, held.pid, os.WSTOPPED)
        code, told = blackbox(run)
        assert code == 1
        assert [r["state"] for r in told["ranks"]] == ["alive", "suspended"]
        assert "suspended" in command("blackbox", run).stdout
        held.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, held.pid, os.WCONTINUED)
        assert [r["state"] for r in blackbox(run)[1]["ranks"]] == ["alive", "alive"]


def test_a_group_that_was_made_anew_is_none_of_before(tmp_path):
    run = tmp_path / "run"
    with Ranks(run, "anew"):
        _, told = hung(run)
    (stuck,) = told["stuck"]
    assert (stuck["inside"], stuck["absent"]) == ({"all_reduce": [0]}, [1])
    assert (stuck["group"], stuck["number"]) == ("1#2", 2 * 3 + 1)


def test_a_wait_for_a_call_that_another_has_not_made_is_named(tmp_path):
    run = tmp_path / "run"
    with Ranks(run, "waits"):
        _, told = hung(run)
    (stuck,) = told["stuck"]
    assert (stuck["inside"], stuck["absent"]) == ({"all_reduce": [0]}, [1])
    assert told["ranks"][0]["inside"][0]["waits"]


def test_a_long_wait_for_one_other_rank_is_said(tmp_path):
    run = tmp_path / "run"
    with Ranks(run, "receives"):
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            code, told = blackbox(run) if (run / "odd").exists() else (None, {})
            if code == 1:
                break
            time.sleep(0.5)
        text = command("blackbox", run).stdout
    assert [r["state"] for r in told["ranks"]] == ["alive", "alive"] and told["stuck"] == []
    (inside,) = told["ranks"][0]["inside"]
    assert inside["operation"] == "batch_isend_irecv" and inside["point_to_point"]
    assert inside["waits"]
    waited = re.match(r"rank 0 has waited for (\d+)[.\d]* s in batch_isend_irecv 1 of group", text)
    assert waited and int(waited[1]) >= 10


def test_ranks_that_disagree_are_told_apart(tmp_path):
    """gloo may let one of them through, or raise: what counts is what the other one is in."""
    run = tmp_path / "run"
    with Ranks(run, "other_call") as ranks:
        deadline = time.monotonic() + 300
        while not (run / "odd").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(2)
        ranks.kill()
    rings = [ring_of(run, rank) for rank in range(RANKS)]
    calls = [[(r.words[e["id"]], e["number"]) for e in r.of("enter")] for r in rings]
    assert ("all_reduce", 7) in calls[0] and ("broadcast", 7) in calls[1]


def test_a_killed_rank_is_named_with_its_last_step(tmp_path):
    run = tmp_path / "run"
    with Ranks(run, "killed") as ranks:
        ranks.processes[1].wait(300)
        ended = time.monotonic() + 60
        while ranks.processes[0].poll() is None and time.monotonic() < ended:
            time.sleep(0.1)  # gloo finds the connection closed
    code, told = blackbox(run)
    killed = told["ranks"][1]
    assert code == 1 and killed["state"] == "killed"
    assert (killed["step"], killed["place"]) == (3, "after the backward")
    ring = ring_of(run, 1)
    assert not ring.closed
    assert [e["step"] for e in ring.of("outcome")] == [0, 1, 2]
    assert [e["number"] for e in ring.of("leave")] == [1, 2, 3, 4, 5, 6]


def test_calls_of_a_whole_run_pair_up(tmp_path):
    run = tmp_path / "run"
    launch.run("flight_run.py", run, "whole", ranks=RANKS, timeout=300)
    code, told = blackbox(run)
    assert (code, told["stuck"], told["damage"]) == (0, [], [])
    assert [r["state"] for r in told["ranks"]] == ["stopped", "stopped"]
    for rank in range(RANKS):
        ring = ring_of(run, rank)
        entered, left = (
            [(e["number"], e["group"]) for e in ring.of(t)] for t in ("enter", "leave")
        )
        assert entered == left
        reduced = [e for e in ring.of("enter") if ring.words[e["id"]] == "all_reduce"]
        assert [e["number"] for e in reduced] == list(range(1, 13))
        assert [e["count"] for e in reduced] == [4 * 8 * 4, 4 * 4] * 6
        assert {ring.groups[e["group"]][1] for e in reduced} == {"*"}
        barriers = [e for e in ring.of("enter") if ring.words[e["id"]] == "barrier"]
        assert len(barriers) == (6 if rank == 0 else 0)
        assert {ring.groups[e["group"]][1] for e in barriers} <= {"0"}


def test_calls_are_numbered_on_when_hooks_are_put_on_again(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    change = {"format": 1, "number": 1, "set": {"kinds": ["weights"]}, "apply_at_step": 3}
    (run / "control.json").write_text(json.dumps(change))
    launch.run("flight_run.py", run, "whole", ranks=RANKS, timeout=300)
    for rank in range(RANKS):
        notes = json.loads((run / f"rank_{rank:05}/restart_0000/run.json").read_text())["notes"]
        assert notes["control"]["number"] == 1 and notes["control"]["since_step"] == 3
        ring = ring_of(run, rank)
        reduced = [e for e in ring.of("enter") if ring.words[e["id"]] == "all_reduce"]
        assert [e["number"] for e in reduced] == list(range(1, 13))


def test_functions_of_torch_are_as_before_after_stop(tmp_path):
    before = {name: getattr(torch.distributed, name) for name in ("all_reduce", "barrier", "send")}
    wait = torch.distributed.Work.wait
    monitor, _ = train(tmp_path / "run")
    assert torch.distributed.all_reduce is not before["all_reduce"]
    monitor.stop()
    assert all(getattr(torch.distributed, name) is was for name, was in before.items())
    assert torch.distributed.Work.wait is wait


def test_a_forked_child_writes_nothing(tmp_path):
    monitor, _ = train(tmp_path / "run")
    before = ring_of(tmp_path / "run").claimed
    child = os.fork()
    if child == 0:
        monitor.log(loss=7.0)
        monitor.stop()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert ring_of(tmp_path / "run").claimed == before
    monitor.log(loss=8.0)
    assert ring_of(tmp_path / "run").claimed == before + 1
    monitor.stop()
    ring = ring_of(tmp_path / "run")
    assert ring.closed and 7.0 not in [e["a"] for e in ring.of("scalar")]


def test_a_resumed_run_shows_the_newest_start(tmp_path):
    for steps in (2, 5):
        train(tmp_path / "run", steps=steps)[0].stop()
    code, told = blackbox(tmp_path / "run")
    assert code == 0
    assert [(r["restart"], r["step"]) for r in told["ranks"]] == [(1, 4)]
    assert ring_of(tmp_path / "run", restart=0).of("outcome")[-1]["step"] == 1


def test_without_room_a_run_goes_on_without_it(tmp_path, capfd):
    """A limit on the size of files stands for a full disk: posix_fallocate fails."""
    program = textwrap.dedent(f"""
        import resource, sys
        sys.path[:0] = {[str(launch.SHARED), os.path.dirname(__file__)]!r}
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
        import test_flight
        monitor, _ = test_flight.train({str(tmp_path / "run")!r})
        monitor.stop()
    """)
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "the flight recorder failed" in done.stderr and "cannot take the room" in done.stderr
    assert not list((tmp_path / "run").rglob("*.ring"))
    assert set(trainmon.read_table(tmp_path / "run")["step"].tolist()) == {0, 1, 2, 3}
    done = command("blackbox", tmp_path / "run")
    assert done.returncode == 2 and "no flight recorder in" in done.stderr


def test_there_is_none_unless_it_is_asked_for(tmp_path):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = torch.distributed.all_reduce
    with trainmon.watch(model, optimizer, out=tmp_path / "run"):
        assert torch.distributed.all_reduce is before
    assert not list((tmp_path / "run").rglob("*.ring"))


@pytest.mark.parametrize("seed", range(20))
def test_damaged_rings_are_said_and_never_believed(tmp_path, seed):
    monitor, _ = train(tmp_path / "run")
    monitor.stop()
    (path,) = (tmp_path / "run").rglob("*.ring")
    sound = path.read_bytes()
    random = numpy.random.default_rng(seed)
    kinds = {
        "cut": lambda: sound[: random.integers(0, len(sound))],
        "random": lambda: random.bytes(random.integers(0, 10_000)),
        "header": lambda: sound[:40] + random.bytes(8) + sound[48:],
        "flipped": lambda: bytes(
            b ^ (1 if i in (slot_of(sound, 0) + 60, slot_of(sound, 1) + 3) else 0)
            for i, b in enumerate(sound)
        ),
    }
    damaged = list(kinds.values())[seed % len(kinds)]()
    path.write_bytes(damaged)
    code, told = blackbox(tmp_path / "run")
    assert code == 3 and told["damage"], (list(kinds)[seed % len(kinds)], told)


def slot_of(content, index):
    """Where a slot begins."""
    return int.from_bytes(content[32:40], "little") + 128 * index


def test_a_live_run_is_followed_until_somebody_is_named(tmp_path):
    """Before its first start, while two ranks train, and when one does not enter a collective."""
    run = tmp_path / "run"
    words = [launch.command_line(), "blackbox", run, "-f", "--json", "--interval", "0.1"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as follower:
        assert "waiting for its first start" in follower.stderr.readline()
        with Ranks(run, "sleeps"):
            for line in follower.stdout:
                told = json.loads(line)
                if told["stuck"] and told["stuck"][0]["absent"] == [1] and (run / "odd").exists():
                    break
            assert told["stuck"][0]["inside"] == {"all_reduce": [0]}
            assert [rank["state"] for rank in told["ranks"]] == ["alive", "alive"]
        for line in follower.stdout:  # both are killed
            if [rank["state"] for rank in json.loads(line)["ranks"]] == ["killed", "killed"]:
                break
        follower.send_signal(signal.SIGINT)
        follower.stdout.read()
        assert follower.wait(30) == 1


def copies_in(run):
    return sorted(path.relative_to(run).as_posix() for path in run.glob("frozen_*/**/*.ring"))


def bad_steps(monitor, model, optimizer, steps):
    for is_bad in steps:
        x = torch.full((1, 8), float("nan") if is_bad else 1.0)
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert monitor.flush(60)


def test_what_the_recorder_holds_at_an_alert_is_kept(tmp_path, capfd):
    run = tmp_path / "run"
    monitor, _ = train(run)
    assert monitor.flush(60) and not copies_in(run)
    monitor.stop()
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for start in range(1, 6):
        monitor = trainmon.watch(
            model, optimizer, out=run, recorder_mb=1, start_iteration=10 * start
        )
        torch.nn.init.ones_(model.weight), torch.nn.init.ones_(model.bias)
        bad_steps(monitor, model, optimizer, [False, True, True, True])
        monitor.stop()
        said = capfd.readouterr().err.splitlines()[-1]
        assert (f"; flight recorder kept in {run}/frozen_at_step_{10 * start + 1};" in said) == (
            start <= 3
        ), said
    # Three of a rank are enough, and one a minute.
    expected = [
        f"frozen_at_step_{10 * s + 1}/rank_00000/restart_{s:04}/flight-000000.ring"
        for s in (1, 2, 3)
    ]
    assert copies_in(run) == expected
    copy = flight_decoder.decode((run / expected[1]).read_bytes())
    assert not copy.closed and "non_finite" in {copy.words[e["group"]] for e in copy.of("alert")}
    _, told = blackbox(run / "frozen_at_step_21")
    assert [(rank["rank"], rank["step"]) for rank in told["ranks"]] == [(0, 21)]


def test_a_step_check_keeps_a_copy(tmp_path):
    run = tmp_path / "run"
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = trainmon.watch(model, optimizer, out=run, recorder_mb=1, checks=True)
    for step in range(6):
        if step == 3:
            model.weight.data[0, 0] += 1e-3
        model(torch.randn(2, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert monitor.flush(60)
    monitor.stop()
    (copy,) = copies_in(run)
    assert copy.startswith("frozen_at_step_3/rank_00000/")


def test_without_a_recorder_no_copy_is_kept(tmp_path):
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.watch(model, optimizer, out=tmp_path / "run") as monitor:
        bad_steps(monitor, model, optimizer, [True])
    assert not list((tmp_path / "run").glob("frozen_*"))
