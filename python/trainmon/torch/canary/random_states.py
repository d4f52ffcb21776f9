# All random states that a forward may draw from, kept and put back.
from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import torch


def is_generator(value) -> bool:
    """Whether it is a random generator that has a state."""
    return _way_of(value) is not None


def _way_of(value):
    """How its state is read and set; None of what is no generator."""
    if isinstance(value, torch.Generator):
        return torch.Generator.get_state, torch.Generator.set_state
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return random.Random.getstate, random.Random.setstate
    numpy = sys.modules.get("numpy.random")
    if numpy is None:
        return None
    if isinstance(value, numpy.RandomState):
        return numpy.RandomState.get_state, numpy.RandomState.set_state
    if isinstance(value, numpy.Generator):
        return _of_numpy, _set_numpy
    return None


def _of_numpy(generator):
    return generator.bit_generator.state


def _set_numpy(generator, state) -> None:
    generator.bit_generator.state = state


class RandomStates:
    """Of torch on the CPU and on `devices`, of Python, and of NumPy where it is loaded. `generators` are by what
    tells them from one another."""

    def __init__(self, devices: list, generators: dict[str, object]):
        self.devices = devices
        self.numpy = sys.modules.get("numpy")
        self.of_cpu = torch.get_rng_state()
        self.of_devices = [torch.cuda.get_rng_state(device) for device in devices]
        self.of_python = random.getstate()
        self.of_numpy = self.numpy and self.numpy.random.get_state()
        self.of_generators = {place: _way_of(one)[0](one) for place, one in generators.items()}

    def set(self, generators: dict[str, object]) -> None:
        torch.set_rng_state(self.of_cpu)
        for device, state in zip(self.devices, self.of_devices, strict=True):
            torch.cuda.set_rng_state(state, device)
        random.setstate(self.of_python)
        if self.numpy:
            self.numpy.random.set_state(self.of_numpy)
        for place, generator in generators.items():
            if place in self.of_generators:
                _way_of(generator)[1](generator, self.of_generators[place])


@contextlib.contextmanager
def random_as(states: RandomStates, generators: dict[str, object]) -> Iterator[None]:
    """A block that draws what was drawn from `states` on; around it nothing was drawn."""
    before = RandomStates(states.devices, generators)
    try:
        states.set(generators)
        yield
    finally:
        before.set(generators)
