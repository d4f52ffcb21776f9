# Transformers' Trainer on two processes: a small Llama, trainmon as a callback.
"""python examples/transformers_trainer.py [--out DIR] [--steps N]; or start it with torchrun."""

import sys
import tempfile

import torch.distributed as dist
from small_text import start, texts
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from trainmon.integrations.transformers import TrainmonCallback

BATCH, MICRO_STEPS, LENGTH = 4, 2, 64


def train(out, steps):
    set_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=96,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )
    pieces = texts(LENGTH - 1, steps * BATCH * MICRO_STEPS * 2)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            ddp_backend="gloo",
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=MICRO_STEPS,
            learning_rate=1e-3,
            logging_steps=5,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        Trainer(
            model=model,
            args=arguments,
            train_dataset=[{"input_ids": piece, "labels": piece} for piece in pieces],
            callbacks=[TrainmonCallback(kinds=["grads", "weights", "moments"], out=out)],
        ).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(start(train, __doc__, steps=30))
