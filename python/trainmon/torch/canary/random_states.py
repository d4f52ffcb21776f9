# All random states that a forward may draw from, kept and put back.
from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import torch


class RandomStates:
    """Of torch on the CPU and on `devices`, of Python, and of NumPy where it is loaded. Generators that modules
    have as attributes have states, too."""

    def __init__(self, devices: list, modules: list):
        self.devices = devices
        self.generators = [
            value
            for module in modules
            for value in vars(module).values()
            if isinstance(value, torch.Generator)
        ]
        self.numpy = sys.modules.get("numpy")
        self.read()

    def read(self) -> None:
        self.of_cpu = torch.get_rng_state()
        self.of_devices = [torch.cuda.get_rng_state(device) for device in self.devices]
        self.of_generators = [generator.get_state() for generator in self.generators]
        self.of_python = random.getstate()
        self.of_numpy = self.numpy and self.numpy.random.get_state()

    def set(self) -> None:
        torch.set_rng_state(self.of_cpu)
        for device, state in zip(self.devices, self.of_devices, strict=True):
            torch.cuda.set_rng_state(state, device)
        for generator, state in zip(self.generators, self.of_generators, strict=True):
            generator.set_state(state)
        random.setstate(self.of_python)
        if self.numpy:
            self.numpy.random.set_state(self.of_numpy)


@contextlib.contextmanager
def random_as(states: RandomStates) -> Iterator[None]:
    """A block that draws what was drawn from `states` on; around it nothing was drawn."""
    before = RandomStates(states.devices, [])
    before.generators = states.generators
    before.read()
    try:
        states.set()
        yield
    finally:
        before.set()
