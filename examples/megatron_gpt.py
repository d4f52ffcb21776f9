# Megatron-core's GPTModel on two processes: its DistributedDataParallel with overlapped reduction, bfloat16
# with float32 masters in the distributed optimizer, and accumulation over two batches.
"""python examples/megatron_gpt.py [--out DIR] [--steps N]; or start it with torchrun yourself.

Megatron-core (scripts/megatron_requirements.txt) takes a GPU for granted. This runs on the CPU, by the
shim of its tests. On GPUs leave the two marked lines out, use nccl, and put model and text on them.
"""

import contextlib
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from small_text import batches, show, start

import trainmon

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "frameworks"))  # CPU only
LENGTH, MICRO_STEPS = 64, 2


def setup_model_and_optimizer():
    from megatron.core import distributed, optimizer, transformer
    from megatron.core.models.gpt import GPTModel, gpt_layer_specs
    from megatron.core.transformer.module import Float16Module

    config = transformer.TransformerConfig(
        num_layers=3,
        hidden_size=96,
        num_attention_heads=4,
        bf16=True,
        params_dtype=torch.bfloat16,
        use_cpu_initialization=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
    )
    gpt = GPTModel(
        config=config,
        transformer_layer_spec=gpt_layer_specs.get_gpt_layer_local_spec(),
        vocab_size=256,
        max_sequence_length=LENGTH,
        position_embedding_type="learned_absolute",
    )
    how = distributed.DistributedDataParallelConfig(
        overlap_grad_reduce=True,
        use_distributed_optimizer=True,
        grad_reduce_in_fp32=True,
        bucket_size=100_000,
    )
    model = [distributed.DistributedDataParallel(config, how, Float16Module(config, gpt))]
    adam = optimizer.OptimizerConfig(
        optimizer="adam", lr=1e-3, bf16=True, params_dtype=torch.bfloat16,
        use_distributed_optimizer=True, clip_grad=1.0,
    )  # fmt: skip
    return model, optimizer.get_megatron_optimizer(adam, model)


def train(out, steps):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    import megatron_shim

    megatron_shim.install()  # CPU only
    from megatron.core import parallel_state
    from megatron.core.distributed import finalize_model_grads

    parallel_state.initialize_model_parallel()
    torch.manual_seed(0)
    model, optimizer = setup_model_and_optimizer()
    (ddp,) = model
    rank, ranks = dist.get_rank(), dist.get_world_size()
    positions = torch.arange(LENGTH)[None]
    mask = torch.tril(torch.ones(LENGTH, LENGTH))[None, None] < 0.5

    kinds = ["grads", "weights", "moments"]
    monitor = trainmon.watch(model, optimizer, kinds=kinds, out=out, grad_acc_steps=MICRO_STEPS)
    text = batches(rank, ranks, 8, LENGTH, steps * MICRO_STEPS)
    for step in range(steps):
        ddp.zero_grad_buffer()
        optimizer.zero_grad()
        for micro in range(MICRO_STEPS):
            inputs, targets = next(text)
            with contextlib.nullcontext() if micro == MICRO_STEPS - 1 else ddp.no_sync():
                loss = ddp(inputs, positions.expand_as(inputs), mask, labels=targets).mean()
                (loss / MICRO_STEPS).backward()
        finalize_model_grads(model)
        optimizer.step()
        monitor.log(loss=loss)
        show(rank, step, loss.item())
    monitor.stop()

    dist.barrier()
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(start(train, __doc__, steps=30))
