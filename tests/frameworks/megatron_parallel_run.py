# Megatron-core's pipeline and expert parallelism on two ranks, watched and not, beside the same model without.
"""megatron_parallel_run.py OUT CASE: OUT/<rank>.pt holds what plain torch gives on every rank, and whether
training had the same bits watched and not.

The stages of a pipeline are made a second time on each rank, chained in one process, and trained by
torch's AdamW; experts likewise, all on each rank."""

import pathlib
import sys

import megatron_case as case
import torch
import torch.distributed as dist

import trainmon

STEPS, MICROS = 2, 2
ADAM = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-5, "weight_decay": 0.1}
KINDS = ["grads", "weights", "moments"]
KINDS_OF_TRUTH = {
    "grad_unreduced", "grad_reduced", "param_origin", "param_updated", "exp_avg", "exp_avg_sq"
}  # fmt: skip
CASES = {"pipeline": 1, "interleaved": 2}  # chunks of the model per rank


def stage(number, count, virtual):
    """Number `number` of `count` stages, as on the rank that has it; it is made the same on all."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel, gpt_layer_specs

    ranks = count // virtual
    config = case.transformer(
        num_layers=count,
        pipeline_model_parallel_size=ranks,
        virtual_pipeline_model_parallel_size=virtual if virtual > 1 else None,
        pipeline_dtype=torch.float32,
    )
    mine = dist.get_rank()
    parallel_state.set_pipeline_model_parallel_rank(number % ranks)
    torch.manual_seed(number)
    made = GPTModel(
        config=config,
        transformer_layer_spec=gpt_layer_specs.get_gpt_layer_local_spec(),
        vocab_size=case.WORDS,
        max_sequence_length=case.LENGTH,
        position_embedding_type="learned_absolute",
        pre_process=number == 0,
        post_process=number == count - 1,
        vp_stage=number // ranks if virtual > 1 else None,
    )
    parallel_state.set_pipeline_model_parallel_rank(mine)
    return made


def inputs(step, micro):
    """All ranks are stages of one copy of the model: they read the same text."""
    ids = case.batch(step, micro, 0)
    positions = torch.arange(case.LENGTH)[None].expand(*ids.shape)
    mask = torch.tril(torch.ones(case.LENGTH, case.LENGTH))[None, None] < 0.5
    return ids, positions, mask


def train(virtual, out=None):
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.pipeline_parallel import get_forward_backward_func

    ranks, rank = dist.get_world_size(), dist.get_rank()
    models = [stage(rank + turn * ranks, ranks * virtual, virtual) for turn in range(virtual)]
    (b1, b2), adam = ADAM["betas"], {k: ADAM[k] for k in ("lr", "weight_decay")}
    adam |= {"adam_beta1": b1, "adam_beta2": b2, "adam_eps": ADAM["eps"]}
    chunks, optimizer = case.wrap(models, overrides={}, **adam)
    for chunk in chunks:
        chunk.module.config.finalize_model_grads_func = finalize_model_grads
        chunk.module.config.grad_scale_func = optimizer.scale_loss
    monitor = None
    if out is not None:
        monitor = trainmon.watch(
            chunks, optimizer, kinds=KINDS, checks=True, out=str(out), grad_acc_steps=MICROS
        )
    losses = []

    def forward_step(data, model, *more):
        ids, positions, mask = next(data)
        output = model(ids, positions, mask, labels=ids)
        return output, lambda loss: (loss.mean(), {"loss": loss.mean().detach()})

    for step in range(STEPS):
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        data = [iter([inputs(step, micro) for micro in range(MICROS)]) for _ in chunks]
        found = get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=data,
            model=chunks,
            num_microbatches=MICROS,
            seq_length=case.LENGTH,
            micro_batch_size=case.ROWS,
        )
        losses += [one["loss"] for one in found]
        optimizer.step()
    left = {}
    if monitor is not None:
        monitor.stop()
        left = monitor.health()
    return losses, [p.detach().clone() for chunk in chunks for p in chunk.parameters()], left


def truth(virtual):
    """(kind, chunk of all, name, step, micro) -> tensor"""
    count = dist.get_world_size() * virtual
    stages = [stage(number, count, virtual) for number in range(count)]
    named = [(n, name, p) for n, one in enumerate(stages) for name, p in one.named_parameters()]
    optimizer = torch.optim.AdamW([p for _, _, p in named], foreach=False, **ADAM)
    found = {}

    def keep(kind, step, values, micro=-1):
        for (number, name, _), value in zip(named, values, strict=True):
            found[kind, number, name, step, micro] = value.detach().clone()

    for step in range(STEPS):
        for micro in range(MICROS):
            ids, positions, mask = inputs(step, micro)
            hidden = None
            for number, one in enumerate(stages):
                if number:
                    one.set_input_tensor(hidden)
                hidden = one(ids, positions, mask, labels=ids)
            (hidden.float().mean() / MICROS).backward()
            keep("grad_unreduced", step, [p.grad for _, _, p in named], micro)
        keep("grad_reduced", step, [p.grad for _, _, p in named])
        keep("param_origin", step, [p for _, _, p in named])
        optimizer.step()
        keep("param_updated", step, [p for _, _, p in named])
        for kind in ("exp_avg", "exp_avg_sq"):
            keep(kind, step, [optimizer.state[p][kind] for _, _, p in named])
        optimizer.zero_grad()
    return found


def main():
    out, name = pathlib.Path(sys.argv[1]), sys.argv[2]
    virtual = CASES[name]
    case.start(pp=2, vpp=virtual)
    losses, weights, _ = train(virtual)
    seen, watched, health = train(virtual, out / "run")
    same = all(torch.equal(*pair) for pair in zip(losses, seen, strict=True))
    same = same and all(torch.equal(*pair) for pair in zip(weights, watched, strict=True))
    found = truth(virtual) if dist.get_rank() == 0 else None
    torch.save({"same": same, "health": health, "truth": found}, out / f"{dist.get_rank()}.pt")
    case.end()


if __name__ == "__main__":
    main()
