# Trains one model under TrainerMonitorV2, msprobe's or ours: peer_v2_run.py FACE CONFIG CASE
# The same numbers go in on both sides; what is written is compared by test_monitor_v2.py.
import os
import sys

import torch
from torch import nn

face, config, case = sys.argv[1:4]
if face == "peer":
    from msprobe.core.monitor_v2.trainer import TrainerMonitorV2
else:
    from trainmon.compat.msprobe.core.monitor_v2.trainer import TrainerMonitorV2


class Pair(nn.Module):
    """Takes a keyword, gives a tuple."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x, scale=None):
        x = self.down(torch.tanh(self.up(x)))
        return x * scale, (x * 2).detach()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.pair = Pair()
        self.twice = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x):
        kept, seen = self.pair(x, scale=torch.full((4,), 0.5))
        return self.twice(self.twice(kept + seen + self.frozen(x)))


torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if ranks > 1:
    torch.distributed.init_process_group(
        "gloo", init_method=os.environ["MEETING_POINT"], rank=rank, world_size=ranks
    )
model = Net()
trained = nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
micro = 2 if "micro" in case else 1
monitor = TrainerMonitorV2(config, fr="torch")
if case == "declared":
    monitor.start(model=trained)
else:
    given = [trained] if case == "chunks" else trained
    monitor.start(model=given, optimizer=optimizer, grad_acc_steps=micro)
numbers = torch.Generator().manual_seed(1 + rank)
for _ in range(6):
    for _ in range(micro):
        loss = trained(torch.randn(5, 4, generator=numbers)).square().mean() / micro
        loss.backward()
    if case == "cc":
        torch.distributed.all_reduce(torch.full((5,), loss.item()))
    optimizer.step()
    optimizer.zero_grad()
    monitor.step()
monitor.stop()
print(f"loss {loss.item():.17g} step {monitor.current_step}")
if ranks > 1:
    torch.distributed.destroy_process_group()
