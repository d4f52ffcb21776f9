# Two ranks of one training run in dynamic mode; rank 0 edits the file, as a person would.
# compat_dynamic_run.py CONFIG OUT
import json
import os
import pathlib
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import launch
from trainmon.compat.msprobe.pytorch import TrainerMon

config, out = pathlib.Path(sys.argv[1]), sys.argv[2]
os.environ.update(MONITOR_OUTPUT_DIR=out, DYNAMIC_MONITOR="True")
rank, _ = launch.join()


def edit(**changes):
    torch.distributed.barrier()
    if rank == 0:
        text = {**json.loads(config.read_text()), **changes}
        temporary = config.with_suffix(".new")
        temporary.write_text(json.dumps(text))
        os.replace(temporary, config)
    torch.distributed.barrier()


torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
optimizer = torch.optim.Adam(model.parameters())
monitor = TrainerMon(str(config), params_have_main_grad=False)
monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
edits = {
    3: {"dynamic_on": True, "wg_distribution": True, "collect_times": 3},  # collects 4 5 6
    9: {"dynamic_on": True, "collect_times": 100},  # restarted: 10 ...
    12: {"ops": ["min", "max"], "dynamic_on": True},  # edited while active: 13 ...
    15: {"collect_times": 0},  # ended early
    18: {"dynamic_on": True, "collect_times": 100},  # 19 ...
    21: {"dynamic_on": False},  # stopped: 21 is the last
}
for step in range(25):
    if step in edits:
        edit(**edits[step])
    model(torch.randn(2, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.distributed.barrier()
    if step == 7:
        print("after 7:", json.loads(config.read_text())["dynamic_on"])
hooks = [h for m in model.modules() for h in (*m._forward_hooks, *m._forward_pre_hooks)]
print("hooks left:", len(hooks), [p._post_accumulate_grad_hooks for p in model.parameters()])
monitor.stop()
torch.distributed.destroy_process_group()
