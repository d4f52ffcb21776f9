# Which wrapper a model chunk has.
from __future__ import annotations

from torch import nn

from trainmon.torch.wrappers.contract import Wrapper


def wrapper_of(root: nn.Module, optimizers: tuple = ()) -> Wrapper:
    """The wrapper of a model chunk; the last one takes what no other claims."""
    # Here, so that the adapter is loaded without them.
    from trainmon.torch.wrappers.colossalai import LowLevelZero
    from trainmon.torch.wrappers.deepspeed import DeepSpeed
    from trainmon.torch.wrappers.dtensors import DTensors
    from trainmon.torch.wrappers.fsdp1 import Fsdp1
    from trainmon.torch.wrappers.fsdp2 import Fsdp2
    from trainmon.torch.wrappers.megatron import Megatron
    from trainmon.torch.wrappers.plain import Plain
    from trainmon.torch.wrappers.zero_redundancy import ZeroRedundancy

    wrappers = (
        DeepSpeed, LowLevelZero, Fsdp1, Fsdp2, Megatron, DTensors, ZeroRedundancy, Plain,
    )  # fmt: skip
    return next(w(root, optimizers) for w in wrappers if w.claims(root, optimizers))
