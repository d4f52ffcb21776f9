# How fast this machine reads tensors for rows: measured in a fraction of a second, with the hooks of a run.
from __future__ import annotations

import time

import torch
from torch import nn

from trainmon.torch.measuring.ops import dtype_name
from trainmon.torch.rehearsal import watched

LINKS = 64  # modules, and parameters, whose cost is measured
TINY = 16  # elements of each
# Bytes that are read again and again: they stay in a cache near the core, in one far from it, or in none.
NEAR, FAR = 2**18, 2**22
BEYOND_CACHES = {"cpu": 2**26}
BEYOND_CACHES_OF_DEVICE = 2**28
ROUNDS = 7


class _Link(nn.Module):
    def forward(self, x):
        return x.view_as(x)


class _Chain(nn.Module):
    """Modules that do nothing, and weights of next to no size."""

    def __init__(self, device: torch.device):
        super().__init__()
        self.links = nn.Sequential(*(_Link() for _ in range(LINKS)))
        tensors = [torch.ones(TINY, device=device) for _ in range(LINKS)]
        self.tensors = nn.ParameterList([nn.Parameter(tensor) for tensor in tensors])

    def forward(self, x):
        return self.links(x).sum() + torch.stack(list(self.tensors)).sum()


class Speed:
    """What one row costs, and one byte. `config` is that of the run: its threads, checks and backend
    have their say."""

    def __init__(self, config: dict, device: torch.device):
        self.config = {**config, "include": [], "exclude": [], "modules": "all"}
        self.device = device
        self.largest = BEYOND_CACHES.get(device.type, BEYOND_CACHES_OF_DEVICE)
        self.known: dict[tuple, float] = {}  # (dtype, bytes of the working set) -> seconds per byte
        self.sums: dict[tuple, float] = {}  # (dtype, bytes) -> seconds
        chain = self.chain = _Chain(device).train()
        x = torch.ones(TINY, device=device, requires_grad=True)

        def step(adapter):
            chain(x).backward()
            if adapter is not None:
                adapter.declare_step(None)

        def watching(kinds):
            with watched(chain, self.config, kinds) as adapter:
                return self._least(lambda: step(adapter))

        with torch.enable_grad():
            bare = self._least(lambda: step(None))
            idle = watching(["param_origin"])  # which there is none of without an optimizer
            hooked = watching(["actv", "actv_grad"])
        # Seconds of a step, for each parameter that is trained: hooks that give no row.
        self.per_parameter = max(0.0, idle - bare) / LINKS
        # Per row of a module or a hook: input and output of each link and of the Sequential, and
        # two of the chain.
        self.per_hook = max(0.0, hooked - idle) / (4 * (LINKS + 2))
        self.per_swept = self._sweep([p.data for p in chain.tensors]) / LINKS  # of a sweep

    def seconds(self, dtype: torch.dtype, size: int, working_set: int) -> float:
        """To read so many bytes, of so many that are read before they come again."""
        level = next((known for known in (NEAR, FAR) if working_set <= known), self.largest)
        key = dtype, level
        if key not in self.known:
            width = torch.empty((), dtype=dtype, device="cpu").element_size()
            buffer = torch.ones(level // width, device=self.device).to(dtype)
            self.known[key] = max(0.0, self._sweep([buffer]) - self.per_swept) / level
        return size * self.known[key]

    def adding(self, dtype: torch.dtype, size: int) -> float:
        """Seconds of a sum of two tensors of so many bytes, whose result is new memory."""
        size = min(size, self.largest)
        if (dtype, size) not in self.sums:
            count = max(1, size // torch.empty((), dtype=dtype, device="cpu").element_size())
            one = torch.ones(count, device=self.device).to(dtype)
            kept: list = []
            self.sums[dtype, size] = self._least(lambda: kept.append(one + one))
        return self.sums[dtype, size]

    def _sweep(self, tensors: list) -> float:
        """Seconds that a sweep of these takes."""
        with watched(self.chain, self.config, ["actv"]) as adapter:
            series = [
                adapter.add_series(kind="param_updated", name=str(i), dtype=dtype_name(tensor))
                for i, tensor in enumerate(tensors)
            ]

            def sweep():
                for i in adapter.sweep(adapter.handle, series, tensors, None, 0, None) or ():
                    adapter.late.add(series[i], tensors[i], adapter.clock.window, 0, 0, 0)

            return self._least(sweep, lambda: adapter.declare_step(None))

    def _least(self, act, after=None) -> float:
        """Seconds of the quickest of some rounds, after two that fill caches and register series: other
        programs only make it longer."""
        took = []
        for _ in range(ROUNDS + 2):
            self._wait()
            begin = time.perf_counter()
            act()
            self._wait()
            took.append(time.perf_counter() - begin)
            if after is not None:
                after()
        return min(took[2:])

    def _wait(self) -> None:
        module = getattr(torch, self.device.type, None)
        if self.device.type != "cpu" and hasattr(module, "synchronize"):
            module.synchronize(self.device)
