"""Reading a run of a tiny model back, beside DuckDB on its Parquet export; one core, warm cache.

    python benchmarks/python/bench_reading.py [--steps 20000] [--json FILE]

Four linear layers are trained, every kind is recorded at every step: many small frames, the worst
case of a reader. Our commands are whole processes, whose start counts; DuckDB has opened the files.
"""

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import timed

GROUPED = "SELECT kind, count(*), max(norm) FROM {} GROUP BY kind"
ROUNDS = 5
SCANNED = "import sys, trainmon; [table.num_rows for table in trainmon.scan(sys.argv[1])]"


def train(out: Path, steps: int) -> None:
    import torch

    import trainmon

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 16)]
    model = torch.nn.Sequential(
        *[part for layer in layers for part in (layer, torch.nn.ReLU())], torch.nn.Linear(16, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = torch.randn(8, 16)
    with trainmon.watch(model, optimizer, out=out, kinds="all", every=1) as monitor:
        for _ in range(steps):
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.log(loss=loss.item())


def rows_of(exported: Path) -> int:
    import pyarrow.dataset

    return pyarrow.dataset.dataset(exported, partitioning="hive").count_rows()


def process(command: list[str], codes: tuple[int, ...] = (0,)) -> tuple[float, float]:
    """Median seconds of the command on one core, and the most memory it took in MB."""
    seconds, peak = [], 0.0
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        message = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        seconds.append(time.perf_counter() - begin)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in codes:
            raise SystemExit(f"{' '.join(command)} exited with {child.returncode}: {message}")
        peak = max(peak, usage.ru_maxrss / 1024)
    return statistics.median(seconds), peak


def median(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lines: list[dict] = []

    def show(name: str, figure: float, unit: str, yardstick: str, other: float, **more) -> None:
        lines.append(timed.line(name, figure, unit, yardstick, other, **more))
        print(f"{name:<44} {figure:9.3f} {unit}; {yardstick} {other:.3f}", flush=True)

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        run, exported = Path(folder) / "run", Path(folder) / "exported"
        export = [sys.executable, "-m", "trainmon.parquet", str(run), "-o", str(exported)]
        # In a process of its own: a child's peak of memory is at least its parent's of that moment.
        with multiprocessing.get_context("spawn").Pool(1) as own:
            own.apply(train, (run, options.steps))
            seconds, peak = process([*export, "--overwrite", "--quiet"])
            rows = own.apply(rows_of, (exported,))
        show("export to Parquet", seconds, "s", "million rows", rows / 1e6)
        show("memory of export to Parquet", peak, "MB", "at most", 256.0)
        ask = {
            "first-bad": "SELECT min(step) FROM rows WHERE nans > 0 OR infs > 0",
            "top": "SELECT kind, name, element, max(norm) AS n FROM rows GROUP BY ALL "
            "ORDER BY n DESC LIMIT 10",
            "grouped query": GROUPED.format("rows"),
            "doctor": "SELECT rank, count(*) FROM rows GROUP BY rank",
        }
        command = str(Path(sys.executable).parent / "trainmon")
        ours = {
            "first-bad": [command, "first-bad", str(run)],
            "top": [command, "top", str(run)],
            "grouped query": [command, "query", "--csv", str(run), GROUPED.format("rows")],
            "doctor": [command, "doctor", str(run)],
        }
        taken = {name: process(words) for name, words in ours.items()}
        seconds, peak = process([command, "compare", str(run), str(run)])
        show("compare of two runs", seconds, "s", "million rows of each", rows / 1e6)
        show("memory of compare", peak, "MB", "at most", 256.0)
        import duckdb
        import pyarrow.dataset

        import trainmon

        database = duckdb.connect(config={"threads": 1})
        database.execute(f"CREATE VIEW rows AS FROM read_parquet('{exported}/**/*.parquet')")
        for name, (figure, peak) in taken.items():
            theirs = median(lambda name=name: database.execute(ask[name]).fetchall())
            show(f"{name}, beside DuckDB", figure, "s", "DuckDB, 1 thread", theirs)
            show(f"memory of {name}", peak, "MB", "at most", 256.0)

        ours_read = median(lambda: trainmon.read_table(run, kinds="grad_reduced", stats="norm"))
        data = pyarrow.dataset.dataset(exported, partitioning="hive")
        only = pyarrow.dataset.field("kind") == "grad_reduced"
        columns = ["restart", "rank", "name", "step", "norm"]
        theirs = median(lambda: data.to_table(columns=columns, filter=only, use_threads=False))
        show("read of one statistic of a kind", ours_read, "s", "pyarrow.dataset", theirs)
        which = {"kinds": "grad_reduced", "stats": "norm"}
        scanned = median(lambda: [table.num_rows for table in trainmon.scan(run, **which)])
        show("scan of one statistic of a kind", scanned, "s", "pyarrow.dataset", theirs)
        theirs = median(lambda: database.sql(GROUPED.format("rows")).fetchall())
        for engine in ("sqlite", "duckdb"):
            asked = median(lambda e=engine: trainmon.query(run, GROUPED.format("rows"), engine=e))
            show(f"grouped query in {engine}, in Python", asked, "s", "DuckDB, 1 thread", theirs)
        counted = [sys.executable, "-c", SCANNED, str(run)]
        show("memory of scan", process(counted)[1], "MB", "at most", 256.0)
    timed.write_lines(options.json, lines)


if __name__ == "__main__":
    main()
