# A small GPT of Megatron-core on a few ranks, its training, and its gradients without Megatron's wrappers.
import contextlib
import os
import tempfile

import megatron_shim
import torch
import torch.distributed as dist

WORDS, LENGTH, ROWS = 64, 16, 2


def start(tp=1, pp=1, vpp=1):
    """Joins the other ranks; from then on Megatron can be used."""
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meeting = os.environ.get("MEETING_POINT") or f"file://{tempfile.mkdtemp()}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    megatron_shim.install()
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(tp, pp, vpp if vpp > 1 else None)
    return rank


def transformer(**more):
    from megatron.core.transformer import TransformerConfig

    return TransformerConfig(
        **{
            "num_layers": 2,
            "hidden_size": 32,
            "num_attention_heads": 4,
            "use_cpu_initialization": True,
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            "bias_activation_fusion": False,
            "masked_softmax_fusion": False,
            "bias_dropout_fusion": False,
            "gradient_accumulation_fusion": False,
            **more,
        }
    )


def gpt(seed=0, **more):
    from megatron.core.models.gpt import GPTModel, gpt_layer_specs

    torch.manual_seed(seed)
    config = transformer(**more)
    experts = {"num_experts": config.num_moe_experts} if config.num_moe_experts else {}
    return GPTModel(
        config=config,
        transformer_layer_spec=gpt_layer_specs.get_gpt_layer_local_spec(**experts),
        vocab_size=WORDS,
        max_sequence_length=LENGTH,
        position_embedding_type="learned_absolute",
    )


def wrap(
    models, bf16=False, fp16=False, overlap=False, distributed=False, overrides=None, **optimizer
):
    """(chunks, Megatron's optimizer): what setup_model_and_optimizer() of Megatron-LM gives.
    `overrides` {}: weight decay of biases and norms, too."""
    from megatron.core import distributed as parallel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.module import Float16Module

    chunks = []
    for model in models:
        config = model.config
        if bf16 or fp16:
            config.bf16, config.fp16 = bf16, fp16
            model = Float16Module(config, model)
        how = parallel.DistributedDataParallelConfig(
            overlap_grad_reduce=overlap,
            use_distributed_optimizer=distributed,
            bucket_size=20000 if overlap else None,
            grad_reduce_in_fp32=bf16 or fp16,
        )
        chunks.append(parallel.DistributedDataParallel(config, how, model))
    settings = {"optimizer": "adam", "lr": 1e-3, "clip_grad": 0.0, **optimizer}
    settings.update(bf16=bf16, fp16=fp16, use_distributed_optimizer=distributed)
    if bf16 or fp16:
        settings["params_dtype"] = torch.bfloat16 if bf16 else torch.float16
    return chunks, get_megatron_optimizer(OptimizerConfig(**settings), chunks, overrides)


def batch(step, micro, rank):
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
    return torch.randint(0, WORDS, (ROWS, LENGTH), generator=generator)


def loss_of(model, step, micro, rank):
    ids = batch(step, micro, rank)
    positions = torch.arange(LENGTH)[None].expand(ROWS, LENGTH)
    mask = torch.tril(torch.ones(LENGTH, LENGTH))[None, None] < 0.5
    return model(ids, positions, mask, labels=ids).float().mean()


def train(chunks, optimizer, steps, micros, rank, each=None, poison=None):
    """As Megatron-LM's train_step() goes, without a pipeline; one chunk after the other is trained.
    each(step) is called between finalize_model_grads() and the optimizer's step. `poison`: a step whose
    loss is infinite on rank 0."""
    from megatron.core.distributed import finalize_model_grads

    losses = []
    for step in range(steps):
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        for micro in range(micros):
            for chunk in chunks:
                is_last = micro == micros - 1
                with contextlib.nullcontext() if is_last else chunk.no_sync():
                    loss = loss_of(chunk, step, micro, rank) / micros
                    if step == poison and rank == 0:
                        loss = loss * torch.inf
                    optimizer.scale_loss(loss).backward()
                losses.append(loss.item())
        finalize_model_grads(chunks)
        if each is not None:
            each(step)
        optimizer.step()
    return losses


def gradients(twin, step, micros, rank):
    """By name, per micro-step: the sum of this rank's gradients so far, of a model nobody wrapped."""
    names, parameters = zip(*twin.named_parameters())
    sums, found = [torch.zeros_like(p) for p in parameters], []
    for micro in range(micros):
        loss = loss_of(twin, step, micro, rank) / micros
        for total, part in zip(sums, torch.autograd.grad(loss, parameters)):
            total += part
        found.append({name: total.clone() for name, total in zip(names, sums)})
    return found


def end():
    from megatron.core import parallel_state

    dist.barrier()
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
