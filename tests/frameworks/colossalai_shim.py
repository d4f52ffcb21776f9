# Lets ColossalAI's LowLevelZero train on CPU.
"""Stands in for two things: the check that the device is a GPU or an NPU, and streams, which the CPU
has not. Layout of shards, buckets, order of hooks and all values are ColossalAI's own. It shows
nothing of overlapping communication, of transfers between devices or of fused optimizers."""

from colossalai.accelerator.cpu_accelerator import CpuAccelerator
from colossalai.zero.low_level import low_level_optim


class NoStream:
    def wait_stream(self, other):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass


def install():
    low_level_optim.LowLevelZeroOptimizer._sanity_checks = lambda self: None
    CpuAccelerator.Stream = CpuAccelerator.current_stream = lambda self, *a, **k: NoStream()
    CpuAccelerator.stream = lambda self, stream: NoStream()
    CpuAccelerator.synchronize = lambda self, *a, **k: None
