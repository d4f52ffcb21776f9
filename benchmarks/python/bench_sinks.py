# What the sinks need for a step of 2,000 tensors, beside the peer's CSV writer and sqlite3.
"""bench_sinks.py SINKS_BENCH [--peer-python PYTHON] [--rounds N] [--json FILE]

SINKS_BENCH is the program of benchmarks/cpp. The peer writes six statistics of each tensor, 12,000
scalars; ours write all eleven and the whole key of a row. Candidates take turns, round by round.
"""

import argparse
import json
import pathlib
import sqlite3
import statistics
import subprocess
import tempfile
import time

import timed

TENSORS = 2000
OPS = ["norm", "min", "max", "mean", "zeros", "nans"]


def peer(folder):
    """Milliseconds of CSVWriterWithAD for the 12,000 scalars of a step."""
    import torch
    from msprobe.pytorch.monitor.data_writers import CSVWriterWithAD, WriterInput

    writer = CSVWriterWithAD(WriterInput(folder, [], "bench", None, 6, 1))
    values = torch.randn(TENSORS, len(OPS)).tolist()
    metrics = {
        f"0:layers.{i // 10}.part{i % 10}.weight/rank0/post_grad": {
            op: torch.tensor(value) for op, value in zip(OPS, values[i], strict=True)
        }
        for i in range(TENSORS)
    }
    times = []
    for step in range(3):
        start = time.perf_counter()
        writer.write_metrics(OPS, metrics, step, "grad_reduced")
        writer.write_csv("grad_reduced", step)
        times.append((time.perf_counter() - start) * 1e3)
    return min(times)


def executemany(database, folder):
    """Milliseconds of sqlite3.executemany for the rows of a step that the sink wrote."""
    source = sqlite3.connect(database)
    (made,) = source.execute("SELECT sql FROM sqlite_schema WHERE name = 'rows'").fetchone()
    steps = {}
    for row in source.execute("SELECT * FROM rows"):
        steps.setdefault(row[3], []).append(row)
    target = sqlite3.connect(pathlib.Path(folder, "many.db"))
    target.execute("PRAGMA journal_mode = WAL")
    target.execute("PRAGMA synchronous = NORMAL")
    target.execute(made)
    insert = f"INSERT INTO rows VALUES ({','.join('?' * len(row))})"
    times = []
    for rows in steps.values():
        start = time.perf_counter()
        target.executemany(insert, rows)
        target.commit()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sinks_bench")
    parser.add_argument("--peer-python")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        print(peer(options.work))
        return
    rounds = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            bench = [options.sinks_bench, folder, str(TENSORS), "20"]
            found = json.loads(subprocess.check_output(bench))
            found["executemany"] = executemany(pathlib.Path(folder, "sqlite", "stats.db"), folder)
            if options.peer_python:
                work = [options.peer_python, __file__, options.sinks_bench, "--work", folder]
                answer = subprocess.check_output(work, text=True, stderr=subprocess.DEVNULL)
                found["peer"] = float(answer.split()[-1])
            rounds.append(found)
    median = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
    for name, value in median.items():
        print(f"{name:12} {value:9.4f} ms")
    pairs = [("executemany", "sqlite"), ("log", "plain"), ("csv", "handed")]
    pairs += [("peer", "csv")] if options.peer_python else []
    for above, below in pairs:
        ratios = sorted(r[above] / r[below] for r in rounds)
        print(
            f"{above} / {below}: {statistics.median(ratios):.1f}"
            f"  [{ratios[0]:.1f}, {ratios[-1]:.1f}]"
        )
    yardsticks = {"plain": "a plain write of its log"}
    if options.peer_python:
        yardsticks["peer"] = "mindstudio-probe 26.2.0, CSVWriterWithAD"
    lines = []
    for name, what in {
        "handed": "12,000 scalars: on the training thread",
        "cpu_log": "12,000 scalars: CPU of the writer, log",
        "cpu_csv": "12,000 scalars: CPU of the writer, csv",
        "log": "12,000 scalars: log",
        "csv": "12,000 scalars: csv",
    }.items():
        beside = "plain" if name == "log" or not options.peer_python else "peer"
        figure, yardstick = median[name], median[beside]
        lines.append(timed.line(what, figure, "ms a step", yardsticks[beside], yardstick))
    lines.append(
        timed.line(
            "12,000 scalars: sqlite",
            median["sqlite"],
            "ms a step",
            "sqlite3.executemany",
            median["executemany"],
        )
    )
    timed.write_lines(options.json, lines)


if __name__ == "__main__":
    main()
