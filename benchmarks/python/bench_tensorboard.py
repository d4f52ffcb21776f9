# The sink `tensorboard` against torch's SummaryWriter, the same number of scalars in the same run.
"""bench_tensorboard.py PROGRAM [--tensors N] [--rounds N]

PROGRAM is build/.../benchmarks/cpp/tensorboard_bench. Each round gives both writers 12,000 scalars a
step and waits until they are in the file; medians of the rounds, whose ratio is theirs. What our file
holds is counted by TensorBoard's own reader.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import timed

STATS = ("norm", "mean", "min", "max")
STEPS = 9


def of_torch(folder, tensors):
    """Milliseconds for one step: add_scalar for each, then flush."""
    from torch.utils.tensorboard import SummaryWriter

    names = [f"layers.{i // 10}.part{i % 10}.weight" for i in range(tensors)]
    tags = [f"{stat}/grad_reduced/{name}" for name in names for stat in STATS]
    with SummaryWriter(folder) as writer:
        began = time.perf_counter()
        for i, tag in enumerate(tags):
            writer.add_scalar(tag, i * 0.5, 0)
        added = time.perf_counter()
        writer.flush()
        return (time.perf_counter() - began) * 1000, (added - began) * 1000


def of_ours(program, folder, tensors):
    text = subprocess.check_output([program, folder, str(tensors), str(STEPS)], text=True)
    return json.loads(text)["milliseconds"]


def count(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return sum(len(events.Scalars(tag)) for tag in events.Tags()["scalars"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--tensors", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path)
    given = parser.parse_args()
    ours, theirs, added, ratios = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(given.rounds):
            mine = pathlib.Path(folder, f"ours{i}")
            ours.append(of_ours(given.program, mine, given.tensors))
            whole, calls = of_torch(pathlib.Path(folder, f"torch{i}"), given.tensors)
            theirs.append(whole)
            added.append(calls)
            ratios.append(whole / ours[-1])
        assert count(mine) == 4 * given.tensors * STEPS
    scalars = 4 * given.tensors
    for name, times in (("trainmon", ours), ("SummaryWriter", theirs), ("its calls alone", added)):
        milliseconds = statistics.median(times)
        print(
            f"{name:16} {milliseconds:9.2f} ms a step, {milliseconds * 1e6 / scalars:8.0f} ns a scalar"
        )
    print(f"ratio {statistics.median(ratios):.0f} ({min(ratios):.0f} to {max(ratios):.0f})")
    best, torchs, ratio = map(statistics.median, (ours, theirs, ratios))
    name = f"tensorboard: {scalars} scalars in the file"
    written = timed.line(name, best, "ms", "torch's SummaryWriter", torchs, 1 / ratio)
    timed.write_lines(given.json, [written])


if __name__ == "__main__":
    main()
