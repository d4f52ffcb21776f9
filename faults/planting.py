"""What a fault is, and what many of them do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from training import Setting, Training, local


@dataclasses.dataclass
class Draw:
    """Where a fault strikes: drawn from a seed before the training begins, the same on all ranks."""

    step: int  # counted from the fork
    rank: int
    tensor: str
    element: float  # 0..1 of those that the rank holds


@dataclasses.dataclass(frozen=True)
class Fault:
    """`act` is called at `point` on every rank, in the step that was drawn, or from it on.

    `stage` is where the first wrong number is. `ranks`: "own" where only one rank is wrong, "all" where
    every one is; `blames` the rank that is to be named: "own", "all".
    """

    name: str
    point: str
    stage: str
    act: Callable[[Training, Draw], None]
    ranks: str = "own"
    blames: str = "own"
    tensors: str = "one"  # one, all, none
    lasts: bool = False
    from_start: bool = False  # of the record: nothing tells it from what is meant
    exact: bool = True  # of the class that an equation catches
    applies: Callable[[Setting], bool] = lambda setting: True


def of_drawn_rank(act: Callable[[torch.Tensor, Draw], None], take: Callable) -> Callable:
    def on_rank(training: Training, draw: Draw) -> None:
        if training.rank == draw.rank:
            with torch.no_grad():
                act(take(training, draw), draw)

    return on_rank


def weight(training, draw):
    return local(training.parameters[draw.tensor])


def gradient(training, draw):
    return local(training.parameters[draw.tensor].grad)


def moment(name):
    return lambda training, draw: local(
        training.inner.state[training.parameters[draw.tensor]][name]
    )


def flip(bit: int) -> Callable:
    """Of one element that is not zero, for of zero many a bit says nothing."""

    def act(tensor: torch.Tensor, draw: Draw) -> None:
        places = tensor.reshape(-1).nonzero().reshape(-1)
        place = places[int(draw.element * len(places))] if len(places) else 0
        index = tuple(int(i) for i in torch.unravel_index(torch.as_tensor(place), tensor.shape))
        one = tensor[index].reshape(1).clone()
        one.view(torch.int32)[0] ^= -(1 << 31) if bit == 31 else 1 << bit
        tensor[index] = one[0]

    return act


def scaled(factor: float) -> Callable:
    return lambda tensor, draw: tensor.mul_(factor)


def stride_of_bits(tensor: torch.Tensor, draw: Draw) -> None:
    """Bit 22 of every 32nd element, as one bad lane of a memory makes it."""
    flat = tensor.reshape(-1).clone()
    flat.view(torch.int32)[::32] ^= 1 << 22
    tensor.copy_(flat.view(tensor.shape))


def row_scaled(factor: float) -> Callable:
    def act(tensor: torch.Tensor, draw: Draw) -> None:
        tensor[int(draw.element * tensor.shape[0])] *= factor

    return act


def three_bits(tensor: torch.Tensor, draw: Draw) -> None:
    for bit in (3, 9, 14):
        flip(bit)(tensor, draw)


def swap_two(tensor: torch.Tensor, draw: Draw) -> None:
    """Two elements that are not equal change places: their bits as a set stay."""
    flat = tensor.reshape(-1).clone()
    first = int(draw.element * (len(flat) - 1))
    others = (flat != flat[first]).nonzero().reshape(-1)
    if len(others):
        second = int(others[len(others) // 2])
        flat[[first, second]] = flat[[second, first]]
    tensor.copy_(flat.view(tensor.shape))


def errors_that_cancel(tensor: torch.Tensor, draw: Draw) -> None:
    """One element gains what its neighbour loses: the sum stays."""
    flat = tensor.reshape(-1).clone()
    place = int(draw.element * (len(flat) - 1))
    error = 0.5 * flat.abs().max()
    flat[place] += error
    flat[place + 1] -= error
    tensor.copy_(flat.view(tensor.shape))


def all_gradients(factor: float, only_drawn: bool = False) -> Callable:
    def act(training: Training, draw: Draw) -> None:
        for name, parameter in training.parameters.items():
            if not only_drawn or name == draw.tensor:
                local(parameter.grad).mul_(factor)

    return act


def remember_weight(training: Training, draw: Draw) -> None:
    training.remembered = weight(training, draw).detach().clone()


def many(setting: Setting) -> bool:
    """Ranks hold the same gradient, or it is seen before and after the reduction."""
    return setting.ranks > 1 and setting.wrapper != "fsdp2"


def reduces(setting: Setting) -> bool:
    return many(setting) and setting.wrapper == "ddp"


def adam(setting: Setting) -> bool:
    return setting.is_adam and setting.wrapper != "zero"


def steps_all(setting: Setting) -> bool:
    """Every rank steps what it holds of every tensor."""
    return setting.wrapper != "zero"
