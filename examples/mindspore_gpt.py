"""Two processes of MindSpore train a small byte-level GPT, watched.

    python examples/mindspore_gpt.py [--out RUN]

Needs mindspore 2.10 (scripts/mindspore_requirements.txt). Started plainly, this script launches itself
with msrun; between "watch" and "stop" the loop is what it would be without trainmon.
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

STEPS, BATCH, CONTEXT, WIDTH, HEADS, LAYERS = 20, 8, 32, 64, 4, 2


def train(out: str) -> None:
    began = time.perf_counter()
    import mindspore as ms
    import numpy as np
    from mindspore import Parameter, Tensor, communication, nn, ops

    import trainmon

    class Block(nn.Cell):
        def __init__(self):
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm((WIDTH,)), nn.LayerNorm((WIDTH,))
            self.qkv, self.proj = nn.Dense(WIDTH, 3 * WIDTH), nn.Dense(WIDTH, WIDTH)
            self.up, self.down = nn.Dense(WIDTH, 4 * WIDTH), nn.Dense(4 * WIDTH, WIDTH)
            future = np.triu(np.full((CONTEXT, CONTEXT), -1e9, np.float32), 1)
            self.future = Tensor(future)

        def construct(self, x):
            size = WIDTH // HEADS
            heads = self.qkv(self.ln1(x)).reshape(BATCH, CONTEXT, 3 * HEADS, size)
            q, k, v = ops.split(heads.transpose(0, 2, 1, 3), HEADS, axis=1)
            scores = ops.matmul(q, k.transpose(0, 1, 3, 2)) / size**0.5 + self.future
            seen = ops.matmul(ops.softmax(scores, axis=-1), v)
            x = x + self.proj(seen.transpose(0, 2, 1, 3).reshape(BATCH, CONTEXT, WIDTH))
            return x + self.down(ops.relu(self.up(self.ln2(x))))

    class Gpt(nn.Cell):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(256, WIDTH)
            places = np.random.RandomState(0).randn(CONTEXT, WIDTH) * 0.02
            self.places = Parameter(Tensor(places, ms.float32), name="places")
            self.blocks = nn.SequentialCell(*[Block() for _ in range(LAYERS)])
            self.norm, self.head = nn.LayerNorm((WIDTH,)), nn.Dense(WIDTH, 256)

        def construct(self, ids):
            return self.head(self.norm(self.blocks(self.tokens(ids) + self.places)))

    ms.set_device("CPU")
    communication.init()
    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
    ms.set_seed(1234)
    rank = communication.get_rank()
    model = Gpt().set_train()
    optimizer = nn.AdamWeightDecay(model.trainable_params(), 1e-3)
    reduce = nn.DistributedGradReducer(optimizer.parameters, mean=True)

    def loss_of(ids, targets):
        return ops.cross_entropy(model(ids).reshape(-1, 256), targets.reshape(-1))

    grad = ms.value_and_grad(loss_of, None, optimizer.parameters)
    text = np.frombuffer(corpus(), dtype=np.uint8).astype(np.int32)
    random = np.random.RandomState(rank)

    mon = trainmon.watch(
        model, optimizer, kinds=["grads", "weights", "moments", "activations"], every=1, out=out
    )
    for step in range(STEPS):
        starts = random.randint(0, len(text) - CONTEXT - 1, BATCH)
        batch = np.stack([text[s : s + CONTEXT + 1] for s in starts])
        loss, gradients = grad(Tensor(batch[:, :-1]), Tensor(batch[:, 1:]))
        optimizer(reduce(gradients))
        mon.log(loss=loss)
        if rank == 0 and (step < 2 or step % 5 == 4):
            passed = time.perf_counter() - began
            print(f"step {step}: loss {float(loss):.3f}, {passed:.1f} s", flush=True)
    mon.stop()


def corpus() -> bytes:
    """Some source text of Python's standard library."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:40]
    return b"".join(file.read_bytes() for file in files)


def launch(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    beside = os.path.dirname(sys.executable)
    logs = out.parent / f"{out.name}_logs"
    command = [os.path.join(beside, "msrun"), "--worker_num=2", "--local_worker_num=2"]
    command += [f"--master_port={port}", f"--log_dir={logs}", "--join=True"]
    command += ["--tail_worker_log=0"]  # what rank 0 prints is seen at once
    environment = {"GLOG_v": "3", **os.environ, "PATH": beside + os.pathsep + os.environ["PATH"]}
    done = subprocess.run(
        [*command, __file__, "--out", str(out), "--train"], env=environment, check=False
    )
    if done.returncode != 0:
        sys.exit(f"msrun failed ({done.returncode}), see {logs}")

    import trainmon

    rows = trainmon.read(str(out))
    last = rows[(rows.step == STEPS - 1) & (rows["rank"] == 0) & (rows.kind == "grad_reduced")]
    if last.empty:
        sys.exit("no gradient was recorded")
    print(
        last.sort_values("norm", ascending=False)[["name", "norm"]].head(5).to_string(index=False)
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("trainmon_runs/mindspore_gpt"))
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    train(str(given.out)) if given.train else launch(given.out.resolve())
