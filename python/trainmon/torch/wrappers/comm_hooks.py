# What the communication hooks of DistributedDataParallel make of gradients: how those of ranks relate.
from __future__ import annotations

import inspect

MEAN = {"allreduce_hook", "ALLREDUCE"}
# Each rank has the same, which is not the mean of what was given to the hook.
SAME = {
    "fp16_compress_hook", "bf16_compress_hook", "FP16_COMPRESS", "powerSGD_hook", "batched_powerSGD_hook",
    "quantization_pertensor_hook", "quantization_perchannel_hook", "_reducer_allreduce_and_upcast_hook",
}  # fmt: skip
OF_TORCH = ("torch.distributed.algorithms.", "torch.nn.parallel.")


def hooks_of(ddps: list) -> tuple[list[str], bool]:
    """(names of hooks that do not give the mean of gradients, whether each rank has the same of them all).
    Hooks of torch are known. A function says by functools.wraps() that it is one of them."""
    names, are_same = [], True
    for ddp in ddps:
        for name, is_of_torch in _hooks(ddp):
            if is_of_torch and name in MEAN:
                continue
            names.append(name)
            are_same = are_same and is_of_torch and name in SAME
    return names, are_same


def _hooks(ddp) -> list[tuple[str, bool]]:
    registered = getattr(ddp, "_comm_hooks", None)
    if registered:
        found = [inspect.unwrap(hook) for hook, _ in registered]
        return [(_name(hook), _module(hook).startswith(OF_TORCH)) for hook in found]
    try:  # those of C++ have a name alone
        name = ddp._get_ddp_logging_data().get("comm_hook", "")
    except Exception:
        return []
    return [(name.rpartition(".")[2].rpartition("::")[2], True)] if name else []


def _name(hook) -> str:
    return getattr(hook, "__name__", type(hook).__name__)


def _module(hook) -> str:
    return f"{getattr(hook, '__module__', '')}."
