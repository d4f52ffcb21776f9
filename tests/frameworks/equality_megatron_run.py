# The training of the equality table under Megatron-core's wrappers and optimizers, watched or bare.
"""equality_megatron_run.py OUT ROW[,ROW...]: of each bare, then watched; losses and weights go to
OUT/ROW/<how>.<rank>.pt."""

import contextlib
import pathlib
import sys

import megatron_case as case
import torch
import torch.distributed as dist

import equality_gpt as gpt
import trainmon

LOSS_SCALE = 2.0**20  # the first step overflows float16 with it, and no other with half of it
ROWS = {
    "megatron": {},
    "megatron_overlap": {"overlap": True},
    "megatron_distributed": {"distributed": True},
    "megatron_distributed_overlap": {"distributed": True, "overlap": True},
    "megatron_bf16": {"bf16": True},
    "megatron_bf16_overlap": {"bf16": True, "overlap": True},
    "megatron_bf16_distributed": {"bf16": True, "distributed": True},
    "megatron_fp16": {"fp16": True, "initial_loss_scale": LOSS_SCALE, "hysteresis": 1},
    "megatron_fp16_distributed_overlap": {
        "fp16": True,
        "distributed": True,
        "overlap": True,
        "initial_loss_scale": LOSS_SCALE,
        "hysteresis": 1,
    },
    "megatron_bf16_distributed_overlap": {"bf16": True, "distributed": True, "overlap": True},
}


class Both:
    """Megatron's optimizer and the buffers that its training loop clears with it."""

    def __init__(self, ddp, optimizer):
        self.ddp, self.step, self._zero = ddp, optimizer.step, optimizer.zero_grad
        self.scale_loss = optimizer.scale_loss

    def zero_grad(self):
        self._zero()
        self.ddp.zero_grad_buffer()


def train(out, row, how, rank):
    from megatron.core.distributed import finalize_model_grads

    model = gpt.make()
    model.config = case.transformer(hidden_size=gpt.WIDTH)
    beta1, beta2 = gpt.ADAMW["betas"]
    adam = {"adam_beta1": beta1, "adam_beta2": beta2, "adam_eps": gpt.ADAMW["eps"]}
    adam |= {key: gpt.ADAMW[key] for key in ("lr", "weight_decay")}
    (ddp,), optimizer = case.wrap([model], overrides={}, **ROWS[row], **adam)
    monitor = None
    if how == "watched":
        monitor = trainmon.watch(
            ddp,
            optimizer,
            kinds=["grad_unreduced", "grad_reduced", "weights", "moments"],
            every=1,
            out=str(out / "run"),
            grad_acc_steps=gpt.MICRO_STEPS,
        )
    losses = gpt.train(
        ddp,
        Both(ddp, optimizer),
        rank,
        lambda last: contextlib.nullcontext() if last else ddp.no_sync(),
        lambda: finalize_model_grads([ddp]),
    )
    if monitor is not None:
        monitor.stop()
        health = monitor.health()
        assert health["parts_off"] == {} and health["errors"] == 0, health
        assert health["refused"] == {}, health
        assert not any("start_grad_sync" in vars(group) for group in ddp.bucket_groups)
    masters = [p for g in optimizer.param_groups for p in g["params"]]
    final = [p.detach() for p in (*model.parameters(), *masters)]
    torch.save({"losses": losses, "final": final}, out / f"{how}.{rank}.pt")


def main():
    rank = case.start()
    for row in sys.argv[2].split(","):
        out = pathlib.Path(sys.argv[1], row)
        out.mkdir(exist_ok=True)
        for how in ("bare", "watched"):
            train(out, row, how, rank)
    case.end()
    assert not dist.is_initialized()


if __name__ == "__main__":
    main()
