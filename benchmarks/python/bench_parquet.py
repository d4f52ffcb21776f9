"""Bytes on disk per row and per derived scalar: the log, CSV and Parquet, of a real training run.

    python benchmarks/python/bench_parquet.py [--steps 1000] [--json FILE]

A byte-level GPT of 53 tensors (237 k parameters) learns Python's standard library; gradients,
updated weights and second moments are recorded every step. What is divided is whole files, keys
and metadata included.
"""

import argparse
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "python"))
import timed

import models
import trainmon
import trainmon.parquet

SIX = ["norm", "min", "max", "mean", "zeros", "nans"]
LENGTH = 64


def train(out: Path, steps: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = models.Gpt(width=64, depth=4, heads=4, length=LENGTH, dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:60]
    text = torch.frombuffer(bytearray(b"\n".join(f.read_bytes() for f in files)), dtype=torch.uint8)
    kinds = ["grad_reduced", "param_updated", "exp_avg_sq"]
    generator = torch.Generator().manual_seed(1)
    with trainmon.watch(model, optimizer, kinds=kinds, every=1, out=out, sinks=["log", "csv"]):
        for _ in range(steps):
            starts = torch.randint(len(text) - LENGTH - 1, (8,), generator=generator)
            batch = torch.stack([text[s : s + LENGTH + 1] for s in starts.tolist()]).long()
            logits = model(batch[:, :-1]).flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def show(what: str, size: int, rows: int, stats: int) -> float:
    """Prints the size; returns bytes a scalar."""
    print(f"{what:<42} {size / rows:6.2f} bytes a row {size / rows / stats:6.3f} a scalar")
    return size / rows / stats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        run, out = Path(folder) / "run", Path(folder) / "set"
        train(run, options.steps)
        table = trainmon.read_table(run)
        text = sum(file.stat().st_size for file in run.rglob("*.csv"))
        csv = show("csv", text, table.num_rows, len(table.stats))
        size = sum(file.stat().st_size for file in run.rglob("*.tmlog"))
        stored = {"log": show("log", size, table.num_rows, len(table.stats))}
        for stats in (list(table.stats), SIX):
            for float32 in (False, True):
                trainmon.parquet.write_dataset(
                    str(run), out, stats=stats, float32=float32, overwrite=True
                )
                name = f"Parquet, {len(stats)} statistics, {'float32' if float32 else 'lossless'}"
                sizes = {file.parts[-3]: file.stat().st_size for file in out.rglob("*.parquet")}
                stored[name] = show(name, sum(sizes.values()), table.num_rows, len(stats))
                for kind, size in sorted(sizes.items()):
                    rows = int((table["kind"] == kind.removeprefix("kind=")).sum())
                    show(f"  {kind}", size, rows, len(stats))
        for name, scalar in stored.items():
            lines.append(
                timed.line(f"stored: {name}", scalar, "bytes a scalar", "our csv, same run", csv)
            )
    timed.write_lines(options.json, lines)


if __name__ == "__main__":
    main()
