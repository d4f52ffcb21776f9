# A sharded model that watch() was given bare, before it was wrapped, or of which a module is replaced.
"""adapter_around_run.py OUT CASE: OUT/<rank>.pt holds {(step, name): whole weight before the step}."""

import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn

import launch
import trainmon

STEPS = 3


def spread(model, case):
    if "fsdp2" in case:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model[0])
        return fully_shard(model)
    from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp1

    options = {"use_orig_params": "flat" not in case, "device_id": torch.device("cpu")}
    model[0] = Fsdp1(model[0], **options)
    return Fsdp1(model, **options)


def main():
    out, case = pathlib.Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    rank, _ = launch.join()
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))

    def watched(optimizer):
        kinds = ["grads", "weights", "moments"]
        return trainmon.watch(inner, optimizer, kinds=kinds, out=out / "run", every=1)

    if "before" in case:  # the tensors of the model stay what they are: the optimizer's
        optimizer = torch.optim.AdamW(inner.parameters(), lr=0.05)
        monitor = watched(optimizer)
        model = spread(inner, case)
    else:
        model = spread(inner, case)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        monitor = watched(optimizer)
    weights = {}
    for step in range(STEPS):
        if "replaced" in case and step == 1:  # nobody shards or reduces the new one
            inner[2] = nn.Linear(5, 1)
            optimizer.add_param_group({"params": list(inner[2].parameters())})
        for name, tensor in model.state_dict().items():
            whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            weights[step, name] = whole.detach().clone()
        torch.manual_seed(10 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(4, 3)).pow(2).sum().backward()
        optimizer.step()
    torch.save({"weights": weights, "health": monitor.stop()}, out / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
