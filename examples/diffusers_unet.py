# A small diffusion model of diffusers on two processes: it learns to see the noise in pictures.
"""python examples/diffusers_unet.py [--out DIR] [--steps N]; or start it with torchrun yourself."""

import sys

import torch
import torch.distributed as dist
from diffusers import DDPMScheduler, UNet2DConditionModel
from small_text import show, start
from torch.nn.parallel import DistributedDataParallel

import trainmon

SIZE, BATCH, SHAPES = 16, 4, 4


def pictures(generator):
    """Bright discs and squares of one of four sizes on a dark ground; the size is the prompt."""
    size = torch.randint(SHAPES, (BATCH,), generator=generator)
    place = torch.randint(4, SIZE - 4, (BATCH, 2), generator=generator)
    is_disc = torch.rand(BATCH, generator=generator) < 0.5
    axis = torch.arange(SIZE)
    dy = (axis[None, :, None] - place[:, 0, None, None]).abs()
    dx = (axis[None, None, :] - place[:, 1, None, None]).abs()
    reach = size[:, None, None] + 1
    disc, square = dy**2 + dx**2 <= reach**2, torch.maximum(dy, dx) <= reach
    inside = torch.where(is_disc[:, None, None], disc, square)
    return (2.0 * inside - 1.0)[:, None].expand(-1, 4, -1, -1), size


def train(out, steps):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    prompts = torch.nn.functional.one_hot(torch.arange(SHAPES), 32).float()[:, None]
    model = DistributedDataParallel(
        UNet2DConditionModel(
            sample_size=SIZE,
            in_channels=4,
            out_channels=4,
            layers_per_block=1,
            block_out_channels=(32, 64),
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            cross_attention_dim=32,
            attention_head_dim=8,
            norm_num_groups=8,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    noising = DDPMScheduler(1000)
    generator = torch.Generator().manual_seed(1 + rank)

    monitor = trainmon.watch(model, optimizer, kinds=["grads", "weights", "moments"], out=out)
    for step in range(steps):
        images, sizes = pictures(generator)
        noise = torch.randn(images.shape, generator=generator)
        times = torch.randint(0, 1000, (BATCH,), generator=generator)
        noisy = noising.add_noise(images, noise, times)
        predicted = model(noisy, times, encoder_hidden_states=prompts[sizes]).sample
        loss = (predicted - noise).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.log(loss=loss)
        show(rank, step, loss.item())
    monitor.stop()

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(start(train, __doc__, steps=30))
