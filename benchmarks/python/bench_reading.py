"""Reading a run of a tiny model back, beside DuckDB on its Parquet export; one core, warm cache.
All seconds are those of the processor, so that other work on the machine adds little.

    python benchmarks/python/bench_reading.py build/release/benchmarks/cpp/decode_bench
        [--steps 20000] [--json FILE]

Four linear layers are trained, every kind is recorded at every step: many small frames, the worst
case of a reader. The same run is read as it was written and compacted. Our commands are whole
processes, whose start counts; DuckDB has opened the files. The first command on a log leaves an
index beside it, which the others use. Two threads are held against one by the clock, so that a
busy machine shows in their ratio.
"""

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import timed

COUNTED = "SELECT kind, count(*) FROM stats GROUP BY kind"
GROUPED = "SELECT kind, count(*), max(norm) FROM stats GROUP BY kind"
# What our commands answer, asked of DuckDB.
ASKED = {
    "first-bad": "SELECT min(step) FROM stats WHERE nans > 0 OR infs > 0",
    "top": "SELECT kind, name, element, max(norm) AS n FROM stats GROUP BY ALL "
    "ORDER BY n DESC LIMIT 10",
    "count by kind": COUNTED,
    "grouped query": GROUPED,
    "doctor": "SELECT rank, count(*) FROM stats GROUP BY rank",
}
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


def process(
    command: list[str], codes: tuple[int, ...] = (0,), rounds: int = ROUNDS
) -> tuple[float, float]:
    """Least seconds of the command on one core, and the most memory it took in MB."""
    seconds, peak = [], 0.0
    for _ in range(rounds):
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        message = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        seconds.append(usage.ru_utime + usage.ru_stime)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in codes:
            raise SystemExit(f"{' '.join(command)} exited with {child.returncode}: {message}")
        peak = max(peak, usage.ru_maxrss / 1024)
    return min(seconds), peak


def decoding(bench: Path, run: Path, cores: set[int]) -> dict[str, float]:
    """What decode_bench prints of a run, on these cores."""
    said = subprocess.run(
        [bench, run],
        check=True,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    ).stdout
    return {
        name: float(figure) for name, figure in (line.rsplit(" ", 1) for line in said.splitlines())
    }


def least(work: Callable[[], object]) -> float:
    """Least seconds of this process."""
    seconds = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        work()
        seconds.append(time.process_time() - begin)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("decode_bench", type=Path)
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lines: list[dict] = []

    def show(name: str, figure: float, unit: str, yardstick: str, other: float, **more) -> None:
        lines.append(timed.line(name, figure, unit, yardstick, other, **more))
        print(f"{name:<44} {figure:9.3f} {unit}; {yardstick} {other:.3f}", flush=True)

    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    with tempfile.TemporaryDirectory() as folder:
        run, exported = Path(folder) / "run", Path(folder) / "exported"
        export = [sys.executable, "-m", "trainmon.parquet", str(run), "-o", str(exported)]
        # In a process of its own, whose memory no child has.
        with multiprocessing.get_context("spawn").Pool(1) as own:
            own.apply(train, (run, options.steps))
            seconds, peak = process([*export, "--overwrite", "--quiet"])
            rows = own.apply(rows_of, (exported,))
        show("export to Parquet", seconds, "s", "million rows", rows / 1e6)
        show("memory of export", peak, "MB", "at most", 256.0)
        command = str(Path(sys.executable).parent / "trainmon")
        compacted = Path(folder) / "compacted"
        shutil.copytree(run, compacted)
        subprocess.run([command, "compact", compacted], check=True, stdout=subprocess.DEVNULL)
        taken = {}
        for place in (run, compacted):
            ours = {
                "first-bad": [command, "first-bad", str(place)],
                "top": [command, "top", str(place), "--by", "size"],
                "count by kind": [command, "query", "--csv", str(place), COUNTED],
                "grouped query": [command, "query", "--csv", str(place), GROUPED],
                "doctor": [command, "doctor", str(place)],
            }
            of = ", compacted" if place == compacted else ""
            # The export has left indexes beside the log; whoever reads first makes them.
            for index in place.rglob("*.tmindex"):
                index.unlink()
            taken["first-bad without an index", of] = process(ours["first-bad"], rounds=1)
            for name, words in ours.items():
                taken[name, of] = process(words)
            taken["top by history", of] = process([command, "top", str(place)])
            taken["compare of two runs", of] = process([command, "compare", str(place), str(place)])
        for place in (run, compacted):
            of = ", compacted" if place == compacted else ""
            spent = decoding(options.decode_bench, place, {min(cores)})
            rate, limit = (spent["rows"] / spent[key] / 1e6 for key in ("decode", "unpack"))
            # The columns of a compacted log are unpacked one by one, while they are decoded.
            alone = "reading alone" if of else "unpacking alone"
            name = f"decode of all columns{of}"
            show(name, rate, "million rows/s", alone, limit, lower_is_better=False)
            if len(cores) < 2:
                print("one core alone: two threads are not measured", flush=True)
                continue
            spent = decoding(options.decode_bench, place, cores)
            one, two = spent["one thread"], spent["two threads"]
            show(f"decode by two threads{of}", two, "s of the clock", "one thread", one)
        scan_peak = process([sys.executable, "-c", SCANNED, str(run)])[1]
        show("memory of scan", scan_peak, "MB", "at most", 256.0)
        # Not before the children: a child's peak of memory is at least its parent's of that moment.
        import duckdb
        import pyarrow.dataset

        import trainmon

        database = duckdb.connect(config={"threads": 1})
        database.execute(f"CREATE VIEW stats AS FROM read_parquet('{exported}/**/*.parquet')")
        theirs = {
            name: least(lambda sql=sql: database.execute(sql).fetchall())
            for name, sql in ASKED.items()
        }
        for (name, of), (figure, peak) in taken.items():
            if name in theirs:
                show(f"{name}{of}, beside DuckDB", figure, "s", "DuckDB, 1 thread", theirs[name])
            else:
                show(f"{name}{of}", figure, "s", "million rows of each", rows / 1e6)
            show(f"memory of {name.split(' of ')[0]}{of}", peak, "MB", "at most", 256.0)

        ours_read = least(lambda: trainmon.read_table(run, kinds="grad_reduced", stats="norm"))
        data = pyarrow.dataset.dataset(exported, partitioning="hive")
        only = pyarrow.dataset.field("kind") == "grad_reduced"
        columns = ["restart", "rank", "name", "step", "norm"]
        arrow = least(lambda: data.to_table(columns=columns, filter=only, use_threads=False))
        show("read of one statistic of a kind", ours_read, "s", "pyarrow.dataset", arrow)
        which = {"kinds": "grad_reduced", "stats": "norm"}
        scanned = least(lambda: [table.num_rows for table in trainmon.scan(run, **which)])
        show("scan of one statistic of a kind", scanned, "s", "pyarrow.dataset", arrow)
        for engine in ("sqlite", "duckdb"):
            asked = least(lambda e=engine: trainmon.query(run, GROUPED, engine=e))
            name = f"grouped query in {engine}, in Python"
            show(name, asked, "s", "DuckDB, 1 thread", theirs["grouped query"])
    timed.write_lines(options.json, lines)


if __name__ == "__main__":
    main()
