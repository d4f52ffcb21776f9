# A small Megatron GPT on two ranks, watched and not: rows, and what they should be.
"""megatron_run.py OUT CASE: OUT/<rank>.pt holds what was seen by other means, and both runs' weights."""

import pathlib
import sys

import megatron_case as case
import torch
import torch.distributed as dist

import trainmon

STEPS, MICROS = 3, 2
CASES = {
    "plain": {},
    "overlap": {"overlap": True},
    "distributed": {"distributed": True},
    "distributed-overlap": {"distributed": True, "overlap": True, "clip_grad": 0.5},
    "bf16": {"bf16": True, "overlap": True},
    "bf16-distributed": {"bf16": True, "distributed": True},
    "tp": {"tp": 2},
    "tp-distributed": {"tp": 2, "distributed": True, "sequence_parallel": True},
    "chunks": {"chunks": 2, "distributed": True, "overlap": True},
    "fp16-skip": {"fp16": True, "initial_loss_scale": 2.0**16, "hysteresis": 1},
    "experts": {"num_moe_experts": 2, "distributed": True, "overlap": True},
}
MODEL = ("sequence_parallel", "num_moe_experts")


def models(settings):
    more = {key: settings[key] for key in MODEL if key in settings}
    tp = settings.get("tp", 1)
    return [
        case.gpt(seed, tensor_model_parallel_size=tp, **more)
        for seed in range(settings.get("chunks", 1))
    ]


def bare(name):
    return name.removeprefix("module.").removeprefix("module.")


def train(settings, rank, out=None, truth=None, of_torch=False):
    wrapping = {k: v for k, v in settings.items() if k not in (*MODEL, "tp", "chunks")}
    chunks, optimizer = case.wrap(models(settings), **wrapping)
    watched = None
    if out is not None:
        given = optimizer
        if of_torch:
            given = [one.optimizer for one in optimizer.chained_optimizers]
        watched = trainmon.watch(
            chunks,
            given,
            kinds=["grads", "grad_micro", "weights", "moments", "activations"],
            out=out,
        )

    def each(step):
        """Gradients as they are reduced, by an all-reduce of our own, and weights."""
        for number, (chunk, twin) in enumerate(zip(chunks, twins)):
            twin.load_state_dict({bare(n): p.detach().float() for n, p in chunk.named_parameters()})
            sums = case.gradients(twin, step, MICROS, rank)
            truth["unreduced"].append((number, step, sums))
            mean = {name: gradient.clone() for name, gradient in sums[-1].items()}
            for gradient in mean.values():
                dist.all_reduce(gradient)
                gradient /= dist.get_world_size()
            truth["reduced"].append((number, step, mean))
            truth["weights"].append(
                (number, step, {n: p.clone() for n, p in twin.named_parameters()})
            )

    twins = []
    if truth is not None:
        twins = models(settings)
    losses = case.train(chunks, optimizer, STEPS, MICROS, rank, each if truth is not None else None)
    left = {}
    if watched is not None:
        watched.stop()
        groups = [g for c in chunks for g in (*c.bucket_groups, *c.expert_parallel_bucket_groups)]
        left = {"patched": [key for g in groups for key in vars(g) if key == "start_grad_sync"]}
        left["health"] = watched.health()
    weights = [{bare(n): p.detach().clone() for n, p in c.named_parameters()} for c in chunks]
    return losses, weights, left


def main():
    out, name = pathlib.Path(sys.argv[1]), sys.argv[2]
    settings = CASES[name]
    rank = case.start(tp=settings.get("tp", 1))
    truth = {"unreduced": [], "reduced": [], "weights": []}
    compares = name in (
        "plain",
        "overlap",
        "distributed",
        "distributed-overlap",
        "chunks",
        "bf16",
        "bf16-distributed",
    )
    lost = train(settings, rank)
    seen = train(
        settings, rank, out / "run", truth if compares else None, of_torch="overlap" in name
    )
    same = lost[0] == seen[0] and all(
        torch.equal(one[n], two[n]) for one, two in zip(lost[1], seen[1]) for n in one
    )
    torch.save({"same": same, "losses": seen[0], "truth": truth, **seen[2]}, out / f"{rank}.pt")
    case.end()


if __name__ == "__main__":
    main()
