# A small Stable Diffusion UNet on two processes under ColossalAIMonitor.
"""torchrun --nproc_per_node=2 examples/stable_diffusion_ddp.py [--check] [--steps 3] [--config FILE]

diffusers' UNet2DConditionModel with the blocks of Stable Diffusion 1.5, scaled down, and random
weights. It learns to find the noise in random latents under random text embeddings. Nothing is
downloaded. --check compares every row with gradients that are computed without the monitor.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DConditionModel
from grad_stats_check import GradStatsCheck, fresh_files, show
from torch.nn.parallel import DistributedDataParallel

from trainmon.compat.colossalai import ColossalAIMonitor

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENS, TEXT = 77, 96  # of a text embedding; Stable Diffusion 1.5 has 77 x 768


def unet():
    torch.manual_seed(0)
    return UNet2DConditionModel(
        sample_size=16,  # 64
        in_channels=4,
        out_channels=4,
        down_block_types=("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
        up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3,
        block_out_channels=(32, 64, 96, 96),  # 320, 640, 1280, 1280
        layers_per_block=2,
        cross_attention_dim=TEXT,
        attention_head_dim=8,
        norm_num_groups=16,  # 32
    )


def loss_of(model, noisy, noise, times, text):
    return F.mse_loss(model(noisy, times, encoder_hidden_states=text).sample, noise)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default=os.path.join(HERE, "monitor_config.json"))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    bare = unet()
    model = DistributedDataParallel(bare)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    noising = DDPMScheduler(num_train_timesteps=1000)
    check = GradStatsCheck(bare) if options.check else None
    if rank == 0:
        count = sum(p.numel() for p in model.parameters())
        print(f"UNet2DConditionModel, {count:,} parameters, {dist.get_world_size()} processes")

    monitor = ColossalAIMonitor(options.config)
    fresh_files(monitor)
    monitor.monitor(model)

    generator = torch.Generator().manual_seed(1 + rank)  # each rank has data of its own
    for step in range(options.steps):
        latents = torch.randn(2, 4, 16, 16, generator=generator)
        noise = torch.randn(latents.shape, generator=generator)
        text = torch.randn(2, TOKENS, TEXT, generator=generator)
        times = torch.randint(0, 1000, (2,), generator=generator)
        batch = noising.add_noise(latents, noise, times), noise, times, text
        if check is not None:
            check.step(lambda twin, batch=batch: loss_of(twin, *batch))
        loss = loss_of(model, *batch)
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
