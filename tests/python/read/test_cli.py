"""The command line: what it prints, what it exits with, on sound, bad, damaged and hostile runs."""

from __future__ import annotations

import ctypes
import json
import os
import pty
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import trainmon
from launch import command_line as program
from launch import finds_nothing
from trainmon import _core
from written_run import WrittenRank

HOSTILE = "\x1b[31mlayers\x1b[0m.\u202eevil\r\n.weight"
# fmt: off
SUBCOMMANDS = [
    "first-bad", "top", "show", "tail", "query", "merge", "compact", "repair", "anomalies", "blackbox", "freeze", "report", "doctor", "config", "config schema",
    "config check", "config init", "config explain", "completion", "ctl",
]
# fmt: on


def call(*arguments, **environment):
    done = subprocess.run(
        [program(), *map(os.fspath, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "80", **environment},
    )
    return done.returncode, done.stdout, done.stderr


def write(out, ranks=2, steps=12, bad_at=None, names=("layers.1.weight", "layers.10.weight")):
    rng = np.random.default_rng(5)
    written = [WrittenRank(out, rank, ranks) for rank in range(ranks)]
    for step in range(steps):
        for number, rank in enumerate(written):
            for name in names:
                for kind in ("grad_reduced", "param_updated"):
                    array = rng.normal(size=30).astype(np.float32)
                    if bad_at == (number, name, kind, step):
                        array[7] = np.nan
                    rank.observe(array, kind, name, step)
            rank.end_step()
    for rank in written:
        rank.stop()
    return written


def test_a_name_that_takes_nothing_suggests_one_that_does(tmp_path):
    write(tmp_path, ranks=1, steps=1, names=("transformer.h.1.weight", "transformer.h.10.weight"))
    code, out, err = call("show", tmp_path, "--name", "h.1")
    assert code == 3 and "did you mean --name '**.h.1'?" in err
    code, out, err = call("show", tmp_path, "--name", "**.h.1")
    assert "transformer.h.1.weight" in out and "h.10" not in out and "did you mean" not in err
    for pattern in ("transformer.h.1", "h.2"):
        assert "did you mean" not in call("show", tmp_path, "--name", pattern)[2]
    with pytest.warns(RuntimeWarning, match=r"did you mean '\*\*\.h\.1'"):
        assert len(trainmon.read(tmp_path, include="h.1")) == 0


def test_the_words_of_python_are_options_too(tmp_path):
    write(tmp_path, ranks=2, steps=1)
    short = ["--kind", "grads", "--name", "layers.1", "--rank", "1", "--stat", "norm"]
    long = ["--kinds", "grads", "--include", "layers.1", "--ranks", "1", "--stats", "norm"]
    assert call("show", tmp_path, *short)[:2] == call("show", tmp_path, *long)[:2]
    assert call("show", tmp_path, *long)[0] == 0


def test_words_of_tables_are_explained_on_a_terminal(tmp_path):
    rank = WrittenRank(tmp_path, 0, 1)
    for accum in (0, 1):
        rank.observe(np.ones(3, np.float32), "grad_unreduced", "w", 0, accum)
    rank.end_step()
    rank.stop()
    here, there = pty.openpty()
    subprocess.run([program(), "show", tmp_path], stdout=there, timeout=60, check=True)
    os.close(there)
    shown = os.read(here, 1 << 16).decode()
    assert "micro: the backward within the step" in shown
    assert "micro:" not in call("show", tmp_path)[1]
    assert '"attempt" counts tries at one step' in call("show", "--help")[1]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "sound"
    write(out)
    return out


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "bad"
    write(out, bad_at=(1, "layers.10.weight", "grad_reduced", 7))
    return out


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "damaged"
    written = write(out)
    (segment,) = written[1].directory.glob("*.tmlog")
    data = bytearray(segment.read_bytes())
    data[-100] ^= 4
    segment.write_bytes(data)
    return out


def test_first_bad(sound, bad):
    code, out, err = call("first-bad", bad)
    assert code == 1
    assert out.splitlines()[0] == "first bad: step 7, rank 1, layers.10.weight"
    assert "1 NaN, 0 +Inf, 0 -Inf of 30 elements (float32)" in out
    # The remark on stderr names a command that works and shows the row.
    follow = err.removeprefix("next: trainmon ").split()
    code, out, _ = call(*follow)
    assert code == 0 and "nan" in out
    code, out, err = call("first-bad", sound)
    assert (code, err) == (0, "") and out == "no NaN and no infinity in 96 rows\n"
    code, out, _ = call("first-bad", bad, "--rank", "0")
    assert code == 0


def test_first_bad_json(sound, bad):
    code, out, _ = call("first-bad", bad, "--json")
    found = json.loads(out)
    assert code == 1
    assert (found["step"], found["rank"], found["ranks"]) == (7, 1, [1])
    assert (found["name"], found["kind"], found["nans"]) == ("layers.10.weight", "grad_reduced", 1)
    assert found["norm"] == "nan"
    code, out, _ = call("--json", "first-bad", sound)
    assert code == 0 and json.loads(out) is None


def test_top(sound):
    by = ("--by", "size")
    code, out, err = call("top", sound, *by, "--stat", "absmax", "--count", "3", "--kind", "grads")
    assert code == 0
    assert out.splitlines()[0].split() == ["absmax", "step", "rank", "kind", "tensor"]
    expected = trainmon.top(sound, "absmax", 3, by="size", kinds="grads")
    lines = [line.split() for line in out.splitlines()[1:]]
    assert [(int(w[1]), int(w[2]), w[4]) for w in lines] == [
        (row.step, row.rank, row.name) for row in expected
    ]
    code, out, _ = call("top", sound, *by, "--smallest", "--count", "1", "--json")
    (found,) = json.loads(out)
    assert found["norm"] == trainmon.top(sound, "norm", 1, by="size", smallest=True)[0].value


def test_a_selection_that_matches_nothing_is_said(sound):
    for command in ("first-bad", "diagnose", "top", "show"):
        code, out, err = call(command, sound, "--name", "layer.1")
        assert code == 3
        assert err.startswith("trainmon: no row matches this selection; the run has ranks 0 1 and ")
        assert "grad_reduced" in err


def test_in_python_a_selection_that_matches_nothing_warns(sound):
    for answer in (trainmon.first_bad, trainmon.diagnose, trainmon.top):
        for asked in ({"include": "layer.1"}, {"ranks": 7}, {"steps": (500, 600)}):
            with pytest.warns(RuntimeWarning, match="no row matches this selection"):
                answer(sound, **asked)


def test_a_rank_that_is_not_there_is_said_without_guessing_kinds(sound):
    for more in ([], ["--kind", "exp_avg"]):
        code, out, err = call("show", sound, "--rank", "7", *more)
        assert code == 3
        assert err == (
            "trainmon: no row matches this selection; the run has ranks 0 1; "
            "`trainmon show RUN` lists names and steps\n"
        )


def test_show(sound):
    code, out, err = call("show", sound, "--steps", "3:4", "--name", "layers.1", "--stat", "norm")
    lines = [line.split() for line in out.splitlines()]
    assert code == 0 and lines[0] == ["step", "rank", "kind", "tensor", "norm"]
    table = trainmon.read_table(sound, steps=(3, 4), include="layers.1")
    assert [(int(w[0]), int(w[1]), w[2], w[3]) for w in lines[1:]] == list(
        zip(table["step"], table["rank"], table["kind"], table["name"], strict=True)
    )
    assert [float(w[4]) for w in lines[1:]] == pytest.approx(list(table["norm"]), rel=1e-4)
    code, out, err = call("show", sound, "--count", "5")
    assert len(out.splitlines()) == 6 and err == "the first 5 of 96 rows; --count 0 shows all\n"
    assert len(call("show", sound, "--count", "0")[1].splitlines()) == 97
    assert call("show", sound, "--count", "5", "--quiet")[2] == ""
    rows = json.loads(call("show", sound, "--count", "0", "--json")[1])
    everything = trainmon.read_table(sound)
    for statistic in ("norm", "min", "max", "mean", "std", "zeros", "nans", "count"):
        assert [row[statistic] for row in rows] == list(everything[statistic])


def test_doctor_of_a_run(sound, bad):
    for run in (sound, bad):
        code, out, err = call("doctor", run)
        assert (code, err) == (0, "")
        assert "96 rows in 2 log files" in out and "in order" in out
    code, out, _ = call("doctor", sound, "--json")
    found = json.loads(out)
    assert found["rows"] == 96 and found["damage"] == []
    for rank in found["ranks"]:
        assert rank["closed"] and rank["rows_produced"] == rank["log_rows"] == 48
        (sink,) = rank["sinks"]
        assert sink["rows_written"] + sum(sink["rows_dropped"].values()) == 48
        assert rank["findings"] == []


def test_doctor_names_what_does_not_add_up(tmp_path):
    (rank,) = write(tmp_path / "run", ranks=1)
    health = json.loads((rank.directory / "health.json").read_text())
    health["sinks"][0]["rows_dropped"] = {"no_space": 5}
    health["parts_off"] = {"activations": "it raised"}
    (rank.directory / "health.json").write_text(json.dumps(health))
    code, out, _ = call("doctor", tmp_path / "run")
    assert code == 3  # rows were dropped: the record is not complete
    assert "sink log: 48 rows produced, but 53 written or dropped" in out
    assert "sink log: 5 rows dropped (no_space)" in out
    assert "activations switched itself off: it raised" in out


def test_doctor_of_the_machine():
    assert finds_nothing(*call("doctor")[:2])
    code, out, _ = call("doctor", "--json")
    found = json.loads(out)
    assert found["version"] == trainmon.__version__
    assert found["cpu_level_detected"] == _core.detected_cpu_level()
    assert found["disk_free_bytes"] > 0
    assert found["cuda_kernels"] == _core.cuda_architectures() == "sm_80 sm_90 sm_100 sm_120"
    why = found["cuda_driver_missing"]
    assert (why == "") == any(Path("/dev").glob("nvidia[0-9]")), why
    assert call("doctor", TRAINMON_CPU_LEVEL="baseline")[1].count("baseline") == 1
    code, out, _ = call("doctor", TRAINMON_CPU_LEVEL="sse9")
    assert code == 1
    assert "TRAINMON_CPU_LEVEL=sse9 is ignored: it must be baseline, avx2 or avx512" in out


def test_damage_is_exit_code_3_and_never_silent(damaged):
    for command in ("first-bad", "top", "show"):
        code, out, err = call(command, damaged)
        assert code == 3 and out
        assert "not used:" in err and "fail their checksum" in err
    code, out, _ = call("doctor", damaged)
    assert code == 3 and "\ndamage\n" in out
    assert "the log gives" in out  # and the books show what is missing
    assert len(json.loads(call("doctor", damaged, "--json")[1])["damage"]) == 1


def test_a_lost_log_of_a_closed_run_is_no_all_clear(tmp_path):
    (rank,) = write(tmp_path / "run", ranks=1)
    (segment,) = rank.directory.glob("*.tmlog")
    segment.unlink()
    for command in ("first-bad", "top", "show"):
        code, out, err = call(command, tmp_path / "run", "--quiet")
        assert code == 3
        assert err == (
            f"trainmon: not used: {rank.directory} at byte 0: "
            "health.json says 48 rows were written, the log holds 0\n"
        )
    code, out, _ = call("doctor", tmp_path / "run")
    assert code == 1 and out.count("48 were written") == 1 and "damage" not in out


def test_a_missing_rank_is_no_all_clear(tmp_path):
    out = tmp_path / "run"
    whole = np.random.default_rng(6).normal(size=20).astype(np.float32)
    for number in range(2):
        rank = WrittenRank(out, number, 2)
        begin, end = 10 * number, 10 * number + 10
        for name in ("w", "v"):
            rank.observe(whole[begin:end], "param_origin", name, 0, space="flat",
                         ranges=[(begin, end)], full_shape=[20], replication="union")  # fmt: skip
        rank.end_step()
        rank.stop()
    for command in ("first-bad", "top", "show"):
        code, _, err = call(command, out, "--merged", "--quiet")
        assert (code, err) == (0, "")
    shutil.rmtree(out / "rank_00001")
    missing = "trainmon: rank 1 of 2 is missing: this answer lacks what it saw\n"
    partial = "trainmon: 2 merged rows are partial: not all of the tensor was there\n"
    for command in ("first-bad", "top", "show"):
        assert call(command, out, "--quiet")[::2] == (3, missing)
        assert call(command, out, "--quiet", "--merged")[::2] == (3, missing + partial)
        assert call(command, out, "--quiet", "--rank", "0")[::2] == (0, "")
        code, _, err = call(command, out, "--rank", "1")
        assert code == 3 and missing in err
    code, text, _ = call("doctor", out)
    assert code == 3 and "rank 1 of 2 is missing" in text and "in order" not in text
    found = json.loads(call("doctor", out, "--json")[1])
    assert found["missing_ranks"] == [1] and found["world_size"] == 2
    assert len(found["ranks"]) == 1


def test_a_living_run(tmp_path):
    rank = WrittenRank(tmp_path / "run", flush_seconds=0.05)
    for step in range(3):
        rank.observe(np.ones(4, np.float32), "grad_reduced", "w", step)
        rank.end_step()
    deadline = time.monotonic() + 20
    while True:
        found = json.loads(call("doctor", tmp_path / "run", "--json")[1])
        # health.json follows the first rows by a moment.
        if found["rows"] == 3 and found["ranks"][0]["has_health"]:
            break
        assert time.monotonic() < deadline
    code, out, _ = call("doctor", tmp_path / "run")
    assert code == 0 and "1 of 1 still running" in out
    assert call("first-bad", tmp_path / "run")[0] == 0
    assert len(call("show", tmp_path / "run")[1].splitlines()) == 4
    rank.stop()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["subcommand"]),
        (["first-baad", "x"], ["no subcommand 'first-baad'", "'first-bad'"]),
        (["top"], ["RUN"]),
        (["top", "/nonexistent"], ["no such directory: /nonexistent"]),
        (["show", "RUN", "--bogus"], ["--bogus"]),
        (["show", "RUN", "--steps", "7:x"], ["--steps", "'7:x'", "A:B"]),
        (["show", "RUN", "--steps", "7:3"], ["--steps", "7:3"]),
        (["show", "RUN", "--stat", "nrm"], ["'nrm'", "did you mean 'norm'", "absmax"]),
        (["show", "RUN", "--kind", "gradz"], ["'gradz'", "'grads'", "grad_reduced param_updated"]),
        (["show", "RUN", "--rank", "x"], ["--rank"]),
        (["top", "RUN", "--count", "0"], ["--count"]),
        (["config", "check", "/nonexistent.json"], ["/nonexistent.json"]),
    ],
)
def test_wrong_usage_is_exit_code_2_and_says_what_would_be_right(sound, arguments, parts):
    code, out, err = call(*[sound if a == "RUN" else a for a in arguments])
    assert code == 2 and out == ""
    for part in parts:
        assert part in err


def without_privilege():
    """In a child before exec: root may read everything, and must not here."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def test_a_run_that_may_not_be_read_is_named(tmp_path):
    out = tmp_path / "run"
    write(out)
    code = "import sys, trainmon\ntry: trainmon.read_table(sys.argv[1])\nexcept PermissionError as e: print(e)"
    commands = [
        [program(), "doctor", out],
        [program(), "show", out],
        [sys.executable, "-c", code, out],
    ]
    out.chmod(0)
    try:
        done = [
            subprocess.run(command, capture_output=True, text=True, preexec_fn=without_privilege)
            for command in commands
        ]
    finally:
        out.chmod(0o700)
    for each in done[:2]:
        assert each.returncode == 2
        assert each.stderr == f"trainmon: cannot read {out}: Permission denied\n"
    assert done[2].stdout == f"[Errno 13] cannot read {out}: Permission denied\n"


def test_config(tmp_path):
    code, out, _ = call("config", "schema")
    assert code == 0
    schema = json.loads(out)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    file = tmp_path / "monitor.json"
    file.write_text('{"kinds": ["weights"], "every": 5}')
    code, out, err = call("config", "check", file)
    assert code == 0 and "valid" in err
    effective = json.loads(out)
    assert effective["every"] == 5 and set(effective) == set(schema["properties"]) - {"$schema"}
    file.write_text('{"kindz": ["weights"], "every": 0}')
    code, out, err = call("config", "check", file)
    assert code == 1 and len(out.splitlines()) == 2
    assert "kindz" in out and "kinds" in out and "every" in out
    checked = json.loads(call("config", "check", file, "--json")[1])
    assert not checked["valid"] and len(checked["faults"]) == 2


def test_help_and_version():
    assert call("--version") == (0, f"trainmon {trainmon.__version__}\n", "")
    for subcommand in ["", *SUBCOMMANDS]:
        code, out, err = call(*subcommand.split(), "--help")
        assert (code, err) == (0, "")
        assert max(map(len, out.splitlines())) <= 80, subcommand
        assert "Examples:" in out or subcommand.startswith("config ")


def test_output_fits_80_columns(tmp_path):
    name = "model.decoder.transformer_blocks.17.self_attention.query_key_value.projection.weight"
    write(tmp_path / "run", ranks=1, names=[name, "模型." + name])
    for command in ("show", "top"):
        out = call(command, tmp_path / "run")[1]
        assert (
            max(len(line) + line.count("模") + line.count("型") for line in out.splitlines()) <= 80
        )
        assert "…" in out and "eight" in out
        # Nobody's terminal: names are whole.
        assert name in call(command, tmp_path / "run", COLUMNS="")[1]


def test_names_cannot_command_the_terminal(tmp_path):
    out = tmp_path / "run"
    write(out, ranks=1, names=[HOSTILE], bad_at=(0, HOSTILE, "grad_reduced", 2))
    for command in ("show", "top", "first-bad"):
        _, text, err = call(command, out)
        for stream in (text, err):
            assert not any(ord(c) < 32 and c != "\n" for c in stream)
            assert "\u202e" not in stream
        assert "\\x1b[31mlayers" in call(command, out, COLUMNS="")[1]
    assert json.loads(call("show", out, "--json")[1])[0]["name"] == HOSTILE


def on_terminal(*arguments, **environment):
    master, slave = pty.openpty()
    with subprocess.Popen(
        [program(), *map(os.fspath, arguments)],
        stdout=slave,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", **environment},
    ) as process:
        os.close(slave)
        text = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:
                break
            if not part:
                break
            text += part
        process.wait(timeout=60)
    os.close(master)
    return text.decode()


def test_colour_only_for_a_terminal_that_wants_it(bad):
    assert "\x1b[31m" in on_terminal("first-bad", bad)
    assert "\x1b" not in on_terminal("first-bad", bad, NO_COLOR="1")
    assert "\x1b" not in on_terminal("first-bad", bad, TERM="dumb")
    assert "\x1b" not in on_terminal("first-bad", bad, "--no-color")
    assert "\x1b" not in call("first-bad", bad, TERM="xterm")[1]


def test_output_that_cannot_be_written_is_an_error(sound):
    with open("/dev/full", "w") as full:
        done = subprocess.run([program(), "show", os.fspath(sound)], stdout=full, timeout=60)
    assert done.returncode == 3


def test_show_leaves_out_backwards_that_no_step_followed(tmp_path):
    """As rows of a step that GradScaler skipped: an earlier attempt at the step that was taken."""
    import torch

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainmon.watch(model, optimizer, kinds=["grads", "grad_unreduced"], out=tmp_path):
        for step, factor in enumerate((1.0, float("nan"), 1.0)):
            (model(torch.ones(3, 2)) * factor).sum().backward()
            if step != 1:
                optimizer.step()
            optimizer.zero_grad()
    asked = ["show", tmp_path, "--json", "--kind", "grad_unreduced", "--name", "weight"]
    code, out, err = call(*asked)
    assert code == 0 and [(r["step"], r["attempt"]) for r in json.loads(out)] == [(0, 0), (1, 1)]
    assert "left out: 1 row of backwards that no step followed, 1 with a NaN" in err
    code, out, err = call(*asked, "--all-attempts")
    attempts = [(r["step"], r["attempt"]) for r in json.loads(out)]
    assert code == 0 and attempts == [(0, 0), (1, 0), (1, 1)] and "left out" not in err
    code, out, _ = call("first-bad", tmp_path)  # what was skipped is what one looks for
    assert code == 1 and "attempt 0" in out
