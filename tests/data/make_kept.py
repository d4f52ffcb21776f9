"""Writes tests/data/kept_0.1.0.tar.xz: runs of trainmon 0.1.0, and what its own readers said of them.

    git worktree add ../trainmon-0.1.0 85fe911 && cd ../trainmon-0.1.0 && make setup
    .venv/bin/python .../tests/data/make_kept.py .../tests/data/kept_0.1.0.tar.xz

Runs with that version's Python; it refuses another. tests/python/read/test_kept_run.py reads it.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve()
KINDS = ["grads", "weights", "moments", "activations", "grad_micro", "mg_direction", "update_ratio"]
# What read_table() gives beside columns. `incomplete` is not of them: it says which processes are gone.
BESIDE = (
    "scalars",
    "declared",
    "payloads",
    "alerts",
    "gaps",
    "damage",
    "torn_tails",
    "kinds",
    "ranks",
)
READINGS = {"newest": {}, "all restarts": {"all_restarts": True}, "merged": {"merged": True}}


def model_of(seed: int):
    import torch
    from torch import nn

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


def train_one(out: str) -> None:
    """Micro-steps, a loss scaler that skips a step, a schedule, alerts, payloads; three sinks."""
    import torch

    import trainmon

    model = model_of(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
    mon = trainmon.watch(
        model, optimizer, out=out, kinds=[*KINDS, "stack"], sinks=["log", "csv", "sqlite"],
        grad_acc_steps=2, alert_deviation=0.5, alert_warmup=2, alert_limit=300.0, scaler=scaler,
    )  # fmt: skip
    for step in range(8):
        for micro in range(2):
            batch = torch.randn(3, 5)
            if step == 5 and micro == 1:
                batch[1, 2] = float("nan")
            loss = model(batch).square().mean()
            scaler.scale(loss).backward()
        mon.log(loss=loss, grad_norm=float(step))
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        optimizer.zero_grad()
    mon.stop()


def train_killed(out: str) -> None:
    """The first start is killed after its step 4; the second begins at step 3."""
    import torch

    import trainmon

    again = os.path.exists(out)
    model = model_of(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = 3 if again else 0
    mon = trainmon.watch(
        model, optimizer, out=out, kinds=["grads", "weights", "moments"], flush_seconds=0.05,
        start_iteration=first, sinks=["log", "csv", "sqlite"],
    )  # fmt: skip
    for step in range(first, 7):
        model(torch.ones(3, 5) * step).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        mon.log(loss=1.0 / (step + 1))
        if step == 4 and not again:
            time.sleep(3.0)
            os.kill(os.getpid(), signal.SIGKILL)
    mon.stop()


def train_ranks(out: str) -> None:
    """Two ranks of DDP and one group of collectives."""
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    import trainmon

    distributed.init_process_group("gloo")
    model = DistributedDataParallel(model_of(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    mon = trainmon.watch(
        model, optimizer, out=out, kinds=["grads", "weights", "activations", "cc"],
        sinks=["log", "csv", "sqlite"],
    )  # fmt: skip
    torch.manual_seed(distributed.get_rank())
    for _ in range(4):
        loss = model(torch.randn(3, 5)).square().mean()
        loss.backward()
        distributed.all_reduce(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        mon.log(loss=loss.item())
    mon.stop()
    distributed.destroy_process_group()


def write_same_rows(out: str) -> None:
    sys.path.insert(0, str(HERE.parents[1] / "python"))
    import kept_rows
    from written_run import WrittenRank

    kept_rows.write(WrittenRank(Path(out), sinks=["log", "csv", "sqlite"]))


PARTS = {
    "one": train_one,
    "killed": train_killed,
    "ranks": train_ranks,
    "same_rows": write_same_rows,
}


def start(part: str, out: Path, **environment: str) -> subprocess.Popen:
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.Popen([sys.executable, str(HERE), "--part", part, str(out)], env=variables)


def write_runs(place: Path) -> None:
    for part in ("one", "killed", "killed", "same_rows"):
        started = start(part, place / part)
        if started.wait() != 0 and not (part == "killed" and started.returncode == -signal.SIGKILL):
            raise SystemExit(f"{part}: exit code {started.returncode}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [start("ranks", place / "ranks", RANK=str(rank), **common) for rank in range(2)]
    if any(rank.wait() for rank in ranks):
        raise SystemExit("ranks: a rank failed")


def plain(value):
    """As JSON has it: arrays and histograms as lists and dicts, bytes as digits. Doubles stay exact."""
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if hasattr(value, "__dict__") or hasattr(value, "_asdict"):
        return plain(vars(value) if hasattr(value, "__dict__") else value._asdict())
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value.hex() if isinstance(value, bytes) else value


def answers_of(run: Path, scratch: Path) -> dict:
    """What the readers of the installed trainmon say of a run: of the log, of CSV and of SQLite."""
    import trainmon

    found = {}
    for name, how in READINGS.items():
        table = trainmon.read_table(run, **how)
        found[name] = {"columns": {column: plain(table[column]) for column in table}}
        found[name] |= {one: plain(getattr(table, one)) for one in BESIDE}
    bad = trainmon.first_bad(run)
    found["first bad"] = bad and {"step": bad.step, "ranks": plain(bad.ranks), "name": bad.name}
    for source in ("log", "csv", "sqlite"):
        made = scratch / f"{run.name} from {source}"
        trainmon.convert(run, made, "jsonl", format=source, all_restarts=True)
        found[f"jsonl of {source}"] = {
            file.name: [json.loads(line) for line in file.read_text().splitlines()]
            for file in sorted(made.iterdir())
        }
    return found


def main(archive: Path) -> None:
    import trainmon

    if trainmon.__version__ != "0.1.0":
        raise SystemExit(f"this is trainmon {trainmon.__version__}; 0.1.0 is needed")
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "kept"
        place.mkdir()
        write_runs(place)
        answers = {run: answers_of(place / run, Path(scratch)) for run in PARTS}
        (place / "answers.json").write_text(json.dumps(answers) + "\n")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for file in sorted(place.rglob("*")):
                if file.is_file():
                    member = tarfile.TarInfo(str(file.relative_to(place)))
                    member.size = file.stat().st_size
                    tar.addfile(member, io.BytesIO(file.read_bytes()))
        archive.write_bytes(lzma.compress(packed.getvalue(), preset=9))


if __name__ == "__main__":
    if sys.argv[1] == "--part":
        PARTS[sys.argv[2]](sys.argv[3])
    else:
        main(Path(sys.argv[1]))
