# What older versions of torch do not have, for the tests that need it.
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def since(version, what):
    """Skips a test on a torch older than version, which does not have `what`."""
    reason = f"{what} needs torch >= {version[0]}.{version[1]}"
    return pytest.mark.skipif(version > TORCH, reason=reason)


post_accumulate_hooks = since((2, 1), "Tensor.register_post_accumulate_grad_hook")
input_gradients = since((2, 1), "torch.autograd._get_sequence_nr")
assigning = since((2, 1), "load_state_dict(assign=True)")
cpu_scaler = since((2, 3), "a GradScaler of CPU tensors")
calls_from_cpp = pytest.mark.skipif(
    not hasattr(TorchDispatchMode, "ignore_compile_internals"),
    reason='collectives="all" needs TorchDispatchMode.ignore_compile_internals',
)
compile_here = pytest.mark.skipif(
    TORCH < (2, 1) and sys.version_info >= (3, 11),
    reason="torch.compile of torch 2.0 needs Python < 3.11",
)
cpu_fused = since((2, 4), "a fused optimizer of CPU tensors")
compiled_operators = since((2, 4), "activations inside compiled code")
# Bare training under torch 2.1's DDP does not have the mean gradient that the oracle has.
ddp_of_oracle = since(
    (2, 4), "accumulation under DDP(find_unused_parameters=True), as the oracle's,"
)
# Bare training fails there, too: "FX to symbolically trace a dynamo-optimized function".
compiled_in_checkpoints = since((2, 5), "a compiled module in a checkpoint without reentrance")
# Bare training of torch 2.1 cannot do these, either (2.2 and 2.3 were not tried).
compiled_all_reduce = since((2, 4), "all_reduce inside torch.compile(fullgraph=True)")
fsdp1 = since((2, 4), "FullyShardedDataParallel of CPU tensors")
# Bare torch 2.4 raises.
compiled_vmap = since((2, 5), "torch.func.vmap of a module inside torch.compile")
strict_export = pytest.mark.skipif(
    not hasattr(getattr(torch, "compiler", None), "is_exporting"),
    reason="a strict torch.export of a watched model needs torch.compiler.is_exporting",
)
tensor_parallel = since((2, 5), "torch.distributed.tensor")
fsdp2 = since((2, 6), "fully_shard in torch.distributed.fsdp")


def marked(names):
    """Of a parametrized test: ways to wrap a model that this torch may not have."""
    marks = {"fsdp1": fsdp1, "fsdp2": fsdp2, "tenso": tensor_parallel}
    return [pytest.param(n, marks=marks[n[:5]]) if n[:5] in marks else n for n in names]


def dtypes(names):
    """Of a parametrized test: those that this torch does not have are skipped."""
    missing = pytest.mark.skip(reason="this torch does not have the dtype")
    return [
        name
        if hasattr(torch, str(name).removeprefix("torch."))
        else pytest.param(name, marks=missing)
        for name in names
    ]
