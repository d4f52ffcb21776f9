# Statistics on a CUDA device: against CUB's sum over one flat buffer, the peer's operations, and a
# bare training step. Needs nvcc for the yardstick.
"""Medians of interleaved rounds; times on the device by events around a burst of launches, times of
the host by its clock. Every line carries its yardstick of the same run.
"""

import argparse
import ctypes
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "python"))
import models
import trainmon
from trainmon import _core

HERE = pathlib.Path(__file__).resolve().parent
BURST = 5
LINES = []


def say(name, figure, unit, yardstick, yardstick_figure, ratio, bar, lower_is_better):
    met = ratio <= bar if lower_is_better else ratio >= bar
    print(
        f"{name:58} {figure:10.4g} {unit:4} | {yardstick}: {yardstick_figure:.4g} {unit} | "
        f"{ratio:.4g} (bar {'<=' if lower_is_better else '>='} {bar}: {'met' if met else 'MISSED'})",
        flush=True,
    )
    LINES.append(
        {
            "name": name,
            "figure": figure,
            "unit": unit,
            "yardstick": yardstick,
            "yardstick_figure": yardstick_figure,
            "ratio": ratio,
            "bar": bar,
            "lower_is_better": lower_is_better,
        }
    )


class Cub:
    def __init__(self):
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        major, minor = torch.cuda.get_device_capability()
        path = pathlib.Path(tempfile.mkdtemp()) / "cub_sum.so"
        source = HERE.parent / "cuda" / "cub_sum.cu"
        arch = f"-arch=sm_{major}{minor}"
        command = [nvcc, "-O3", "-std=c++17", arch, "-shared", "-Xcompiler", "-fPIC"]
        subprocess.run([*command, "-o", str(path), str(source)], check=True)
        self.call = ctypes.CDLL(str(path)).cub_sum
        self.out = torch.zeros(1, device="cuda")
        self.scratch = torch.empty(1 << 22, dtype=torch.uint8, device="cuda")

    def __call__(self, flat):
        size = ctypes.c_size_t(self.scratch.numel())
        failed = self.call(
            ctypes.c_void_p(flat.data_ptr()),
            ctypes.c_longlong(flat.numel()),
            ctypes.c_int(flat.dtype is torch.bfloat16),
            ctypes.c_void_p(self.out.data_ptr()),
            ctypes.c_void_p(self.scratch.data_ptr()),
            ctypes.byref(size),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )
        assert failed == 0, failed


class Kernels:
    """A monitor's own sweep over tensors, as before a step."""

    def __init__(self, out):
        self.core = _core.Monitor(json.dumps({"out": out, "overflow": "drop_newest"}))
        self.core.add_optimizer(0)

    def ready(self, tensors):
        size = sum(t.numel() * t.element_size() for t in tensors)
        why = self.core.reserve_device(0, len(tensors), size)
        assert not why, why
        return [
            self.core.add_series(kind="grad_reduced", name=f"t{i}") for i in range(len(tensors))
        ]

    def __call__(self, series, tensors):
        missed = _core.sweep(self.core.handle, series, tensors, None)
        assert missed is None
        self.core.seal("before_step")

    def check(self, tensors):
        assert self.core.settle(30.0)
        health = self.core.health()
        assert not health["refused"], health["refused"]
        del tensors


def device_ms(call, burst=BURST):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(burst):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / burst


def interleaved(calls, rounds):
    """Medians of each, in random order within a round."""
    for call in calls.values():
        call()
    times = {name: [] for name in calls}
    for _ in range(rounds):
        order = list(calls)
        random.shuffle(order)
        for name in order:
            times[name].append(device_ms(calls[name]))
    return {name: statistics.median(values) for name, values in times.items()}


def flat_buffers(kernels, cub, rounds):
    for dtype, bar in ((torch.float32, 0.92), (torch.bfloat16, 0.85)):
        for size in (1 << 30, 1 << 32):
            flat = torch.randn(size // dtype.itemsize, dtype=dtype, device="cuda") * 1e-3
            series = kernels.ready([flat])
            ms = interleaved(
                {"cub": lambda f=flat: cub(f), "ours": lambda f=flat, s=series: kernels(s, [f])},
                rounds,
            )
            name = f"P17 {size >> 30} GiB {str(dtype)[6:]}, one tensor"
            say(name, ms["ours"], "ms", "CUB sum", ms["cub"], ms["cub"] / ms["ours"], bar, False)
            kernels.check(flat)
            del flat
            torch.cuda.empty_cache()


def peer_operations(tensors, eps=1e-8):
    """norm, mean, max, min, zeros, nans, one tensor after another, as the peer's features.py."""
    found = []
    for x in tensors:
        found += [
            torch.norm(x.to(torch.float64)),
            torch.mean(x.to(torch.float64)),
            torch.max(x),
            torch.min(x),
            torch.sum(torch.abs(x) < eps) / x.numel(),
            torch.isnan(x).sum(),
        ]
    return torch.stack([value.to(torch.float32) for value in found])


def mixed(kernels, cub, rounds):
    draw = random.Random(1)
    sizes = [int(64 * (1e7 / 64) ** draw.random()) for _ in range(1990)] + [100_000_000] * 10
    draw.shuffle(sizes)
    padded = [(n + 127) // 128 * 128 for n in sizes]
    for dtype in (torch.float32, torch.bfloat16):
        flat = torch.randn(sum(padded), dtype=dtype, device="cuda") * 1e-3
        tensors, at = [], 0
        for n, room in zip(sizes, padded, strict=True):
            tensors.append(flat[at : at + n])
            at += room
        series = kernels.ready(tensors)
        calls = {"cub": lambda f=flat: cub(f), "ours": lambda t=tensors, s=series: kernels(s, t)}
        ms = interleaved(calls, rounds)
        name = f"P18 2,000 tensors {str(dtype)[6:]}, 64 to 1e8 elements"
        say(name, ms["ours"], "ms", "CUB sum", ms["cub"], ms["cub"] / ms["ours"], 0.80, False)
        peer_operations(tensors)
        peer = statistics.median(
            device_ms(lambda t=tensors: peer_operations(t), 1) for _ in range(3)
        )
        say(name, ms["ours"], "ms", "peer's operations", peer, peer / ms["ours"], 10, False)
        host, peer_host = [], []
        for _ in range(rounds):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            kernels(series, tensors)
            host.append((time.perf_counter() - begin) * 1e3)
            torch.cuda.synchronize()
            time.sleep(0.01)
        for _ in range(3):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            peer_operations(tensors).cpu()
            peer_host.append((time.perf_counter() - begin) * 1e3)
        ours, peers = statistics.median(host), statistics.median(peer_host)
        say(f"P19 host time, {name[4:]}", ours, "ms", "0.5 ms", 0.5, ours, 0.5, True)
        say(
            f"P19 host time, {name[4:]}",
            ours,
            "ms",
            "peer until on the host",
            peers,
            ours / peers,
            0.01,
            True,
        )
        kernels.check(tensors)
        del flat, tensors
        torch.cuda.empty_cache()


class Gpt:
    def __init__(self, micro, length, width, depth):
        torch.manual_seed(0)
        heads = width // 64
        self.model = models.Gpt(width, depth, heads=heads, length=length, dropout=0.0).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.micro = micro

    def step(self, batches):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for ids, target in batches:
            with torch.autocast("cuda", torch.bfloat16):
                loss = models.loss_of(self.model(ids), target)
            (loss / self.micro).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        torch.cuda.synchronize()
        return time.perf_counter() - begin


def bootstrap(values, draws=2000):
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(0.05 * draws)], medians[int(0.95 * draws)]


STATES = ["grads", "moments", "weights"]
LINES_OF_A_STEP = {  # what is watched, and its bar in per cent of a step of width 768 and of wider ones
    "gradients": ({"kinds": ["grads"]}, 0.3, 0.3),
    "gradients, moments, weights": ({"kinds": STATES}, 1.0, 1.0),
    "the same with checks": ({"kinds": STATES, "checks": True}, 1.5, 1.5),
    "outputs of blocks and their gradients": (
        {"kinds": ["activations"], "modules": "blocks"},
        2.5,
        1.0,
    ),
    "the same, each tensor once": (
        {"kinds": ["activations"], "modules": "blocks", "reread": False},
        2.5,
        1.0,
    ),
    "every module's activations and gradients": ({"kinds": ["activations"]}, 3.0, 3.0),
    "every module's, each tensor once": ({"kinds": ["activations"], "reread": False}, 3.0, 3.0),
    "a sample of 1/16 of them": ({"kinds": ["activations"], "sample": "1/16"}, 2.0, 2.0),
}


def whole_step(pairs, width, depth):
    micro, sequences, length = 4, 16, 1024
    bare, seen = Gpt(micro, length, width, depth), Gpt(micro, length, width, depth)
    parameters = sum(p.numel() for p in bare.model.parameters())
    for name, (options, narrow_bar, wide_bar) in LINES_OF_A_STEP.items():
        shares, times = [], []
        with tempfile.TemporaryDirectory() as out:
            try:
                scope = trainmon.watch(seen.model, seen.optimizer, out=out, every=1, **options)
            except Exception as error:  # told, and the other lines are measured
                print(f"{name}: {error}", flush=True)
                continue
            with scope:
                for i in range(pairs + 3):
                    data = torch.randint(0, 256, (micro, sequences, length + 1), device="cuda")
                    batches = [(x[:, :-1].contiguous(), x[:, 1:].contiguous()) for x in data]
                    order = [(0, bare), (1, seen)]
                    random.shuffle(order)
                    took = [0.0, 0.0]
                    for which, gpt in order:
                        took[which] = gpt.step(batches)
                    if i >= 3:
                        shares.append((took[1] - took[0]) / took[0] * 100)
                        times.append(took[0] * 1e3)
            rows = len(trainmon.read(out)["step"]) // (pairs + 3)
        low, high = bootstrap(shares)
        share, step = statistics.median(shares), statistics.median(times)
        print(f"  {share:+.2f} % [{low:+.2f}, {high:+.2f}], {rows} rows a step", flush=True)
        title = f"P20 {name}, width {width}, {parameters / 1e6:.0f} M, 65,536 tokens"
        bar = narrow_bar if width <= 768 else wide_bar
        say(title, share, "%", "bare step in ms", step, high, bar, True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: bench_cuda.py --rounds 20 --json cuda.json"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--only", choices=("kernels", "step"))
    parser.add_argument("--width", type=int, default=768, help="of the model whose steps are timed")
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--json", type=pathlib.Path, help="write the lines there")
    options = parser.parse_args()
    random.seed(0)
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, kernels for "
        f"{_core.cuda_architectures()}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as out:
        if options.only != "step":
            kernels, cub = Kernels(out), Cub()
            flat_buffers(kernels, cub, options.rounds)
            mixed(kernels, cub, options.rounds)
            kernels.core.stop()
    if options.only != "kernels":
        whole_step(options.pairs, options.width, options.depth)
    if options.json:
        options.json.write_text(json.dumps(LINES, indent=1))


if __name__ == "__main__":
    main()
