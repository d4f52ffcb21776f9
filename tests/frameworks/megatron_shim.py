# Lets Megatron-core train on a CPU: import it, and nothing else, before megatron.
"""Stands in for the GPU that Megatron-core takes for granted: its streams do nothing, tensors asked for
on "cuda" are made on the CPU, float tensors say that they are cuda ones where types are compared by name,
and the tracker of CUDA's random states forks nothing. Hook order, buckets, shard maps, collectives
(gloo) and values are Megatron's own.

What it cannot show: streams and so whether communication really overlaps, fused kernels,
Transformer Engine's layers and optimizers, gradient accumulation in a kernel.

Only for tests and examples. Nothing of trainmon knows of it.
"""

import contextlib

import torch
from torch.overrides import TorchFunctionMode


class NullStream:
    def wait_stream(self, other):
        pass


class CudaMeansCpu(TorchFunctionMode):
    def __torch_function__(self, fn, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if isinstance(device, int) or str(device).startswith("cuda"):
            kwargs["device"] = "cpu"
        if fn is torch.Tensor.cuda:
            return args[0]
        if fn is torch.Tensor.type and len(args) == 1:
            return fn(*args, **kwargs).replace("torch.", "torch.cuda.")
        return fn(*args, **kwargs)


def _nothing(*args, **kwargs):
    return contextlib.nullcontext()


def install():
    """From now on, for this process. Call it where torch's collectives have been initialised."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.current_stream = torch.cuda.Stream = lambda *args, **kwargs: NullStream()
    torch.cuda.stream = _nothing
    torch.cuda.synchronize = lambda *args: None
    from megatron.core import tensor_parallel

    CudaMeansCpu().__enter__()
    tensor_parallel.get_cuda_rng_tracker().fork = _nothing
