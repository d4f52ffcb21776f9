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
    "overlap": {"distributed": True, "overlap": True, "clip_grad": 0.5},
    "chunks": {"chunks": 2, "distributed": True, "overlap": True},
    "chained": {"chunks": 2, "overlap": True},
    "tensor": {"tp": 2, "overlap": True},
    "tensor-distributed": {"tp": 2, "distributed": True},
    "single": {"overlap": True},
    "skip": {"fp16": True, "initial_loss_scale": 1024.0, "hysteresis": 1},
}
RANKS = {"single": 1}


def models(settings):
    tp = settings.get("tp", 1)
    count = settings.get("chunks", 1)
    return [case.gpt(seed, tensor_model_parallel_size=tp) for seed in range(count)]


def bare(name):
    return name.removeprefix("module.").removeprefix("module.")


def wrapped(name, settings):
    wrapping = {k: v for k, v in settings.items() if k not in ("tp", "chunks")}
    if name != "chained":
        return case.wrap(models(settings), **wrapping)
    from megatron.core.optimizer import ChainedOptimizer

    pairs = [case.wrap([model], **wrapping) for model in models(settings)]
    chain = [one for _, optimizer in pairs for one in optimizer.chained_optimizers]
    return [chunk for chunks, _ in pairs for chunk in chunks], ChainedOptimizer(chain)


def train(name, rank, out=None, truth=None):
    """The run of one case: watched if there is `out`. `truth` is filled with what twins of the model,
    which nobody has wrapped, give for the same weights and data."""
    settings = CASES[name]
    chunks, optimizer = wrapped(name, settings)
    watched = None
    if out is not None:
        given = optimizer
        if name == "overlap":  # Megatron's optimizer is found around it
            given = optimizer.chained_optimizers[0].optimizer
        kinds = ["grads", "grad_micro", "weights", "moments", "activations"]
        watched = trainmon.watch(chunks, given, kinds=kinds, out=out)
    twins = models(settings) if truth is not None else []

    def each(step):
        for number, (chunk, twin) in enumerate(zip(chunks, twins)):
            twin.load_state_dict({bare(n): p.detach() for n, p in chunk.named_parameters()})
            local = case.gradients(twin, step, MICROS, rank)
            mean = {name: gradient.clone() for name, gradient in local[-1].items()}
            for gradient in mean.values():
                dist.all_reduce(gradient)
                gradient /= dist.get_world_size()
            truth.append({"chunk": number, "step": step, "local": local, "mean": mean})
            truth[-1]["weights"] = {n: p.detach().clone() for n, p in twin.named_parameters()}

    poison = 1 if name == "skip" else None
    losses = case.train(chunks, optimizer, STEPS, MICROS, rank, each, poison)
    left = {}
    if watched is not None:
        watched.stop()
        groups = [g for c in chunks for g in (*c.bucket_groups, *c.expert_parallel_bucket_groups)]
        left["patched"] = sum("start_grad_sync" in vars(group) for group in groups)
        left["health"] = watched.health()
    weights = [p.detach().clone() for chunk in chunks for p in chunk.parameters()]
    return torch.tensor(losses), weights, left


def none(rank, out):
    """A rank on which Megatron has nothing to optimise trains on like the others."""
    from megatron.core.optimizer import ChainedOptimizer

    (chunk,), _ = case.wrap(models({}))
    watch = trainmon.watch(chunk, ChainedOptimizer([]), out=out / "none")
    case.loss_of(chunk, 0, 0, rank).backward()
    watch.stop()


def main():
    out, name = pathlib.Path(sys.argv[1]), sys.argv[2]
    tp = CASES[name].get("tp", 1)
    rank = case.start(tp=tp) // tp  # ranks of one tensor parallel group read the same text
    truth = [] if name in ("overlap", "chunks", "chained", "single") else None
    losses, weights, _ = train(name, rank)
    if name == "chained":
        none(rank, out)
    seen, watched, left = train(name, rank, out / "run", truth)
    same = torch.equal(losses.nan_to_num(-1), seen.nan_to_num(-1))
    same = same and all(torch.equal(*pair) for pair in zip(weights, watched, strict=True))
    torch.save({"same": same, "truth": truth, **left}, out / f"{dist.get_rank()}.pt")
    case.end()


if __name__ == "__main__":
    main()
