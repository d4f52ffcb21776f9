# Trains under DDP or FSDP2 on each rank, watched, and saves what an unspread copy of the model finds.
"""adapter_spread_run.py OUT CASE: OUT/<rank>.pt holds {(step, micro, name): local gradient so far},
the weights before each step, and the health."""

import copy
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn

import launch
import trainmon

KINDS = ["grads", "weights", "moments", "activations"]
STEPS, MICROS = 3, 2


class Net(nn.Module):
    """Sizes that two ranks cannot halve, a parameter that only some ranks use, and a shared one."""

    def __init__(self):
        super().__init__()
        self.first, self.tied, self.last = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 1)
        self.sometimes = nn.Linear(5, 5)
        self.again = nn.Linear(5, 5)
        self.again.weight = self.tied.weight

    def forward(self, x, sometimes):
        x = self.again(torch.tanh(self.tied(torch.tanh(self.first(x)))))
        if sometimes:
            x = x + self.sometimes(x)
        return self.last(x)


def spread(model, case):
    if case.startswith("ddp"):
        return nn.parallel.DistributedDataParallel(
            model,
            gradient_as_bucket_view="views" in case,
            find_unused_parameters="unused" in case,
            static_graph="static" in case,
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    options = {"mesh": init_device_mesh("cpu", (dist.get_world_size(),))}
    if "bf16" in case:
        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    options["reshard_after_forward"] = "kept" not in case
    fully_shard(model.first, **options)
    fully_shard(model.last, **options)
    fully_shard(model, **options)
    return model


def main():
    out, case = pathlib.Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    rank, _ = launch.join()
    torch.manual_seed(0)
    plain = Net()
    inner = copy.deepcopy(plain)
    model = spread(inner, case)
    zero_grad = {"set_to_none": "views" not in case}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    watched = inner if "bare" in case else torch.compile(model) if "compiled" in case else model
    step_model = watched if "compiled" in case else model
    monitor = trainmon.watch(watched, optimizer, kinds=KINDS, out=out / "run")
    local, weights = {}, {}
    for step in range(STEPS):
        optimizer.zero_grad(**zero_grad)
        plain.zero_grad()
        for micro in range(MICROS):
            torch.manual_seed(100 * step + 10 * micro + rank)
            data, sometimes = torch.randn(4, 3), "unused" not in case or rank == 0
            last = micro == MICROS - 1
            if case.startswith("fsdp2"):
                model.set_requires_gradient_sync(last)
                step_model(data, sometimes).pow(2).sum().backward()
            elif last or "sync" in case:
                step_model(data, sometimes).pow(2).sum().backward()
            else:
                with model.no_sync():
                    step_model(data, sometimes).pow(2).sum().backward()
            if "bf16" not in case:
                plain(data, sometimes).pow(2).sum().backward()
                for name, p in plain.named_parameters():
                    if p.grad is not None:
                        local[step, micro, name] = p.grad.clone()
        for name, p in plain.named_parameters():
            weights[step, name] = p.detach().clone()
        optimizer.step()
        with torch.no_grad():  # the copy follows the run it is compared with
            for p, q in zip(plain.parameters(), model.parameters()):
                p.copy_(q.full_tensor() if hasattr(q, "full_tensor") else q)
    health = monitor.stop()
    left = [p._post_accumulate_grad_hooks for p in model.parameters()]
    hooks = sum(
        "trainmon" in type(hook).__module__
        for module in model.modules()
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    )
    report = {"local": local, "weights": weights, "health": health, "left": left, "hooks": hooks}
    torch.save(report, out / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
