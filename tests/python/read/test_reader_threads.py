"""What readers say and write is the same on any number of threads, byte by byte."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import launch
from written_run import WrittenRank

THREADS = (1, 2, 3, 8)
RANKS = 3


def write(out: Path, seed: int) -> None:
    """Segments of some rows, shards to merge, a NaN, and a step that was tried twice."""
    rng = np.random.default_rng(seed)
    for number in range(RANKS):
        rank = WrittenRank(out, number, RANKS, segment_mb=0.01)
        for window in range(160):
            for name in ("a", "b", "c"):
                rank.observe(rng.normal(size=5), "actv", name, window, element="output")
                values = rng.normal(size=4).astype(np.float32)
                if window == 131 and name == "b" and number != 1:
                    values[2] = np.nan
                rank.observe(values, "grad_reduced", name, window, replication="identical")
                shard = {"replication": "union", "space": "flat", "full_shape": [12]}
                ranges = [(4 * number, 4 * number + 4)]
                rank.observe(values, "param_updated", name, window, ranges=ranges, **shard)
            rank.monitor.add_scalar("loss", window * 0.5)
            rank.end_step("skipped" if window == 4 else "taken")
        rank.stop()


def damage(run: Path) -> None:
    """A byte in the middle of a segment of two ranks, an end that is cut, a segment that is gone."""
    for number, place in ((0, 0.3), (2, 0.7)):
        segments = sorted((run / f"rank_0000{number}" / "restart_0000").glob("*.tmlog"))
        for segment in segments[1:4:2]:
            data = bytearray(segment.read_bytes())
            data[int(len(data) * place)] ^= 0x55
            segment.write_bytes(data)
        segments[2].unlink()
        segments[-1].write_bytes(segments[-1].read_bytes()[:-9])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("threads")
    write(folder / "whole", 3)
    write(folder / "other", 4)
    for name in ("damaged", "compacted", "both"):
        shutil.copytree(folder / "whole", folder / name)
    for name in ("compacted", "both"):
        subprocess.run([launch.command_line(), "compact", str(folder / name)], check=True)
    damage(folder / "damaged")
    damage(folder / "both")
    return folder


def said(threads: int, *words: str) -> tuple[int, bytes, bytes]:
    command = [launch.command_line(), *words, "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


ANSWERS = {
    "doctor": ("doctor", "{run}", "--json"),
    "first-bad": ("first-bad", "{run}", "--json"),
    "top": ("top", "{run}", "--json", "--count", "7"),
    "top of merged": ("top", "{run}", "--json", "--merged"),
    "top by size": ("top", "{run}", "--json", "--count", "7", "--by", "size"),
    "top of merged by size": ("top", "{run}", "--json", "--merged", "--by", "size"),
    "compare": ("compare", "{run}", "{other}", "--json"),
    "compare with a repeat": ("compare", "{run}", "{other}", "--null", "{whole}", "--json"),
    "rows": ("query", "{run}", "SELECT * FROM stats", "--csv"),
    "groups": ("query", "{run}", "SELECT kind, count(*), max(norm) FROM stats GROUP BY 1", "--csv"),
    "order": ("query", "{run}", "SELECT name, seq, norm FROM stats ORDER BY name DESC", "--csv"),
    "or": ("query", "{run}", "SELECT seq FROM stats WHERE step = 3 OR kind = 'actv'", "--csv"),
}


@pytest.mark.parametrize("name", ["whole", "damaged", "compacted", "both"])
@pytest.mark.parametrize("asked", ANSWERS.values(), ids=ANSWERS)
def test_answers(runs, name, asked):
    places = {"run": runs / name, "other": runs / "other", "whole": runs / "whole"}
    words = [word.format(**places) for word in asked]
    first = said(1, *words)
    assert first[1], first
    assert (first[0] == 3 or b"not used" in first[2]) == (name in ("damaged", "both")), first
    for threads in THREADS[1:]:
        assert said(threads, *words) == first


@pytest.mark.parametrize("name", ["whole", "damaged", "compacted", "both"])
@pytest.mark.parametrize("to", ["csv", "jsonl", "sqlite", "parquet"])
def test_files(runs, tmp_path, name, to):
    found = {}
    for threads in THREADS:
        out = tmp_path / "out"
        code, *_, errors = said(threads, "convert", str(runs / name), "--to", to, "-o", str(out))
        assert code == (3 if name in ("damaged", "both") else 0), errors
        files = [out] if out.is_file() else sorted(p for p in out.rglob("*") if p.is_file())
        found[threads] = (
            errors,
            [
                (str(file.relative_to(tmp_path)), hashlib.sha256(file.read_bytes()).hexdigest())
                for file in files
            ],
        )
        assert files
        shutil.rmtree(out) if out.is_dir() else out.unlink()
    assert all(one == found[1] for one in found.values())


@pytest.mark.parametrize("wrong", ["0", "129", "-1", "x"])
def test_what_is_no_number_of_threads(runs, wrong):
    for words in (("top",), ("query", "SELECT 1")):
        command = [launch.command_line(), words[0], str(runs / "whole"), *words[1:]]
        done = subprocess.run([*command, "--threads", wrong], capture_output=True, text=True)
        assert done.returncode == 2
        assert "--threads" in done.stderr
