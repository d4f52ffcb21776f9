# What a watched step costs under each wrapper: the same model, bare and watched steps in turn.
"""bench_wrappers.py [--pairs N] [--json FILE] [--only NAME ...] [--deepspeed-python PYTHON]
[--megatron-python PYTHON]

Two processes per wrapper (torch.distributed.run, gloo). In both, two copies of the wrapped model
train side by side on the same batches, one watched and one bare, one step each in random order;
half-way the roles change. Wall clock is that of the slower process, CPU time the mean of both training
threads. Wrappers that need packages of their own run under the interpreter given for them: one that
has torch and deepspeed, or megatron-core. Without it they are left out.
"""

import argparse
import collections
import gc
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import reference
import timed

TESTS = pathlib.Path(__file__).resolve().parents[2] / "tests"
KINDS = ["grads", "weights", "moments"]
RANKS = 2
WARM = 2  # pairs of each half that do not count: series are registered, caches filled
SIZES = {"VOCABULARY": 256, "LENGTH": 128, "BATCH": 8, "WIDTH": 192, "HEADS": 6, "DEPTH": 2}
SAME_DATA = ("tensor parallel",)  # on all ranks
NOISE = "DDP, not watched"
DONE = "bench_wrappers: one case is through"


def of_torch(maker):
    """A wrapper of torch's own, as the equality table makes it."""

    def make():
        import torch

        import equality_gpt as gpt

        sys.path.append(str(TESTS / "python/programs"))
        import equality_torch_run

        model, optimizer, _ = equality_torch_run.MAKERS[maker](gpt.make())
        if optimizer is None:
            optimizer = torch.optim.AdamW(model.parameters(), **gpt.ADAMW)

        def step(ids, target):
            gpt.loss_of(model(ids), target).backward()
            optimizer.step()
            optimizer.zero_grad()

        return model, optimizer, step

    return make


def of_deepspeed(stage):
    """An engine of DeepSpeed with its own sizes of buckets."""

    def make():
        import deepspeed
        import torch

        import equality_gpt as gpt

        deepspeed.init_distributed("gloo")
        model = gpt.make()
        config = {
            "train_micro_batch_size_per_gpu": gpt.BATCH,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        }
        inner = torch.optim.AdamW(model.parameters(), **gpt.ADAMW)
        engine, *_ = deepspeed.initialize(model=model, optimizer=inner, config=config)

        def step(ids, target):
            engine.backward(gpt.loss_of(engine(ids), target))
            engine.step()

        return engine, engine.optimizer, step

    return make


def of_megatron(distributed):
    def make():
        import megatron_case as case
        from megatron.core.distributed import finalize_model_grads

        import equality_gpt as gpt

        model = gpt.make()
        model.config = case.transformer(hidden_size=gpt.WIDTH, num_attention_heads=gpt.HEADS)
        (ddp,), optimizer = case.wrap([model], overrides={}, distributed=distributed)

        def step(ids, target):
            ddp.zero_grad_buffer()
            optimizer.zero_grad()
            gpt.loss_of(ddp(ids), target).backward()
            finalize_model_grads([ddp])
            optimizer.step()

        return ddp, optimizer, step

    return make


# name -> whose interpreter, what makes (model, optimizer, a function that trains one step)
CASES = {
    "plain, no wrapper": ("torch", of_torch("plain")),
    NOISE: ("torch", of_torch("ddp")),
    "DDP": ("torch", of_torch("ddp")),
    "FSDP1": ("torch", of_torch("fsdp1")),
    "FSDP2": ("torch", of_torch("fsdp2")),
    "tensor parallel": ("torch", of_torch("tensor_parallel")),
    "ZeroRedundancyOptimizer": ("torch", of_torch("zero_redundancy")),
    "DeepSpeed ZeRO 1": ("deepspeed", of_deepspeed(1)),
    "DeepSpeed ZeRO 2": ("deepspeed", of_deepspeed(2)),
    "DeepSpeed ZeRO 3": ("deepspeed", of_deepspeed(3)),
    "Megatron DDP": ("megatron", of_megatron(False)),
    "Megatron distributed optimizer": ("megatron", of_megatron(True)),
}


def seconds(step, batch):
    """Wall clock and CPU of this thread; all ranks begin together."""
    import torch.distributed as dist

    dist.barrier()
    wall, cpu = time.perf_counter(), time.thread_time()
    step(*batch)
    return time.perf_counter() - wall, time.thread_time() - cpu


def train(name, pairs, folder):
    """One half after the other. Times of each counted pair, rows of the last step by kind."""
    import models
    import trainmon

    draw, took = random.Random(1), []  # the order is that of all ranks
    make = CASES[name][1]
    copies, rows = [make(), make()], {}
    models.seed(0 if name in SAME_DATA else int(os.environ["RANK"]))
    for half, (bare, watched) in enumerate([copies, copies[::-1]]):
        monitor = None
        if name != NOISE:
            monitor = trainmon.watch(
                *watched[:2], kinds=KINDS, every=1, out=str(folder / str(half)), allow_volume=True
            )
        gc.collect()
        for pair in range(pairs // 2 + WARM):
            batch = models.text_batch(SIZES["BATCH"], SIZES["LENGTH"])
            both = [(0, bare[2]), (1, watched[2])]
            draw.shuffle(both)
            pair_took = {index: seconds(step, batch) for index, step in both}
            if pair >= WARM:
                took.append([pair_took[0], pair_took[1]])
        if monitor is not None:
            time.sleep(0.3)  # until the writer has the last step
            rows = collections.Counter(row["kind"] for row in monitor.latest())
            health = monitor.stop()
            assert health["parts_off"] == {} and health["errors"] == 0, health
            assert health["refused"] == {}, health
            assert all(s["rows_written"] == health["rows_produced"] for s in health["sinks"])
    return {"took": took, "rows": rows}


def work(names, pairs, folder):
    """A rank: trains one case after the other and leaves the times of each in a file."""
    sys.path.insert(0, str(TESTS / "frameworks"))
    import torch.distributed as dist

    import equality_gpt as gpt

    vars(gpt).update(SIZES)  # the model of the equality table, larger
    rank = int(os.environ["RANK"])
    if CASES[names[0]][0] == "megatron":
        import megatron_case

        megatron_case.start()
    else:
        gpt.begin()
    for index, name in enumerate(names):
        place = folder / str(index)
        place.mkdir(exist_ok=True)
        found = train(name, pairs, place)
        (place / f"times.{rank}.json").write_text(json.dumps(found))
        dist.barrier()
        if rank == 0:
            print(DONE, flush=True)
    os._exit(0)  # the process groups of engines are not taken down, nor waited for


def measure(names, pairs, python):
    """Gives (name, what was found) of each case as soon as it is through; one launch for all."""
    with tempfile.TemporaryDirectory() as folder:
        launch = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        command = [*launch, str(RANKS), __file__, "--pairs", str(pairs), "--work", folder, *names]
        env = {"OMP_NUM_THREADS": "1", "MEETING_POINT": "env://", "DS_ACCELERATOR": "cpu"}
        process = subprocess.Popen(
            command,
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        said, through = collections.deque(maxlen=60), 0
        for line in process.stdout:
            said.append(line)
            if line.strip() == DONE:
                yield names[through], result_of(pathlib.Path(folder, str(through)))
                through += 1
        if process.wait() != 0 or through != len(names):
            raise SystemExit(f"{names[min(through, len(names) - 1)]} failed:\n{''.join(said)}")


def result_of(place):
    files = [place / f"times.{rank}.json" for rank in range(RANKS)]
    ranks = [json.loads(file.read_text()) for file in files]
    runs = sorted(place.rglob("run.json"))  # of rank 0 first
    walls, cpus = ([], []), ([], [])
    for pair in zip(*(rank["took"] for rank in ranks)):
        for which in (0, 1):
            walls[which].append(max(took[which][0] for took in pair))
            cpus[which].append(statistics.mean(took[which][1] for took in pair))
    rows = collections.Counter()
    for rank in ranks:
        rows.update(rank["rows"])
    return {
        **reference.paired(*walls),
        "cpu": reference.paired(*cpus),
        "rows": rows,
        "not_covered": json.loads(runs[0].read_text())["not_covered"] if runs else {},
    }


def shown(name, result):
    by_kind = ", ".join(f"{count} {kind}" for kind, count in sorted(result["rows"].items()))
    rows = f"{sum(result['rows'].values())} ({by_kind or 'none'})"
    missing = [f"\n  not covered: {what}: {why}" for what, why in result["not_covered"].items()]
    return (
        f"{reference.line(name, result)}\n{reference.line('  CPU of the threads', result['cpu'])}"
        f"\n  rows a step, both ranks: {rows}{''.join(missing)}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--only", action="append", choices=list(CASES), metavar="NAME")
    parser.add_argument("--deepspeed-python")
    parser.add_argument("--megatron-python")
    parser.add_argument("--work", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work[1:], options.pairs, pathlib.Path(options.work[0]))
    pythons = {
        "torch": sys.executable,
        "deepspeed": options.deepspeed_python,
        "megatron": options.megatron_python,
    }
    lines = []
    print(f"{'wrapper':44s} {'bare':>11s} {'share':>10s}   [5 %, 95 % of the median]", flush=True)
    for family, python in pythons.items():
        names = [n for n in CASES if CASES[n][0] == family and n in (options.only or CASES)]
        if names and python is None:
            print(f"{', '.join(names)}: left out, --{family}-python is not given", flush=True)
            continue
        for name, result in measure(names, options.pairs, python) if names else ():
            print(shown(name, result), flush=True)
            assert (not result["rows"]) == (name == NOISE)
            lines.append(
                timed.line(
                    f"wrappers: {name}",
                    result["median_percent"],
                    "% of a bare step",
                    "a bare step, ms",
                    result["bare_ms"],
                    1 + result["median_percent"] / 100,
                    lower=result["low_percent"],
                    upper=result["high_percent"],
                    cpu=result["cpu"]["median_percent"],
                    cpu_lower=result["cpu"]["low_percent"],
                    cpu_upper=result["cpu"]["high_percent"],
                    rows=sum(result["rows"].values()),
                )
            )
    timed.write_lines(options.json, lines)


if __name__ == "__main__":
    main()
