# The same step watched by trainmon, by mindstudio-probe 26.2.0, and bare: three processes in turn.
"""bench_peer.py --peer-python PYTHON [--pairs N] [--json FILE] [--only NAME]

The peer patches torch for its whole process, so each candidate has a process of its own; the
processes take one step each in turn. PYTHON is an interpreter that has torch and mindstudio-probe.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import reference
import timed

SIX = ["norm", "min", "max", "mean", "zeros", "nans"]
MODES = {
    "gradients": ({"kinds": ["grads"]}, {"wg_distribution": True}),
    "gradients, moments": (
        {"kinds": ["grads", "moments"]},
        {"wg_distribution": True, "mv_distribution": True},
    ),
    "activations with input gradients": (
        {"kinds": ["activations"]},
        {"xy_distribution": True, "all_xy": True},
    ),
    "all kinds with input gradients": (
        {"kinds": ["grads", "weights", "moments", "activations"]},
        {
            "wg_distribution": True,
            "mv_distribution": True,
            "param_distribution": True,
            "xy_distribution": True,
            "all_xy": True,
        },
    ),
}


def attach(who, mode, trainer, folder):
    if who == "trainmon":
        import trainmon

        return trainmon.watch(
            trainer.model,
            trainer.optimizer,
            every=1,
            out=str(folder),
            allow_volume=True,
            **MODES[mode][0],
        )
    os.environ["MONITOR_OUTPUT_DIR"] = str(folder)
    from msprobe.pytorch import TrainerMon

    config = pathlib.Path(folder, "config.json")
    config.write_text(json.dumps({"targets": {}, "format": "csv", "ops": SIX, **MODES[mode][1]}))
    monitor = TrainerMon(str(config), params_have_main_grad=False)
    monitor.set_monitor(trainer.model, trainer.optimizer, grad_acc_steps=1)
    return monitor


def work(who, mode, folder):
    """A candidate: one step per line on stdin, its seconds (wall, CPU of the thread) on stdout."""
    answers, sys.stdout = sys.stdout, sys.stderr  # the peer prints
    trainer = reference.Trainer()
    monitor = attach(who, mode, trainer, folder) if who != "bare" else None
    for _ in sys.stdin:
        wall, cpu, _ = trainer.step(reference.batch())
        print(wall, cpu, file=answers, flush=True)
    if who == "trainmon":
        monitor.stop()


def measure(mode, pairs, peer_python):
    draw, times = random.Random(1), {who: ([], []) for who in ("bare", "trainmon", "peer")}
    with tempfile.TemporaryDirectory() as folder:
        workers = {}
        for who in times:
            place = pathlib.Path(folder, who)
            place.mkdir(mode=0o750)
            python = peer_python if who == "peer" else sys.executable
            with pathlib.Path(folder, f"{who}.txt").open("w") as log:
                workers[who] = subprocess.Popen(
                    [python, __file__, "--work", who, mode, str(place)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
        for pair in range(pairs + 4):
            for who in draw.sample(sorted(workers), k=len(workers)):
                workers[who].stdin.write("step\n")
                workers[who].stdin.flush()
                answer = workers[who].stdout.readline()
                if not answer:
                    raise SystemExit(pathlib.Path(folder, f"{who}.txt").read_text()[-3000:])
                if pair >= 4:
                    for kept, seconds in zip(times[who], answer.split(), strict=True):
                        kept.append(float(seconds))
        for worker in workers.values():
            worker.stdin.close()
            worker.wait(60)
        files = sorted({p.suffix for p in pathlib.Path(folder, "peer").rglob("*_*.csv")})
        assert files == [".csv"], "the peer wrote nothing"
    return {
        who: {
            **reference.paired(times["bare"][0], times[who][0]),
            "cpu": reference.paired(times["bare"][1], times[who][1]),
        }
        for who in ("trainmon", "peer")
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--only", choices=list(MODES))
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*options.work)
        return
    if not options.peer_python:
        parser.error(
            "--peer-python is needed: an interpreter with torch and mindstudio-probe==26.2.0"
        )
    lines = []
    for mode in MODES:
        if options.only in (None, mode):
            result = measure(mode, options.pairs, options.peer_python)
            ours, theirs = (result[who]["median_percent"] for who in ("trainmon", "peer"))
            lines.append(
                timed.line(
                    f"beside the peer: {mode}",
                    ours,
                    "% of a bare step",
                    "mindstudio-probe 26.2.0, same step",
                    theirs,
                    upper=result["trainmon"]["high_percent"],
                )
            )
            for who in result:
                print(reference.line(f"{mode}: {who}", result[who]))
                print(reference.line("  CPU of the thread", result[who]["cpu"]), flush=True)
    timed.write_lines(options.json, lines)


if __name__ == "__main__":
    main()
