"""Every reader on large runs that benchmarks/cpp/write_large_run made up, as whole commands that may
have 1,024 files open. Their answers are held against what was planted.

    python benchmarks/python/bench_scale.py build/release/benchmarks/cpp/write_large_run
        [--share 0.1] [--only WORD] [--folder DIR] [--json FILE]

Shapes are ranks x series x steps. --share shortens the steps of each to that part, so that the runs
fit on the disk: a row of a log takes about 33 bytes, and one of Parquet 40. Runs are deleted when
they were read.
"""

import argparse
import csv
import dataclasses
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import timed

SHAPES = {
    "1,000 ranks": (1000, 300, 1000),
    "64 ranks": (64, 3000, 10000),
    "10,000 ranks": (10000, 5, 20),
}
STEADY = "10,000 ranks"
LEAST_STEPS = 20
OPEN_FILES = 1024
COUNTED = "SELECT kind, count(*) AS n FROM stats GROUP BY kind"
FOUND = 1  # what first-bad, diagnose and report exit with when they found something
INCOMPLETE = 3  # a rank is missing


@dataclasses.dataclass
class Spent:
    wall: float
    cpu: float
    peak: float  # MB
    files: int  # open at one time, as far as it was seen
    said: str


def watch_files(child: subprocess.Popen, most: list[int], ended: threading.Event) -> None:
    while not ended.wait(0.02):
        try:
            most[0] = max(most[0], len(os.listdir(f"/proc/{child.pid}/fd")))
        except OSError:
            return


def run(command: list[str], codes: tuple[int, ...]) -> Spent:
    begin = time.monotonic()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            command,
            stdout=said,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES)),
        )
        most, ended = [0], threading.Event()
        watcher = threading.Thread(target=watch_files, args=(child, most, ended))
        watcher.start()
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.monotonic() - begin
        child.returncode = os.waitstatus_to_exitcode(status)
        ended.set()
        watcher.join()
        said.seek(0)
        text = said.read().decode()
    if child.returncode not in codes:
        raise SystemExit(f"{' '.join(command)} exited with {child.returncode}: {text[-2000:]}")
    cpu = usage.ru_utime + usage.ru_stime
    return Spent(wall, cpu, usage.ru_maxrss / 1024, most[0], text)


def commands(place: Path, out: Path, steps: int) -> dict[str, tuple[list[str], tuple[int, ...]]]:
    ours, python = str(Path(sys.executable).parent / "trainmon"), sys.executable
    where, one = str(place), "layers.0.part0.weight"
    some = f"{steps // 2}:{steps // 2 + 2}"
    history = f"SELECT step, norm FROM stats WHERE name = '{one}' AND rank = 0 ORDER BY step"
    read = f"trainmon.read_table({where!r}, kinds='grad_reduced', include='{one}', stats='norm')"
    scanned = f"sum(table.num_rows for table in trainmon.scan({where!r}))"
    found, whole = (FOUND,), (0, INCOMPLETE)
    return {
        "first-bad": ([ours, "first-bad", where], found),
        "first-bad again": ([ours, "first-bad", where], found),
        "top": ([ours, "top", where], whole),
        "top by size": ([ours, "top", where, "--by", "size"], whole),
        "doctor": ([ours, "doctor", where], whole),
        "tail": ([ours, "tail", where, "-n", "3"], whole),
        "show of a tensor": ([ours, "show", where, "--name", one, "--count", "5"], whole),
        "query, count by kind": ([ours, "query", "--csv", where, COUNTED], whole),
        "query, a tensor of a rank": ([ours, "query", "--csv", where, history], whole),
        "diagnose": ([ours, "diagnose", where], found),
        "compare with itself": ([ours, "compare", where, where], whole),
        "merge of three steps": (
            [ours, "merge", where, "--steps", some, "-o", str(out / "m")],
            whole,
        ),
        "plot of a tensor": (
            [
                ours,
                "plot",
                where,
                "--name",
                one,
                "--kind",
                "grad_reduced",
                "-o",
                str(out / "p.png"),
            ],
            whole,
        ),
        "report": ([ours, "report", where, "-o", str(out / "r.html")], found),
        "read of a statistic": ([python, "-c", f"import trainmon; print(len({read}))"], whole),
        "scan": ([python, "-c", f"import trainmon; print({scanned})"], whole),
        "convert to Parquet": (
            [ours, "convert", where, "--to", "parquet", "-o", str(out / "q"), "--quiet"],
            whole,
        ),
    }


def check(
    name: str, said: str, planted: dict[str, dict[str, str]], shape: tuple, rows: int
) -> None:
    """What the answer must have: the planted rows, or the number of all rows that hold."""
    ranks, tensors, steps = shape
    bad, spike = planted["nan"], planted["spike"]
    holds = True
    if name in ("first-bad", "first-bad again"):
        holds = f"first bad: step {bad['step']}, rank {bad['rank']}, {bad['name']}" in said
    elif name in ("diagnose", "report"):
        holds = all(text in said for text in (f"step {bad['step']}", bad["name"]))
    elif name == "top":
        lines = said.splitlines()
        place = r"\s+{step}\s+{rank}\s+grad_unreduced\s+{name}"
        holds = bool(re.search(place.format(**bad), lines[1])) and (
            steps < 2 * LEAST_STEPS or bool(re.search(place.format(**spike), lines[2]))
        )
    elif name == "query, count by kind":
        counted = {
            line["kind"]: int(line["n"]) for line in csv.DictReader(said.splitlines()) if line["n"]
        }
        holds = sum(counted.values()) == rows and counted["grad_unreduced"] == rows // 3
    elif name == "scan":
        holds = int(said.split()[-1]) == rows
    if not holds:
        raise SystemExit(
            f"{name} did not say what was planted ({planted}, {rows} rows):\n{said[:2000]}"
        )


def rows_that_hold(shape: tuple, is_steady: bool) -> int:
    """Without steps that the second start repeated, in its smaller world (write_large_run)."""
    ranks, tensors, steps = shape
    if is_steady:
        return ranks * tensors * steps
    first, second, begin = ranks, ranks - ranks // 10, steps // 2
    both = second - 1  # one rank lacks the first start
    return tensors * ((first - second) * begin + both * steps + (steps - begin))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("write_large_run")
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--only", default="", help="shapes whose name has this")
    parser.add_argument("--folder", type=Path, help="where runs are written; default: temporary")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lines: list[dict] = []
    for title, (ranks, tensors, all_steps) in SHAPES.items():
        if options.only not in title:
            continue
        steps = max(LEAST_STEPS, round(all_steps * options.share))
        shape, is_steady = (ranks, tensors, steps), title == STEADY
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            place, out = Path(folder) / "run", Path(folder) / "out"
            out.mkdir()
            words = [options.write_large_run, str(place), *map(str, shape)]
            written = run(words + ["--steady"] * is_steady, (0,))
            planted = {
                line.split()[0]: dict(zip(line.split()[1::2], line.split()[2::2], strict=True))
                for line in written.said.splitlines()[1:]
            }
            rows = int(written.said.split()[1])
            size = sum(file.stat().st_size for file in place.rglob("*.tmlog"))
            print(f"{title} x {tensors} x {steps}: {rows:,} rows, {size / 1e6:,.0f} MB of log, ")
            print(f"  {size / rows:.1f} bytes a row, written in {written.cpu:.1f} s of CPU")
            for name, (command, codes) in commands(place, out, steps).items():
                spent = run(command, codes)
                check(name, spent.said, planted, shape, rows_that_hold(shape, is_steady))
                print(
                    f"  {name:<26} {spent.wall:8.2f} s, CPU {spent.cpu:8.2f} s, "
                    f"{spent.peak:6.0f} MB, {spent.files:3} files",
                    flush=True,
                )
                of = f"{name}, {title} x {tensors} x {steps}"
                more = {"wall": spent.wall, "files": spent.files}
                lines.append(
                    timed.line(f"CPU of {of}", spent.cpu, "s", "million rows", rows / 1e6, **more)
                )
                lines.append(timed.line(f"peak of {of}", spent.peak, "MB", "at most", 256.0))
                shutil.rmtree(out)
                out.mkdir()
    timed.write_lines(options.json, lines)


if __name__ == "__main__":
    main()
