# A small LLaMA on two processes under ColossalAIMonitor: gradients before and after all-reduce.
"""torchrun --nproc_per_node=2 examples/llama_ddp.py [--check] [--steps 4] [--config FILE]

transformers' LlamaForCausalLM with LLaMA 2's shape scaled down and random weights; nothing is
downloaded. --check compares every row with gradients that are computed without the monitor.
"""

import argparse
import os

import torch
import torch.distributed as dist
from grad_stats_check import GradStatsCheck, fresh_files, show
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

from trainmon.compat.colossalai import ColossalAIMonitor

HERE = os.path.dirname(os.path.abspath(__file__))


def llama():
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=128,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


def loss_of(model, tokens):
    return model(input_ids=tokens, labels=tokens).loss


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default=os.path.join(HERE, "monitor_config.json"))
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    bare = llama()
    model = DistributedDataParallel(bare)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    check = GradStatsCheck(bare) if options.check else None
    if rank == 0:
        count = sum(p.numel() for p in model.parameters())
        print(f"LlamaForCausalLM, {count:,} parameters, {dist.get_world_size()} processes")

    monitor = ColossalAIMonitor(options.config)
    fresh_files(monitor)
    monitor.monitor(model)

    generator = torch.Generator().manual_seed(1 + rank)  # each rank has data of its own
    for step in range(options.steps):
        tokens = torch.randint(0, 512, (2, 64), generator=generator)
        if check is not None:
            check.step(lambda twin, tokens=tokens: loss_of(twin, tokens))
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step_end(model)
        print(f"step {step} rank {rank} loss {loss.item():.4f}", flush=True)

    monitor.stop()
    dist.barrier()  # both ranks' rows are in the files
    if rank == 0:
        show(monitor)
    if check is not None:
        print(f"check: {check.verdict(monitor)}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
