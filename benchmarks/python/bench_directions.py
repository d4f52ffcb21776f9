# GradComparator: ours beside msprobe's own (mindstudio-probe 8.3.3), on the same dumps of GPT-2's 148
# gradients (124 M elements a step), with and without pictures; and ours on packed signs. Each call is
# a process of its own; the seconds are those of the call. Files are in the page cache for both.
#
#   bench_directions.py --peer-python .venv-peer833/bin/python [--steps 3] [--rounds 3]
from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from timed import line, seconds, write_lines

ROOT = Path(__file__).resolve().parents[2]
PEER = ROOT / "tests/peer/peer_grad_compare.py"
sys.path.insert(0, str(ROOT / "tests/python"))

OURS = """
import sys, time
import trainmon
begin = time.perf_counter()
trainmon.compare_directions(*sys.argv[1:4], pictures=sys.argv[4] == "pictures")
print("seconds", time.perf_counter() - begin)
"""


def shapes() -> dict[str, tuple[int, ...]]:
    width, layers = 768, 12
    found = {"wte.weight": (50257, width), "wpe.weight": (1024, width)}
    for layer in range(layers):
        block = {
            "ln_1.weight": (width,), "ln_1.bias": (width,),
            "attn.c_attn.weight": (width, 3 * width), "attn.c_attn.bias": (3 * width,),
            "attn.c_proj.weight": (width, width), "attn.c_proj.bias": (width,),
            "ln_2.weight": (width,), "ln_2.bias": (width,),
            "mlp.c_fc.weight": (width, 4 * width), "mlp.c_fc.bias": (4 * width,),
            "mlp.c_proj.weight": (4 * width, width), "mlp.c_proj.bias": (width,),
        }  # fmt: skip
        found |= {f"h.{layer}.{name}": shape for name, shape in block.items()}
    return found | {"ln_f.weight": (width,), "ln_f.bias": (width,)}


def write_dumps(root: Path, steps: int) -> int:
    """Four dumps, npy and packed; the second of each has one sign in a hundred changed."""
    from direction_dumps import sign_bytes, write_summary

    random = np.random.default_rng(1)
    total = 0
    for step in range(steps):
        for which in ("a", "b", "a-packed", "b-packed"):
            (root / which / "rank0" / f"step{step}").mkdir(parents=True)
            write_summary(root / which / "rank0", step, list(shapes()))
        for name, shape in shapes().items():
            first = random.integers(0, 2, shape, dtype=np.uint8).astype(bool)
            second = first ^ (random.integers(0, 100, shape, dtype=np.uint8) == 0)
            total += first.size
            for which, positive in (("a", first), ("b", second)):
                np.save(root / which / "rank0" / f"step{step}" / f"{name}.npy", positive)
                packed = root / f"{which}-packed" / "rank0" / f"step{step}" / f"{name}.sign"
                packed.write_bytes(sign_bytes([positive]))
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lines = []
    scratch = Path(tempfile.mkdtemp(prefix="bench_directions-"))
    try:
        elements = write_dumps(scratch, options.steps)
        print(f"{options.steps} steps, {len(shapes())} tensors, {elements:,} elements in all")
        for pictures in ("pictures", "nopictures"):
            times = {"npy": [], "packed": [], "peer": []}
            for number in range(options.rounds):
                for what, suffix in (("npy", ""), ("packed", "-packed"), ("peer", "")):
                    dumps = [str(scratch / f"{which}{suffix}") for which in "ab"]
                    out = str(scratch / f"out-{what}-{number}-{pictures}")
                    start = (
                        [options.peer_python, str(PEER)]
                        if what == "peer"
                        else [sys.executable, "-c", OURS]
                    )
                    times[what].append(seconds([*start, *dumps, out, pictures]))
            for what in ("npy", "packed"):
                ratios = [b / a for a, b in zip(times[what], times["peer"])]
                ours = statistics.median(times[what])
                print(
                    f"{what}, {pictures}: {ours:.3f} s against"
                    f" {statistics.median(times['peer']):.2f} s, ratio"
                    f" {statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f}),"
                    f" {elements / ours / 1e9:.2f} G elements a second"
                )
                theirs, ratio = statistics.median(times["peer"]), statistics.median(ratios)
                name = f"directions: {what}, {pictures}"
                lines.append(line(name, ours, "s", "mindstudio-probe 8.3.3", theirs, 1 / ratio))
        write_lines(options.json, lines)
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
