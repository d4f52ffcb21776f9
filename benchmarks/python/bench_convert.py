# csv2db and csv2tensorboard_by_step: ours beside msprobe's own (mindstudio-probe 8.3.3), on the same
# files. Each call is a process of its own; the seconds are those of the call.
#
#   bench_convert.py --peer-python .venv-peer833/bin/python [--files 100] [--rows 2000] [--rounds 3]
from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from timed import line, seconds, write_lines

ROOT = Path(__file__).resolve().parents[2]
PEER = ROOT / "tests/peer/peer_convert.py"

OURS = """
import sys, time
from trainmon.compat.msprobe.core.monitor.csv2db import CSV2DBConfig, csv2db
from trainmon.compat.msprobe.pytorch.monitor.csv2tb import csv2tensorboard_by_step
what, source, out, processes = sys.argv[1:5]
begin = time.perf_counter()
if what == "csv2db":
    csv2db(CSV2DBConfig(source, process_num=int(processes), output_dirpath=out))
else:
    csv2tensorboard_by_step(source, process_num=int(processes), output_dirpath=out)
print("seconds", time.perf_counter() - begin)
"""


def write_files(root: Path, files: int, rows: int, ranks: int = 2) -> None:
    """`files` files of `rows` rows with six statistics, shared out among ranks."""
    values = random.Random(1)
    tensors = 200
    steps = rows // tensors
    per_rank = files // ranks
    for rank in range(ranks):
        directory = root / f"Dec03_21-34-4{rank}-rank{rank}-5f3a9c0{rank}"
        directory.mkdir(parents=True)
        for number in range(per_rank):
            first = number * steps
            lines = ["vpp_stage,name,step,norm,min,max,zeros,nans,mean,shape,dtype"]
            for step in range(first, first + steps):
                for tensor in range(tensors):
                    numbers = ",".join(f"{values.gauss(0, 1):.6f}" for _ in range(3))
                    lines.append(
                        f"0,layers.{tensor // 4}.block.{tensor % 4}.weight,{step},{numbers},0.0,0,"
                        f'{values.gauss(0, 1e-3):.6f},"[64, 64]",torch.float32'
                    )
            name = f"grad_reduced_{first}-{first + steps - 1}.csv"
            (directory / name).write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lines = []
    scratch = Path(tempfile.mkdtemp(prefix="bench_convert-"))
    try:
        write_files(scratch / "in", options.files, options.rows)
        total = options.files * options.rows
        print(f"{options.files} files x {options.rows} rows, {options.processes} process(es)")
        for what in ("csv2db", "csv2tb"):
            ours, peer = [], []
            for number in range(options.rounds):
                arguments = [what, str(scratch / "in"), "", str(options.processes)]
                arguments[2] = str(scratch / f"ours-{what}-{number}")
                ours.append(seconds([sys.executable, "-c", OURS, *arguments]))
                arguments[2] = str(scratch / f"peer-{what}-{number}")
                peer.append(seconds([options.peer_python, str(PEER), *arguments]))
                shutil.rmtree(scratch / f"ours-{what}-{number}")
                shutil.rmtree(scratch / f"peer-{what}-{number}")
            ratios = [b / a for a, b in zip(ours, peer)]
            print(
                f"{what}: {statistics.median(ours):.3f} s against {statistics.median(peer):.1f} s, "
                f"ratio {statistics.median(ratios):.0f} ({min(ratios):.0f} to {max(ratios):.0f}), "
                f"{total / statistics.median(ours):,.0f} rows a second"
            )
            best, theirs, ratio = map(statistics.median, (ours, peer, ratios))
            lines.append(
                line(f"conversion: {what}", best, "s", "mindstudio-probe 8.3.3", theirs, 1 / ratio)
            )
        write_lines(options.json, lines)
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
