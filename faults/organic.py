"""Organic faults, restated from public reports."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from planting import (
    Draw,
    Fault,
    adam,
    all_gradients,
    flip,
    gradient,
    local,
    many,
    moment,
    of_drawn_rank,
    reduces,
    remember_weight,
    steps_all,
    stride_of_bits,
    three_bits,
    weight,
)  # fmt: skip
from training import SYMBOLS, Training


def chance(training: Training, draw: Draw, share: float) -> bool:
    """True where the fault begins, then in a share of the steps."""
    begins = not training.has_begun
    training.has_begun = True
    return begins or random.Random(f"{draw.element} {training.step}").random() < share


def lose_transfers(training: Training, draw: Draw) -> None:
    """One in a hundred of this rank's contributions arrives as zeros; the first one is drawn."""
    if training.rank != draw.rank:
        return
    for name, parameter in training.parameters.items():
        part = training.bucket.get(id(parameter))
        if part is None:
            continue
        if name == draw.tensor and not training.has_begun:
            training.has_begun = True
            part.zero_()
        elif random.Random(f"{draw.element} {training.step} {name}").random() < 0.01:
            part.zero_()


def remember_run(training: Training, draw: Draw) -> None:
    """What the backwards until now have left of the drawn tensor."""
    training.remembered = training.parameters[draw.tensor].grad.detach().clone()


def lose_first_run(training: Training, draw: Draw) -> None:
    """Of two runs in a step; the last one is being reduced."""
    own = training.bucket.get(id(training.parameters[draw.tensor]))
    if own is not None:
        own.sub_(training.remembered)


def by_elements(training: Training, draw: Draw) -> None:
    for parameter in training.parameters.values():
        local(parameter.grad).mul_(training.setting.ranks / parameter.numel())


def past_wrapper(training: Training, draw: Draw) -> None:
    training.past_wrapper = True


def same_batches(training: Training, draw: Draw) -> None:
    training.common = torch.Generator().manual_seed(training.step)


def stuck_loader(training: Training, draw: Draw) -> None:
    training.is_stuck = training.rank == draw.rank


def other_batch(change: Callable[[torch.Tensor, Draw], torch.Tensor]) -> Callable:
    def act(training: Training, draw: Draw) -> None:
        if training.rank == draw.rank:
            training.given = change(training.given, draw)

    return act


def random_ids(batch: torch.Tensor, draw: Draw) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(int(draw.element * 1e6))
    return torch.randint(SYMBOLS, batch.shape, generator=drawn)


def never_moves(training: Training, draw: Draw) -> None:
    with torch.no_grad():
        weight(training, draw).copy_(training.remembered)


def never_initialised(training: Training, draw: Draw) -> None:
    """What memory held: another thing on each rank, and next to nothing."""
    drawn = torch.Generator().manual_seed(training.rank)
    with torch.no_grad():
        one = weight(training, draw)
        one.copy_(1e-30 * torch.randn(one.shape, generator=drawn))


def sticky_at_times(bit: int, share: float) -> Callable:
    def act(training: Training, draw: Draw) -> None:
        if training.rank == draw.rank and chance(training, draw, share):
            with torch.no_grad():
                flip(bit)(weight(training, draw), draw)

    return act


def noise_in_backward(training: Training, draw: Draw) -> None:
    """Wrong arithmetic: 5 % of noise on one tensor's gradient, as this backward computes it."""
    if training.rank != draw.rank:
        return
    drawn = torch.Generator().manual_seed(int(draw.element * 1e6))

    def noisy(gradient):
        handle.remove()
        return gradient * (1 + 0.05 * torch.randn(gradient.shape, generator=drawn))

    handle = training.parameters[draw.tensor].register_hook(noisy)


def loss_doubled(training: Training, draw: Draw) -> None:
    training.loss_factor = 2.0 if training.rank == draw.rank else 1.0


def count_twice(training: Training, draw: Draw) -> None:
    training.counts_twice = True


def organic_faults() -> list[Fault]:
    everywhere = {"ranks": "all", "blames": "all", "tensors": "all"}
    given = {"tensors": "none"}
    return [
        Fault(
            "sum instead of mean under FSDP, from a step on", "reduced", "grad_reduced",
            lambda t, d: all_gradients(t.setting.ranks)(t, d), **everywhere, lasts=True,
            exact=False, applies=lambda s: s.wrapper == "fsdp2",
        ),
        Fault(
            "mean by the number of elements, from a step on", "reduced", "grad_reduced",
            by_elements, **everywhere, lasts=True, exact=False, applies=reduces,
        ),
        Fault(
            "divided by the world size twice, before clipping", "reduced", "grad_reduced",
            lambda t, d: all_gradients(1 / t.setting.ranks)(t, d), **everywhere, lasts=True,
            exact=False, applies=lambda s: reduces(s) and s.clip is not None,
        ),
        Fault(
            "gradients divided by a loss scale that none applied", "reduced", "grad_reduced",
            all_gradients(1 / 1024), **everywhere, lasts=True, exact=False, applies=many,
        ),
        Fault(
            "what a module gave when it ran first is lost, one tensor", "local", "grad_reduced",
            lose_first_run, ranks="all", blames="all",
            applies=lambda s: reduces(s) and s.micros > 1,
        ),
        Fault(
            "the model called past its DDP wrapper, one step", "weights", "grad_reduced",
            past_wrapper, **everywhere, applies=reduces,
        ),
        Fault(
            "one transfer in a hundred arrives as zeros", "local", "grad_reduced", lose_transfers,
            ranks="all", tensors="all", lasts=True, applies=reduces,
        ),
        Fault(
            "a parameter does not move from a step on", "update", "update", never_moves,
            ranks="all", blames="all", lasts=True, applies=steps_all,
        ),
        Fault(
            "a parameter has never moved", "update", "update", never_moves,
            ranks="all", blames="all", lasts=True, from_start=True, exact=False, applies=steps_all,
        ),
        Fault(
            "a parameter was never initialised", "weights", "weights", never_initialised,
            ranks="all", blames="all", from_start=True, exact=False, applies=reduces,
        ),
        Fault(
            "all ranks are given the same batches, from a step on", "weights", "input", same_batches,
            ranks="all", blames="all", **given, lasts=True,
            applies=lambda s: s.ranks > 1,
        ),
        Fault(
            "all ranks have always been given the same batches", "weights", "input", same_batches,
            ranks="all", blames="all", **given, lasts=True, from_start=True, exact=False,
            applies=lambda s: s.ranks > 1,
        ),
        Fault(
            "a loader gives its last batch for ever", "weights", "input", stuck_loader, **given,
            lasts=True,
        ),
        Fault(
            "a batch of random ids, one rank, one step", "input", "input", other_batch(random_ids),
            **given, exact=False,
        ),
        Fault(
            "a batch of one id, one rank, one step", "input", "input",
            other_batch(lambda batch, draw: torch.full_like(batch, 32)), **given, exact=False,
        ),
        Fault(
            "the logged norm counts LayerNorms twice, from a step on", "weights", "logged",
            count_twice, ranks="all", blames="all", **given, lasts=True, exact=False,
        ),
        Fault(
            "5 % noise inside one rank's backward, one tensor", "weights", "grad_reduced",
            noise_in_backward, ranks="all", exact=False,
            applies=lambda s: s.wrapper in ("ddp", "none"),
        ),
        Fault(
            "the loss of one rank doubled, one step", "weights", "grad_reduced", loss_doubled,
            ranks="all", tensors="all", exact=False, applies=reduces,
        ),
        Fault(
            "weight, sticky bit 12 in half of the steps", "weights", "weights",
            sticky_at_times(12, 0.5), lasts=True,
        ),
        Fault(
            "reduced gradient of one rank, stride of 32", "reduced", "grad_reduced",
            of_drawn_rank(stride_of_bits, gradient), applies=many,
        ),
        Fault(
            "exp_avg, stride of 32", "moments", "moments",
            of_drawn_rank(stride_of_bits, moment("exp_avg")), applies=adam,
        ),
        Fault(
            "reduced gradient of one rank, three bits", "reduced", "grad_reduced",
            of_drawn_rank(three_bits, gradient), applies=many,
        ),
    ]  # fmt: skip


# What they have to know of the step.
BEFORE = {
    "what a module gave when it ran first is lost, one tensor": ("micro", 0, remember_run),
    "a parameter does not move from a step on": ("moments", 0, remember_weight),
    "a parameter has never moved": ("moments", 0, remember_weight),
}
