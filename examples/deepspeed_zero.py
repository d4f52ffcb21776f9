# A small byte-level GPT trained by two processes under DeepSpeed ZeRO, watched.
"""python examples/deepspeed_zero.py [--stage 2] [--steps 40] [--out RUN]

Started plainly, it launches itself twice with torchrun, on CPU. The text is the source of Python's
standard library. Each rank updates a part of every flat partition; `trainmon merge` and
`trainmon.read(..., merged=True)` put the parts together again.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

WIDTH, HEADS, DEPTH, CONTEXT, BATCH = 64, 4, 2, 64, 8


def train(stage: int, steps: int, out: Path) -> None:
    import deepspeed
    import torch
    import torch.distributed as dist

    import trainmon

    deepspeed.init_distributed("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = build_gpt(torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config(stage))
    text = torch.frombuffer(bytearray(corpus()), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(rank)

    mon = trainmon.watch(
        engine, engine.optimizer, kinds=["grads", "weights", "moments"], every=1, out=out
    )
    for step in range(steps):
        for _ in range(engine.gradient_accumulation_steps()):
            starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=generator)
            batch = torch.stack([text[s : s + CONTEXT + 1] for s in starts.tolist()]).long()
            logits = engine(batch[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            engine.backward(loss)
            engine.step()
        mon.log(loss=loss.item())
        if rank == 0 and (step % 10 == 0 or step + 1 == steps):
            print(f"step {step + 1:3d}/{steps}  loss {loss.item():.3f}", flush=True)
    mon.stop()
    dist.barrier()
    dist.destroy_process_group()


def config(stage: int) -> dict:
    return {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def build_gpt(torch):
    nn = torch.nn

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(256, WIDTH)
            self.positions = nn.Embedding(CONTEXT, WIDTH)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(
                    WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
                )
                for _ in range(DEPTH)
            )
            self.ln = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, 256, bias=False)

        def forward(self, bytes_):
            length = bytes_.shape[1]
            mask = nn.Transformer.generate_square_subsequent_mask(length)
            x = self.tokens(bytes_) + self.positions(torch.arange(length))
            for block in self.blocks:
                x = block(x, src_mask=mask, is_causal=True)
            return self.head(self.ln(x))

    return GPT()


def corpus() -> bytes:
    """Python's standard library, as text to learn from: every machine that runs this has it."""
    library = Path(sysconfig.get_path("stdlib"))
    return b"\n".join(file.read_bytes() for file in sorted(library.glob("*.py")))


def report(out: Path) -> int:
    """The ranks' parts put together: one norm per parameter, of all of it."""
    import trainmon

    rows = trainmon.read(out, kinds="grad_reduced", merged=True)
    last = max(rows["step"])
    print(f"\nreduced gradients of step {last}, merged over the ranks:")
    for step, name, norm in zip(rows["step"], rows["name"], rows["norm"], strict=True):
        if step == last and ("head" in name or "tokens" in name or "linear1" in name):
            print(f"  {name:32s} {norm:.6f}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", type=int, default=2, choices=range(4))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path, help="run directory; default example_run/<time>")
    given = parser.parse_args()
    out = given.out or Path("example_run") / time.strftime("deepspeed-%Y%m%d-%H%M%S")
    if "RANK" in os.environ:
        train(given.stage, given.steps, out)
        return 0
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    arguments = ["--stage", str(given.stage), "--steps", str(given.steps), "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    if subprocess.run([*launch, __file__, *arguments], env=environment).returncode != 0:
        return 1
    return report(out)


if __name__ == "__main__":
    sys.exit(main())
