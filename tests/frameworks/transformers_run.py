# A Trainer on a tiny Llama, on one or two ranks, watched through the callback and not.
"""transformers_run.py OUT: OUT/<rank>.pt holds the weights of both runs and what the user saw."""

import os
import pathlib
import sys

import torch
import torch.distributed as dist

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if RANKS == 1:  # not what torchrun sets for one process, but what a plain start has
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        del os.environ[variable]
else:  # accelerate wants them to be there; the meeting point is a file
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29500")

from transformers import (  # noqa: E402
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from trainmon.integrations.transformers import TrainmonCallback  # noqa: E402

STEPS, MICROS = 3, 2


class Look(TrainerCallback):
    """The gradients that the optimizer is about to get, by the Trainer's own callback."""

    def __init__(self):
        self.gradients = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.gradients.append({n: p.grad.clone() for n, p in model.named_parameters()})


class Noting(Trainer):
    """Notes each micro-batch's own gradient, by a way that passes no hook of DDP."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.local = []

    def compute_loss(self, model, inputs, return_outputs=False, **settings):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **settings)
        if model.training:
            gradients = torch.autograd.grad(loss, list(self.model.parameters()), retain_graph=True)
            self.local.append(gradients)
        return (loss, outputs) if return_outputs else loss


def train(out, callbacks, max_steps=STEPS, resume=False):
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )
    ids = torch.randint(0, 64, (32, 12), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in ids]
    arguments = TrainingArguments(
        output_dir=str(out / "trainer"),
        use_cpu=True,
        ddp_backend="gloo" if dist.is_initialized() else None,
        max_steps=max_steps,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=MICROS,
        max_grad_norm=0.5,
        logging_steps=1,
        report_to=[],
        save_strategy="steps",
        save_steps=STEPS,
        eval_strategy="steps",
        eval_steps=2,
        disable_tqdm=True,
    )
    trainer = Noting(
        model=model,
        args=arguments,
        train_dataset=data,
        eval_dataset=data[:4],
        callbacks=callbacks,
    )
    trainer.train(resume_from_checkpoint=resume)
    weights = {n: p.detach().clone() for n, p in model.named_parameters()}
    return weights, trainer.local


def main():
    out = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    if RANKS > 1:
        dist.init_process_group(
            "gloo", init_method=os.environ["MEETING_POINT"], rank=RANK, world_size=RANKS
        )
    bare, _ = train(out, [])
    look = Look()
    callback = TrainmonCallback(kinds=["grads", "moments", "activations"], out=out / "run")
    watched, local = train(out, [look, callback])
    again = TrainmonCallback(kinds=["grads"], out=out / "resumed")
    train(out, [again], max_steps=STEPS + 1, resume=str(out / "trainer" / f"checkpoint-{STEPS}"))
    torch.save(
        {
            "same": all(torch.equal(bare[n], watched[n]) for n in bare),
            "gradients": look.gradients,
            "local": local,
            "health": callback.monitor.health(),
        },
        out / f"{RANK}.pt",
    )
    if RANKS > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
