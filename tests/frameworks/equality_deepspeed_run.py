# The training of the equality table under DeepSpeed, watched or bare.
"""equality_deepspeed_run.py OUT CASES: of each bare, then watched; losses and the weights that this rank can
see go to OUT/ROW/<how>.<rank>.pt. CASES is {ROW: case} as JSON, of ROWS of a test."""

import contextlib
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

import deepspeed
import torch
import torch.distributed as dist

import equality_gpt as gpt
import trainmon


def config(case: dict) -> dict:
    made = {
        "train_micro_batch_size_per_gpu": gpt.BATCH,
        "gradient_accumulation_steps": gpt.MICRO_STEPS,
        "gradient_clipping": case.get("clip", 0.0),
        # Small buckets: gradients are reduced in the midst of a backward. No parameter stays whole.
        "zero_optimization": {
            "stage": case["stage"],
            "reduce_bucket_size": 5000,
            "stage3_param_persistence_threshold": 0,
            **case.get("zero", {}),
        },
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    if case.get("dtype") == "bf16":
        made["bf16"] = {"enabled": True}
    if "scale_power" in case:
        made["fp16"] = {
            "enabled": True,
            "initial_scale_power": case["scale_power"],
            "hysteresis": 1,
        }
    if "accumulate" in case:
        made["data_types"] = {"grad_accum_dtype": case["accumulate"]}
    return made


def parameters_of(model, case: dict):
    if not case.get("groups"):
        return model.parameters()
    # As usual: matrices decay, the rest does not. Here both do, so that the oracle is the same.
    matrices = [p for p in model.parameters() if p.dim() > 1]
    return [{"params": matrices}, {"params": [p for p in model.parameters() if p.dim() < 2]}]


def train(out, case, how, rank):
    model = gpt.make()
    inner = torch.optim.AdamW(parameters_of(model, case), **gpt.ADAMW)
    monitor = None

    def watch(*objects):
        return trainmon.watch(
            *objects,
            kinds=["grad_unreduced", "grad_reduced", "weights", "moments"],
            every=1,
            out=str(out / "run"),
            grad_acc_steps=gpt.MICRO_STEPS,
        )

    given = case.get("given", "engine") if how == "watched" else None
    if given == "before":
        monitor = watch(model, inner)
    engine, *_ = deepspeed.initialize(model=model, optimizer=inner, config=config(case))
    if given == "engine":
        monitor = watch(engine, engine.optimizer)
    elif given == "bare":
        monitor = watch(engine.module, inner)

    losses = []
    for step in range(gpt.STEPS):
        for micro in range(gpt.MICRO_STEPS):
            ids, targets = gpt.batch(rank, step, micro)
            loss = gpt.loss_of(engine(ids), targets)
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
    if monitor is not None:
        monitor.stop()
        health = monitor.health()
        assert health["parts_off"] == {} and health["errors"] == 0, health
        assert health["refused"] == {}, health
    whole = contextlib.nullcontext()
    if case["stage"] == 3:
        whole = deepspeed.zero.GatheredParameters(list(model.parameters()))
    with whole:
        final = [p.detach().clone() for p in model.parameters()]
    torch.save({"losses": losses, "final": final}, out / f"{how}.{rank}.pt")


def main():
    out, cases = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
    rank = gpt.begin()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")  # asked for, though joined already
    deepspeed.init_distributed("gloo")
    # DeepSpeed asks oneDNN, which has float16 on some CPUs only; torch computes it on all.
    deepspeed.get_accelerator().is_fp16_supported = lambda: True
    for row, case in cases.items():
        (out / row).mkdir(exist_ok=True)
        for how in ("bare", "watched"):
            train(out / row, case, how, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
