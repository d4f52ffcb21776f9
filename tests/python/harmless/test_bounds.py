"""Files that claim, or unpack to, far more than they are: memory stays a multiple of their size
(docs/formats.md), the rest of the run is read, and what was refused is said."""

from __future__ import annotations

import json
import os
import re
import resource
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hostile_logs
import launch
from written_run import WrittenRank

# As docs/formats.md has it; what the programs take without any run is in the constant.
CONSTANT = 512 << 20
MULTIPLE = 1000
STEPS = 5

READERS = {
    "first-bad": ("first-bad", "RUN"),
    "top": ("top", "RUN"),
    "top --merged": ("top", "RUN", "--merged"),
    "top --by size": ("top", "RUN", "--by", "size"),
    "tail": ("tail", "RUN"),
    "show": ("show", "RUN", "--count", 0),
    "query": ("query", "RUN", "SELECT count(*), max(norm) FROM stats"),
    "doctor": ("doctor", "RUN"),
    "compare": ("compare", "RUN", "SOUND"),
    "convert": ("convert", "RUN", "--to", "csv", "-o", "out"),
    "convert --to sqlite": ("convert", "RUN", "--to", "sqlite", "-o", "out.db"),
    "merge": ("merge", "RUN", "-o", "merged"),
    "anomalies": ("anomalies", "RUN"),
    "ctl status": ("ctl", "status", "RUN"),
}
READ = """
import sys, warnings, trainmon
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    table = trainmon.read_table(sys.argv[1])
print(len(table.to_pandas()), "rows", [str(one) for one in table.damage])
"""


def write(run: Path) -> Path:
    rank = WrittenRank(run)
    for window in range(STEPS):
        rank.observe(np.full(8, window + 1, np.float32), "grad_reduced", "w", window)
        rank.end_step()
    rank.stop()
    return rank.directory


def frames_in(segment: bytes) -> int:
    at, count = 16, 0
    while at < len(segment):
        at += 28 + struct.unpack_from("<I", segment, at + 8)[0]
        count += 1
    return count


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One run per attack, and a sound one."""
    out = tmp_path_factory.mktemp("bounds")
    write(out / "sound")
    for name in hostile_logs.NAMES:
        segment = write(out / name) / "log-000000.tmlog"
        sound = segment.read_bytes()
        hostile = b"".join(hostile_logs.frames(name, frames_in(sound)))
        assert len(hostile) < 3_000_000
        segment.write_bytes(sound + hostile)
    return out


def limited(arguments, folder, size):
    """Runs it where more memory than is allowed cannot be had; what it took at most."""
    allowed = CONSTANT + MULTIPLE * size

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (allowed + (2 << 30),) * 2)  # not all is used

    with open(folder / "said", "w+") as said:
        process = subprocess.Popen(
            list(map(str, arguments)),
            cwd=folder,
            stdout=said,
            stderr=said,
            preexec_fn=limit,
            env={**os.environ, "NO_COLOR": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read()
    assert usage.ru_maxrss * 1024 <= allowed, f"{usage.ru_maxrss} KiB: {text[-2000:]}"
    return process.returncode, text


def size_of(run: Path) -> int:
    return sum(path.stat().st_size for path in run.rglob("*") if path.is_file())


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", hostile_logs.NAMES)
def test_a_hostile_frame_is_one_damaged_frame(runs, tmp_path, name, reader):
    words = {"RUN": runs / name, "SOUND": runs / "sound"}
    arguments = [words.get(word, word) for word in READERS[reader]]
    code, said = limited([launch.command_line(), *arguments], tmp_path, size_of(runs / name))
    if reader == "ctl status":  # does not look into logs
        assert code in (0, 1), said
        return
    assert code == 3, said
    assert "log-000000.tmlog" in said
    if reader == "show":
        assert len(re.findall(r"^ *\d+ +0 +grad_reduced", said, re.MULTILINE)) == STEPS
    if reader == "query":
        assert re.search(rf"^ *{STEPS} ", said, re.MULTILINE), said


@pytest.mark.parametrize("name", hostile_logs.NAMES)
def test_python_reads_the_rest(runs, tmp_path, name):
    program = [sys.executable, "-c", READ, runs / name]
    code, said = limited(program, tmp_path, size_of(runs / name))
    assert code == 0 and said.startswith(f"{STEPS} rows"), said
    assert "log-000000.tmlog" in said


def test_what_repeats_itself_is_written_so_that_it_is_read(tmp_path):
    """As compressible as rows can be: zeros, every step. The writer keeps to the readers' bounds."""
    rank = WrittenRank(tmp_path / "run")
    zeros = np.zeros(4, np.float32)
    for window in range(3):
        for name in range(3000):
            rank.observe(zeros, "grad_reduced", f"layer.{name}", window)
        rank.end_step()
    rank.stop()
    done = subprocess.run(
        [launch.command_line(), "query", tmp_path / "run", "SELECT count(*) FROM stats", "--csv"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout.split() == ["count(*)", "9000"], done.stderr
    # Frames of rows take a byte of the file for each row at least.
    bytes_of_rows = 0
    for segment in (tmp_path / "run").rglob("*.tmlog"):
        data, at = segment.read_bytes(), 16
        while at < len(data):
            stored, raw = struct.unpack_from("<II", data, at + 8)
            assert raw <= 64 * stored
            bytes_of_rows += stored if data[at + 4] == 3 else 0
            at += 28 + stored
    assert bytes_of_rows >= 9000


def test_ranks_that_run_json_alone_names_cost_nothing_at_each_step(tmp_path):
    """The folder of one rank, copied for a look; or a number that somebody has made up."""
    rank = WrittenRank(tmp_path / "run", world_size=1 << 20)
    for window in range(2000):
        rank.observe(np.ones(4, np.float32), "grad_reduced", "w", window)
        rank.end_step()
    rank.stop()
    for command in (("diagnose",), ("report", "-o", tmp_path / "page.html")):
        done = subprocess.run(
            [launch.command_line(), command[0], tmp_path / "run", *command[1:]],
            capture_output=True,
            text=True,
            timeout=100,  # it took a minute of CPU for each thousand steps
        )
        assert done.returncode == 3 and "of 1048576 are missing" in done.stderr, done.stderr[-2000:]


JSON_OF_RUN = {
    "run.json": "rank_00000/restart_0000/run.json",
    "health.json": "rank_00000/restart_0000/health.json",
    "control.json": "control.json",
}
HOSTILE_JSON = {
    "deep list": lambda: b'{"config":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "deep object": lambda: b'{"notes":' + b'{"a":' * 200_000 + b"1" + b"}" * 200_000 + b"}",
    "deep, never closed": lambda: b"[" * 2_000_000,
    "long list": lambda: b'{"covered":[' + b"[]," * 9_000_000 + b"[]]}",
    "long": lambda: b'{"a":"' + b"x" * 100_000_000 + b'"}',
}


@pytest.mark.parametrize("what", HOSTILE_JSON)
@pytest.mark.parametrize("file", JSON_OF_RUN)
def test_a_hostile_json_file_is_damage(tmp_path, file, what):
    write(tmp_path / "run")
    (tmp_path / "run" / JSON_OF_RUN[file]).write_bytes(HOSTILE_JSON[what]())
    size = 1 << 20  # what is refused by its size is not read
    for reader in ("first-bad", "doctor", "ctl status"):
        arguments = [tmp_path / "run" if word == "RUN" else word for word in READERS[reader]]
        code, said = limited([launch.command_line(), *arguments], tmp_path, size)
        is_read = (file == "control.json") == (reader == "ctl status")
        assert code in ((1, 2, 3) if is_read else (0, 1, 2, 3)), said
        if is_read:
            assert file in said


def test_a_new_start_beside_a_deep_run_json(tmp_path):
    run = tmp_path / "run"
    deep = b"[" * 500_000 + b"]" * 500_000
    (write(run) / "run.json").write_bytes(b'{"model_digest":"a","config":' + deep + b"}")
    write(run)
    assert (run / "rank_00000" / "restart_0001" / "log-000000.tmlog").exists()


def test_anomalies_of_others(tmp_path):
    (tmp_path / "out" / "rank0").mkdir(parents=True)
    deep = b'{"a":' + b'{"group_mates":' + b"[" * 400_000 + b"]" * 400_000 + b"}}"
    (tmp_path / "out" / "rank0" / "anomaly.json").write_bytes(deep)
    sound = {
        "rank": 1,
        "step": 3,
        "micro_step": 0,
        "pp_stage": 0,
        "vpp_stage": 0,
        "call_id": 0,
        "tag_name": "0:w/post_grad",
        "message": "m",
    }
    (tmp_path / "out" / "rank1").mkdir()
    (tmp_path / "out" / "rank1" / "anomaly.json").write_text(json.dumps({"b": sound}))
    code, said = limited(
        [launch.command_line(), "anomalies", tmp_path / "out"], tmp_path, len(deep)
    )
    assert code == 3 and "anomaly.json" in said and "the first 1 of 1 alerts" in said
