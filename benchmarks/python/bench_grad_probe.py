# One step of GPT-2's gradients at L1: trainmon's GradProbe beside mindstudio-probe 8.3.3, step by step.
"""bench_grad_probe.py --peer-python PYTHON [--steps N] [--small] [--json FILE]

Random gradients in the shapes of GPT-2 (124 M parameters; no forward is needed) and an optimizer
that does nothing. Each candidate is a process of its own; they take one step each in turn. `thread`
is what the training thread waits, `total` until the files are written; both are the same for the
peer. PYTHON is an interpreter that has torch and mindstudio-probe 8.3.3.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import timed

CANDIDATES = ("peer", "packed", "npy", "packed 2 threads")


def shapes(small):
    width, layers, vocabulary, places = (96, 2, 5000, 128) if small else (768, 12, 50257, 1024)
    yield "wte.weight", (vocabulary, width)
    yield "wpe.weight", (places, width)
    for layer in range(layers):
        yield f"h.{layer}.ln_1.weight", (width,)
        yield f"h.{layer}.ln_1.bias", (width,)
        yield f"h.{layer}.attn.c_attn.weight", (width, 3 * width)
        yield f"h.{layer}.attn.c_attn.bias", (3 * width,)
        yield f"h.{layer}.attn.c_proj.weight", (width, width)
        yield f"h.{layer}.attn.c_proj.bias", (width,)
        yield f"h.{layer}.ln_2.weight", (width,)
        yield f"h.{layer}.ln_2.bias", (width,)
        yield f"h.{layer}.mlp.c_fc.weight", (width, 4 * width)
        yield f"h.{layer}.mlp.c_fc.bias", (4 * width,)
        yield f"h.{layer}.mlp.c_proj.weight", (4 * width, width)
        yield f"h.{layer}.mlp.c_proj.bias", (width,)
    yield "ln_f.weight", (width,)
    yield "ln_f.bias", (width,)


def build(small):
    import torch
    from torch import nn

    torch.set_num_threads(1)
    model = nn.Module()
    for name, shape in shapes(small):
        *path, key = name.split(".")
        module = model
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, nn.Module())
            module = getattr(module, part)
        parameter = nn.Parameter(torch.zeros(1).expand(shape))
        parameter.grad = torch.randn(shape) * 1e-3
        module.register_parameter(key, parameter)

    class Nothing(torch.optim.Optimizer):
        def step(self, closure=None):
            return None

    return model, Nothing(model.parameters(), {"lr": 0.0})


def attach(candidate, model, folder):
    """A function that waits for the files."""
    if candidate == "peer":
        import numpy as np

        np.unicode_ = np.str_  # 8.3.3 was written for NumPy 1
        from msprobe.pytorch import PrecisionDebugger

        config = folder / "config.json"
        block = {"grad_level": "L1", "param_list": [], "bounds": [-1, 0, 1]}
        text = {"task": "grad_probe", "dump_path": str(folder / "dump"), "grad_probe": block}
        config.write_text(json.dumps(text))
        config.chmod(0o640)
        PrecisionDebugger(str(config)).monitor(model)
        return lambda: True
    import trainmon

    form, *threads = candidate.split()
    count = int(threads[0]) if threads else 1
    return trainmon.GradProbe(model, out=folder / "dump", signs=form, threads=count).flush


def work(candidate, small, folder):
    """A line on standard input is a step; answers with seconds and the bytes it wrote."""
    say, sys.stdout = sys.stdout, sys.stderr  # the peer prints
    model, optimizer = build(small)
    flush = attach(candidate, model, folder)
    print("ready", file=say, flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        optimizer.step()
        thread = time.perf_counter() - begin
        assert flush()
        total = time.perf_counter() - begin
        folders = list((folder / "dump" / "rank0").glob("step*"))
        bytes_ = sum(p.stat().st_size for f in folders for p in f.iterdir())
        for one in folders:
            shutil.rmtree(one)
        print(json.dumps([thread, total, bytes_]), file=say, flush=True)


def measure(options):
    elements = sum(_product(shape) for _, shape in shapes(options.small))
    with tempfile.TemporaryDirectory() as base:
        workers = {}
        for candidate in CANDIDATES:
            folder = pathlib.Path(base, candidate.replace(" ", "_"))
            folder.mkdir()
            python = options.peer_python if candidate == "peer" else sys.executable
            command = [python, __file__, "--work", candidate, "--folder", str(folder)]
            command += ["--small"] if options.small else []
            workers[candidate] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        for worker in workers.values():
            assert worker.stdout.readline() == "ready\n"
        found = {candidate: [] for candidate in CANDIDATES}
        for step in range(options.steps + 1):
            for candidate, worker in workers.items():
                worker.stdin.write("step\n")
                worker.stdin.flush()
                numbers = json.loads(worker.stdout.readline())
                if step:  # the first one makes pages and buffers
                    found[candidate].append(numbers)
        for worker in workers.values():
            worker.stdin.close()
            worker.wait(60)
    return elements, found


def _product(shape):
    product = 1
    for size in shape:
        product *= size
    return product


def report(elements, found):
    rows = {}
    for candidate, numbers in found.items():
        thread, total, bytes_ = (statistics.median(column) for column in zip(*numbers))
        rows[candidate] = {"thread": thread, "total": total, "bits": 8 * bytes_ / elements}
    peer = rows["peer"]
    print(f"one step of {elements / 1e6:.1f} M gradients at L1, medians of {len(numbers)} steps")
    print(f"{'':20}{'thread':>10}{'total':>10}{'faster':>18}{'bits/element':>14}")
    for candidate, row in rows.items():
        faster = f"{peer['thread'] / row['thread']:.1f}x, {peer['total'] / row['total']:.1f}x"
        print(
            f"{candidate:20}{1e3 * row['thread']:8.1f}ms{1e3 * row['total']:8.1f}ms{faster:>18}"
            f"{row['bits']:14.3f}"
        )
    return [
        timed.line(
            f"gradient probe: {candidate}, {which}",
            1e3 * row[which],
            "ms a step",
            "mindstudio-probe 8.3.3",
            1e3 * peer[which],
        )
        for candidate, row in rows.items()
        if candidate != "peer"
        for which in ("thread", "total")
    ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer-python")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="0.6 M gradients, to try it")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--work")
    parser.add_argument("--folder", type=pathlib.Path)
    options = parser.parse_args()
    if options.work:
        return work(options.work, options.small, options.folder)
    if not options.peer_python:
        parser.error("--peer-python is needed")
    timed.write_lines(options.json, report(*measure(options)))


if __name__ == "__main__":
    main()
