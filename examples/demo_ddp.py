"""Two processes train a small byte-level GPT, watched; two planted faults are found again: one that
nothing shows, then a NaN.

    python examples/demo_ddp.py            (or: make demo)

Started plainly, this script launches itself twice with torchrun and then asks the recorded run
what went wrong. Between "watch" and "stop" the loop is what it would be without trainmon. It has
planted faults beside it, and pauses that let bare steps be timed beside watched ones.
"""

import argparse
import functools
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from small_text import build_gpt, corpus

STEPS = 104
BATCH, CONTEXT = 8, 128
TIMED = range(8, 96)
SILENT = {"step": 98, "check": "reduce", "stage": "grad_reduced", "tensor": "blocks.1.mlp.0.weight"}
FAULT = {"rank": 1, "kind": "grad_unreduced", "name": "blocks.3.mlp.0.weight", "step": 100}


def train(out: Path) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import trainmon

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1234)
    model = DistributedDataParallel(build_gpt())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = torch.frombuffer(bytearray(corpus()), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(rank)
    if rank == 0:
        size = sum(p.numel() for p in model.parameters())
        print(f"model: {size / 1e6:.2f} M parameters; text: {len(text) / 1e6:.1f} MB", flush=True)
    lose_contribution(model, optimizer, rank)
    plant_fault(torch, model.module, optimizer, rank)

    mon = trainmon.watch(
        model, optimizer, kinds=["grads", "weights", "moments", "activations"], every=1, out=out
    )
    times = {"bare": [], "watched": []}
    for step in range(STEPS):
        # Bare, watched, watched, bare: a drift of the machine's speed falls on both alike.
        watched = step not in TIMED or step % 4 in (1, 2)
        mon.resume() if watched else mon.pause()
        begin = time.perf_counter()
        optimizer.zero_grad()
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=generator)
        batch = torch.stack([text[s : s + CONTEXT + 1] for s in starts.tolist()]).long()
        logits = model(batch[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm):
            optimizer.step()
        mon.log(loss=loss.item())
        if step in TIMED:
            times["watched" if watched else "bare"].append(time.perf_counter() - begin)
        if rank == 0:
            progress(step, loss.item(), bool(torch.isfinite(norm)))
    mon.stop()
    if rank == 0:
        report_share(times)
    dist.barrier()
    dist.destroy_process_group()


def steps_taken(optimizer, parameter) -> int:
    return int(optimizer.state[parameter]["step"]) if optimizer.state else 0


def lose_contribution(model, optimizer, rank: int) -> None:
    """One reduction of one gradient gets zeros from one rank in one step, as a bad link would do."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    parameter = model.module.get_parameter(SILENT["tensor"])

    @functools.wraps(allreduce_hook)  # what it says that it does
    def reduce(group, bucket):
        if rank == FAULT["rank"] and steps_taken(optimizer, parameter) == SILENT["step"]:
            for own, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                if own is parameter:
                    gradient.zero_()
        return allreduce_hook(group, bucket)

    model.register_comm_hook(None, reduce)


def plant_fault(torch, model, optimizer, rank: int) -> None:
    """One gradient of one rank becomes NaN in one backward, as a bad kernel would make it."""
    parameter = model.get_parameter(FAULT["name"])
    planted = False

    def damage(grad):
        nonlocal planted
        if planted or steps_taken(optimizer, parameter) != FAULT["step"]:
            return grad
        planted = True
        grad = grad.clone()
        grad.view(-1)[7] = math.nan
        return grad

    if rank == FAULT["rank"]:
        parameter.register_hook(damage)


def progress(step: int, loss: float, finite: bool) -> None:
    note = "" if finite else "  gradient not finite: step skipped"
    line = f"step {step + 1:3d}/{STEPS}  loss {loss:.3f}{note}"
    if sys.stdout.isatty() and finite and step + 1 < STEPS:
        print(f"\r{line}", end="", flush=True)
    elif not finite or step % 10 == 0 or step + 1 == STEPS:
        print(f"\r{line}" if sys.stdout.isatty() else line, flush=True)


def report_share(times: dict[str, list[float]]) -> None:
    pairs = list(zip(times["bare"], times["watched"], strict=True))
    bare = statistics.median(b for b, _ in pairs)
    shares = sorted((w - b) / bare for b, w in pairs)
    # Order statistics that enclose the median with about 95 % confidence.
    reach = round(0.98 * math.sqrt(len(shares)))
    middle = len(shares) // 2
    low, high = shares[max(0, middle - reach)], shares[min(len(shares) - 1, middle + reach)]
    print(
        f"a bare step took {1e3 * bare:.0f} ms; watching everything added "
        f"{100 * statistics.median(shares):+.1f} %\n(median of {len(pairs)} pairs of steps, "
        f"95 % interval {100 * low:+.1f} to {100 * high:+.1f} %)",
        flush=True,
    )


def report_fault(out: Path) -> bool:
    """Shows what the tools say and checks it against what was planted."""
    import trainmon

    beside = Path(sys.executable).with_name("trainmon")  # as pip installs it
    command = os.path.relpath(beside) if beside.exists() else "trainmon"
    print(f"\n$ trainmon first-bad {out}", flush=True)
    subprocess.run([command, "--quiet", "first-bad", out])  # exits 1: the run has a fault
    found = trainmon.first_bad(out)
    place = {key: getattr(found, key, None) for key in FAULT}
    if place != FAULT or found.ranks != (FAULT["rank"],):
        print(f"\nplanted: {FAULT}\nfound:   {place}\nfiles:   {out}")
        return False
    print("\nThat is where this script planted a NaN. What went wrong before it, in silence?\n")
    print(f"$ trainmon diagnose {out}", flush=True)
    told = subprocess.run([command, "--quiet", "diagnose", out], capture_output=True, text=True)
    print("\n".join(told.stdout.split("\n")[:4]))
    found = trainmon.diagnose(out)["verdict"]
    silent = {"tensors": [SILENT["tensor"]], "ranks": [FAULT["rank"]]}
    silent |= {key: SILENT[key] for key in ("step", "check", "stage")}
    if any(found[key] != value for key, value in silent.items()):
        print(f"\nplanted: {silent}\nfound:   {found}\nfiles:   {out}")
        return False
    print(f"\nThat is where it lost a contribution. The whole answer:\n{command} diagnose {out}")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="run directory; default demo_run/<date and time>")
    out = parser.parse_args().out or Path("demo_run") / time.strftime("%Y%m%d-%H%M%S")
    if "RANK" in os.environ:
        train(out)
        return 0
    print("demo: two processes import torch and make a GPT", flush=True)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if subprocess.run([*launch, __file__, "--out", str(out)], env=environment).returncode != 0:
        return 1
    if not report_fault(out):
        print("demo: the planted fault was not found where it was planted", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
