# A tiny diffusion model under DistributedDataParallel, bare and watched, and its local gradients.
"""diffusers_run.py OUT: OUT/<rank>.pt holds what the optimizer saw and this rank's own gradients."""

import copy
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from diffusers import DDPMScheduler, UNet2DConditionModel
from seeing import seeing
from torch.nn.parallel import DistributedDataParallel

import trainmon

RANK, RANKS, STEPS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 2


def unet():
    torch.manual_seed(0)
    return UNet2DConditionModel(
        sample_size=16,
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


def loss_of(model, noising, generator):
    images = torch.randn(2, 4, 16, 16, generator=generator)
    noise = torch.randn(2, 4, 16, 16, generator=generator)
    prompt = torch.randn(2, 5, 32, generator=generator)
    times = torch.randint(0, 1000, (2,), generator=generator)
    predicted = model(noising.add_noise(images, noise, times), times, encoder_hidden_states=prompt)
    return (predicted.sample - noise).pow(2).mean()


def train(out, watched):
    bare = unet()
    model = DistributedDataParallel(bare)
    optimizer = seeing(model.parameters(), lr=1e-3)
    noising = DDPMScheduler(1000)
    monitor = None
    if watched:
        kinds = ["grads", "grad_unreduced", "actv", "actv_grad"]
        monitor = trainmon.watch(model, optimizer, kinds=kinds, out=out / "run")
    losses, local = [], []
    for step in range(STEPS):
        seed = 1000 * step + RANK
        if watched:
            twin = copy.deepcopy(bare)  # no hook of anybody's on it
            loss = loss_of(twin, noising, torch.Generator().manual_seed(seed))
            local.append(torch.autograd.grad(loss, list(twin.parameters())))
        loss = loss_of(model, noising, torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return bare, optimizer, losses, local, monitor


def main():
    out = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=os.environ["MEETING_POINT"], rank=RANK, world_size=RANKS
    )
    ends = []
    for watched in (False, True):
        model, optimizer, losses, local, monitor = train(out, watched)
        ends.append([*losses, *(p.detach() for p in model.parameters())])
    torch.save(
        {
            "same": all(torch.equal(a, b) for a, b in zip(*ends)),
            "names": [name for name, _ in model.named_parameters()],
            "seen": optimizer.seen,
            "local": local,
            "health": monitor.stop(),
        },
        out / f"{RANK}.pt",
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
