# trainmon.tensor_stats, six statistics per tensor, against mindstudio-probe 26.2.0 and plain torch.
"""bench_stats.py [--peer-python PYTHON] [--rounds N] [--json FILE]

Processes hold the same tensors (the peer patches torch for its whole process) and take turns: one
measures while the others wait for a line on stdin. One thread each. Medians; the ratio is that of
each round, in wall clock and in CPU time (which other programs disturb less). Plain torch is the
faster of two compositions, each tensor by itself and with norms by `torch._foreach_norm`.
PYTHON is an interpreter that has torch and mindstudio-probe; without it the peer is left out.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import timed

SIX = ["norm", "min", "max", "mean", "zeros", "nans"]
EPS = 1e-8


def gpt2_shapes():
    """The 148 parameters of GPT-2 small, 124 M elements."""
    block = [(768,), (768,), (768, 2304), (2304,), (768, 768), (768,)]
    block += [(768,), (768,), (768, 3072), (3072,), (3072, 768), (768,)]
    return [(50257, 768), (1024, 768), *block * 12, (768,), (768,)]


def small_shapes():
    """200 tensors, 425 k elements."""
    return [(256,), (768,), (3, 768), (4, 768), (11, 384)] * 40


SETS = {"GPT-2 gradients (148)": gpt2_shapes, "200 small": small_shapes}
# Long enough for caches that other processes have emptied to be full again.
REPEATS = {"GPT-2 gradients (148)": 3, "200 small": 200}


def trainmon_measure(tensors):
    import trainmon

    return lambda: trainmon.tensor_stats(tensors, SIX, eps=EPS)


def peer_measure(tensors):
    from msprobe.pytorch.monitor import features

    def measure():
        return [
            (
                features.get_norm(t),
                features.get_min(t),
                features.get_max(t),
                features.get_mean(t),
                features.get_zeros(t, EPS),
                features.get_nans(t),
            )
            for t in tensors
        ]

    return measure


def torch_others(t):
    """The six of `t` but the norm, by as few operations as torch needs."""
    import torch

    low, high = torch.aminmax(t)
    return low, high, t.mean(), torch.count_nonzero(t.abs() < EPS) / t.numel(), t.isnan().sum()


def torch_each(tensors):
    import torch

    return lambda: [(torch.linalg.vector_norm(t), *torch_others(t)) for t in tensors]


def torch_foreach(tensors):
    import torch

    def measure():
        norms = torch._foreach_norm(tensors)
        return [(norm, *torch_others(t)) for norm, t in zip(norms, tensors)]

    return measure


MEASURES = {
    "peer": peer_measure,
    "torch, each": torch_each,
    "torch, foreach": torch_foreach,
}


def work(who, name, dtype):
    """One measurement per line on stdin, its seconds on stdout; first the norms, to compare."""
    answers, sys.stdout = sys.stdout, sys.stderr  # the peer prints
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    tensors = [(torch.randn(s) * 1e-3).to(getattr(torch, dtype)) for s in SETS[name]()]
    if who == "trainmon":
        measure = trainmon_measure(tensors)
        norms = measure()["norm"].tolist()
    else:
        measure = MEASURES[who](tensors)
        norms = [float(row[0]) for row in measure()]
    print(json.dumps(norms), file=answers, flush=True)
    for _ in sys.stdin:
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range(REPEATS[name]):
            measure()
        times = time.perf_counter() - start, time.process_time() - cpu
        print(*(seconds / REPEATS[name] for seconds in times), file=answers, flush=True)


def ask(worker):
    worker.stdin.write("go\n")
    worker.stdin.flush()
    return [float(word) for word in worker.stdout.readline().split()]


def compare(name, dtype, rounds, peer_python):
    pythons = dict.fromkeys(["trainmon", *MEASURES], sys.executable)
    pythons["peer"] = peer_python
    pythons = {who: python for who, python in pythons.items() if python}
    workers, norms = {}, {}
    for who, python in pythons.items():
        workers[who] = subprocess.Popen(
            [python, __file__, "--work", who, name, dtype],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        norms[who] = json.loads(workers[who].stdout.readline())
    for who in norms:
        close = 1e-6 if who == "peer" else 1e-2  # plain torch rounds a norm to the tensor's type
        for ours, theirs in zip(norms["trainmon"], norms[who], strict=True):
            assert abs(ours - theirs) <= close * abs(theirs), (who, ours, theirs)
    times = {who: [] for who in workers}
    for _ in range(rounds):
        for who, worker in workers.items():
            times[who].append(ask(worker))
    for worker in workers.values():
        worker.stdin.close()
        worker.wait(60)
    result = {}
    for which, clock in enumerate(("wall", "cpu")):
        column = {who: [pair[which] for pair in values] for who, values in times.items()}
        for who, values in column.items():
            result[f"{who}_{clock}_ms"] = 1000 * statistics.median(values)
        for who in column.keys() - {"trainmon"}:
            ratios = [p / o for p, o in zip(column[who], column["trainmon"], strict=True)]
            result[f"{who}_{clock}_ratio"] = statistics.median(ratios)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*options.work)
        return
    lines = []
    for name in SETS:
        for dtype in ("float32", "bfloat16"):
            result = compare(name, dtype, options.rounds, options.peer_python)
            text = "  ".join(f"{key} {value:.3f}" for key, value in result.items())
            print(f"{name}, {dtype}: {text}", flush=True)
            torch_best = min(list(MEASURES)[1:], key=lambda who: result[f"{who}_cpu_ms"])
            for who, what in (("peer", "mindstudio-probe 26.2.0"), (torch_best, torch_best)):
                if f"{who}_cpu_ratio" in result:
                    lines.append(
                        timed.line(
                            f"statistics: {name}, {dtype}, beside {who.split(',')[0]}",
                            result["trainmon_cpu_ms"],
                            "ms of CPU",
                            what,
                            result[f"{who}_cpu_ms"],
                            1 / result[f"{who}_cpu_ratio"],
                        )
                    )
    timed.write_lines(options.json, lines)


if __name__ == "__main__":
    main()
