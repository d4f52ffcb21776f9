# Checks what ColossalAIMonitor wrote against gradients computed without it: for the two examples.
"""A twin of the model, not wrapped and not watched, repeats every step on each rank alone. Its
gradients are what `local` should hold; their mean over the ranks, made here in float64, is what
`global` should hold. Norm, maximum and minimum of a mean do not follow from those of its parts, so
nothing less would do.
"""

import contextlib
import copy
import csv
import os

import torch
import torch.distributed as dist

# float32 gradients, averaged by DistributedDataParallel in float32.
TOLERANCE = 1e-5


class GradStatsCheck:
    """Make it with the bare model; call step() before the backward of every training step."""

    def __init__(self, model):
        self.model = model
        self.twin = copy.deepcopy(model)
        self.local, self.reduced = [], []  # per step: {name: {statistic: value}}

    def step(self, loss_of):
        """loss_of(model): the loss that this rank's next backward begins with."""
        self.twin.load_state_dict(self.model.state_dict())
        self.twin.zero_grad()
        with _same_random_numbers():
            loss_of(self.twin).backward()
        local, reduced = {}, {}
        for name, parameter in self.twin.named_parameters():
            if parameter.grad is None:
                continue
            gradient = parameter.grad.double()
            local[name] = statistics(gradient)
            mean = gradient.clone()
            dist.all_reduce(mean)
            reduced[name] = statistics(mean / dist.get_world_size())
        self.local.append(local)
        self.reduced.append(reduced)

    def verdict(self, monitor):
        """After stop(), on all ranks: raises AssertionError, or returns what was checked."""
        local, reduced = read(monitor.output_file_local), read(monitor.output_file_global)
        rank, ranks = dist.get_rank(), dist.get_world_size()
        compared = 0
        for step in range(len(self.local)):
            for name, wanted in self.local[step].items():
                key = step, f"module.{name}"
                agree(local[(*key, rank)], wanted, key)
                agree(reduced[(*key, rank)], self.reduced[step][name], key)
                compared += 2
                alone = [local[(*key, r)] for r in range(ranks)]
                everywhere = [reduced[(*key, r)] for r in range(ranks)]
                assert all(one != alone[0] for one in alone[1:]), f"{key}: local equal on all ranks"
                assert all(one == everywhere[0] for one in everywhere), f"{key}: global differs"
                mean = sum(one["mean"] for one in alone) / ranks
                bound = bounds(max(one["norm"] for one in alone), wanted["count"])["mean"]
                assert abs(mean - everywhere[0]["mean"]) <= bound, f"{key}: mean of the means"
        rows = sum(map(len, self.local)) * ranks
        assert len(local) == len(reduced) == rows, f"{len(local)}, {len(reduced)}, not {rows} rows"
        return f"{compared} rows of rank {rank} agree with gradients computed without the monitor"


def statistics(gradient):
    return {
        "norm": gradient.norm().item(),
        "mean": gradient.mean().item(),
        "max": gradient.max().item(),
        "min": gradient.min().item(),
        "count": gradient.numel(),
    }


def bounds(norm, count):
    """What rounding may cost each statistic; a mean is of the size norm / sqrt(count) at most."""
    bound = TOLERANCE * norm + 1e-30
    return {"norm": bound, "max": bound, "min": bound, "mean": bound / count**0.5}


def read(path):
    """{(step, name, rank): {statistic: value}}; no row twice."""
    found = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            key = int(row.pop("step")), row.pop("param_name"), int(row.pop("rank"))
            assert key not in found, f"{path} has two rows of {key}"
            found[key] = {statistic: float(value) for statistic, value in row.items()}
    return found


def agree(found, wanted, key):
    for statistic, bound in bounds(wanted["norm"], wanted["count"]).items():
        error = abs(found[statistic] - wanted[statistic])
        assert error <= bound, f"{key}: {statistic} is {found[statistic]}, not {wanted[statistic]}"


@contextlib.contextmanager
def _same_random_numbers():
    """What is drawn inside will be drawn again."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def fresh_files(monitor):
    """Rank 0 removes the files of an earlier run, which would be continued."""
    if dist.get_rank() == 0:
        for path in (monitor.output_file_local, monitor.output_file_global):
            if os.path.exists(path):
                os.remove(path)
    dist.barrier()


def show(monitor, lines=5):
    """The beginning of both files."""
    for path in (monitor.output_file_local, monitor.output_file_global):
        with open(path, newline="") as file:
            text = file.read().splitlines()
        print(f"\n{path}: {len(text) - 1} rows")
        print("\n".join(text[:lines]), flush=True)
