"""The faults: what each does, where, and what the checks can know of it."""

from __future__ import annotations

from collections.abc import Callable

import organic
import torch
from planting import (
    Draw,
    Fault,
    adam,
    all_gradients,
    errors_that_cancel,
    flip,
    gradient,
    local,
    many,
    moment,
    of_drawn_rank,
    reduces,
    remember_weight,
    row_scaled,
    scaled,
    steps_all,
    stride_of_bits,
    swap_two,
    three_bits,
    weight,
)  # fmt: skip
from training import Training


def wire_in_bfloat16(training: Training, draw: Draw) -> None:
    for part in training.bucket.values():
        part.copy_(part.bfloat16())


def forget_to_reduce(training: Training, draw: Draw) -> None:
    training.forgets_to_reduce = True


def decayed_twice(training: Training, draw: Draw) -> None:
    with torch.no_grad():
        weight(training, draw).mul_(1 - 2e-4)


def drop_contribution(training: Training, draw: Draw) -> None:
    own = training.bucket.get(id(training.parameters[draw.tensor]))
    if training.rank == draw.rank and own is not None:
        own.zero_()


def lose_what_is_sent(training: Training, draw: Draw) -> None:
    training.loses_transfers = training.rank == draw.rank


def stale_gradient(training: Training, draw: Draw) -> None:
    """The gradient of the step before, once more: kept by `remember`."""
    with torch.no_grad():
        gradient(training, draw).copy_(training.remembered)


def remember(training: Training, draw: Draw) -> None:
    training.remembered = gradient(training, draw).detach().clone()


def of_remembered(change: Callable[[torch.Tensor, torch.Tensor, Training, Draw], None]) -> Callable:
    """After the step, on every rank: change(weight, what it was before the step, ...)."""

    def act(training: Training, draw: Draw) -> None:
        with torch.no_grad():
            change(weight(training, draw), training.remembered, training, draw)

    return act


def adam_again(eps_factor: float = 1.0, is_corrected: bool = True) -> Callable:
    """The step of AdamW once more, with another eps or without the correction of its bias."""

    def change(weight, before, training, draw):
        state = training.inner.state[training.parameters[draw.tensor]]
        m, v = (local(state[name]) for name in ("exp_avg", "exp_avg_sq"))
        (group,) = training.inner.param_groups
        first, second = (
            1 - beta ** state["step"].item() if is_corrected else 1.0 for beta in group["betas"]
        )
        divisor = (v.sqrt() / second**0.5).add_(eps_factor * group["eps"])
        weight.copy_(before * (1 - group["lr"] * group["weight_decay"]))
        weight.addcdiv_(m, divisor, value=-group["lr"] / first)

    return of_remembered(change)


def moments_lost(names: tuple[str, ...], everywhere: bool) -> Callable:
    def act(training: Training, draw: Draw) -> None:
        if not everywhere and training.rank != draw.rank:
            return
        for state in training.inner.state.values():
            for name in names:
                local(state[name]).zero_()

    return act


def not_updated(training: Training, draw: Draw) -> None:
    """After the step: the weight is as before it."""
    if training.rank == draw.rank:
        with torch.no_grad():
            weight(training, draw).copy_(training.remembered)


def fault_list() -> list[Fault]:
    faults = []
    for bit in (31, 30, 27, 24, 23, 22, 16, 8, 0):
        faults.append(
            Fault(f"weight, bit {bit}", "weights", "weights", of_drawn_rank(flip(bit), weight))
        )
    for bit in (31, 30, 27, 24, 22, 16, 8, 0):
        faults.append(
            Fault(
                f"reduced gradient of one rank, bit {bit}",
                "reduced",
                "grad_reduced",
                of_drawn_rank(flip(bit), gradient),
                applies=many,
            )  # fmt: skip
        )
    for name, bits in (("exp_avg", (31, 30, 27, 22, 8)), ("exp_avg_sq", (30, 27, 24, 22, 8))):
        for bit in bits:
            faults.append(
                Fault(
                    f"{name}, bit {bit}",
                    "moments",
                    "moments",
                    of_drawn_rank(flip(bit), moment(name)),
                    applies=adam,
                    # Low bits drown in rounding; ranks that should agree show them.
                    exact=bit > 22,
                )  # fmt: skip
            )
    faults += [
        Fault("weight, stride of 32", "weights", "weights", of_drawn_rank(stride_of_bits, weight)),
        Fault("weight, one row x100", "weights", "weights", of_drawn_rank(row_scaled(100), weight)),
        Fault("weight, one row x10", "weights", "weights", of_drawn_rank(row_scaled(10), weight)),
        Fault("weight zeroed", "weights", "weights", of_drawn_rank(scaled(0), weight)),
        Fault(
            "weight not updated, one rank, one step", "update", "update", not_updated,
        ),  # fmt: skip
        Fault("weight, three bits", "weights", "weights", of_drawn_rank(three_bits, weight)),
        Fault("weight, two elements swapped", "weights", "weights", of_drawn_rank(swap_two, weight)),
        Fault(
            "one tensor decayed twice, all ranks", "update", "update", decayed_twice,
            ranks="all", blames="all",
        ),
        Fault(
            "weight changed inside the step, bit 22", "update", "update",
            of_drawn_rank(flip(22), weight), applies=steps_all,
        ),
        Fault(
            "weight not updated, all ranks, one step", "update", "update",
            of_remembered(lambda now, before, *_: now.copy_(before)),
            ranks="all", blames="all", applies=steps_all,
        ),
        Fault(
            "rate applied twice, one tensor, all ranks", "update", "update",
            of_remembered(lambda now, before, *_: now.add_(now - before)),
            ranks="all", blames="all", applies=steps_all,
        ),
        Fault(
            "eps ten times as large, one tensor, all ranks", "update", "update",
            adam_again(eps_factor=10.0), ranks="all", blames="all", applies=adam, exact=False,
        ),
        Fault(
            "bias not corrected, one tensor, all ranks", "update", "update",
            adam_again(is_corrected=False), ranks="all", blames="all", applies=adam,
        ),
        Fault(
            "reduced gradient of one rank, errors that cancel", "reduced", "grad_reduced",
            of_drawn_rank(errors_that_cancel, gradient), applies=many,
        ),
        Fault(
            "reduced gradient of one rank, sticky bit 20", "reduced", "grad_reduced",
            of_drawn_rank(flip(20), gradient), lasts=True, applies=many,
        ),
        Fault(
            "bfloat16 on the wire, one step", "local", "grad_reduced", wire_in_bfloat16,
            ranks="all", blames="all", tensors="all", applies=reduces,
        ),
        Fault(
            "gradients not reduced, one step", "weights", "grad_reduced", forget_to_reduce,
            ranks="all", blames="all", tensors="all", applies=reduces,
        ),
        Fault(
            "contribution dropped, one step", "local", "grad_reduced", drop_contribution,
            ranks="all", applies=reduces,
        ),
        Fault(
            "contribution dropped for ever", "local", "grad_reduced", drop_contribution,
            ranks="all", lasts=True, applies=reduces,
        ),
        Fault(
            "what a rank sends to reduce-scatters is lost, one step", "weights", "grad_reduced",
            lose_what_is_sent, ranks="all", tensors="all", applies=lambda s: s.wrapper == "fsdp2",
        ),
        Fault(
            "sum instead of mean, from a step on", "reduced", "grad_reduced",
            lambda t, d: all_gradients(t.setting.ranks)(t, d),
            ranks="all", blames="all", tensors="all", lasts=True,
            applies=lambda s: reduces(s) and s.clip is None,
        ),
        Fault(
            "gradients divided by the world size twice", "reduced", "grad_reduced",
            lambda t, d: all_gradients(1 / t.setting.ranks)(t, d),
            ranks="all", blames="all", tensors="all", lasts=True, exact=False,
            applies=lambda s: reduces(s) and s.clip is None,
        ),
        Fault(
            "one tensor's gradient doubled on all ranks", "reduced", "grad_reduced",
            all_gradients(2, only_drawn=True), ranks="all", blames="all", applies=reduces,
        ),
        Fault(
            "a stale gradient", "reduced", "grad_reduced", stale_gradient,
            ranks="all", blames="all", applies=reduces,
        ),
        Fault(
            "one rank's gradient x2 after the reduction", "reduced", "grad_reduced",
            of_drawn_rank(scaled(2), gradient), applies=many,
        ),
        Fault(
            "moments lost, one rank", "moments", "moments",
            moments_lost(("exp_avg", "exp_avg_sq"), False), tensors="all", applies=adam,
        ),
        Fault(
            "exp_avg lost, all ranks", "moments", "moments", moments_lost(("exp_avg",), True),
            ranks="all", blames="all", tensors="all", applies=adam,
        ),
        Fault(
            "exp_avg_sq lost, all ranks", "moments", "moments",
            moments_lost(("exp_avg_sq",), True),
            ranks="all", blames="all", tensors="all", applies=adam,
        ),
        Fault(
            "NaN in a reduced gradient", "reduced", "grad_reduced",
            of_drawn_rank(lambda tensor, draw: tensor.view(-1)[:1].fill_(float("nan")), gradient),
            applies=many,
        ),
    ]  # fmt: skip
    return faults


# What a fault has to know of the step, or of the step before.
BEFORE = {
    **organic.BEFORE,
    "a stale gradient": ("reduced", -1, remember),
    "weight not updated, one rank, one step": ("moments", 0, remember_weight),
    "weight not updated, all ranks, one step": ("moments", 0, remember_weight),
    "rate applied twice, one tensor, all ranks": ("moments", 0, remember_weight),
    "eps ten times as large, one tensor, all ranks": ("moments", 0, remember_weight),
    "bias not corrected, one tensor, all ranks": ("moments", 0, remember_weight),
}
FAULTS = fault_list() + organic.organic_faults()
