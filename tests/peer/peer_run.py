# Trains one model under TrainerMon, msprobe's or ours: peer_run.py FACE CONFIG OUT CASE
# The same numbers go in on both sides; what is written is compared by test_rows.py.
import os
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

face, config, out, case = sys.argv[1:5]
os.environ["MONITOR_OUTPUT_DIR"] = out
if face == "peer":
    from msprobe.pytorch import TrainerMon
else:
    from trainmon.compat.msprobe.pytorch import TrainerMon


class CoreAttention(nn.Module):
    def forward(self, query, key, value):  # sequence, batch, heads, depth
        query, key, value = (t.permute(1, 2, 0, 3) for t in (query, key, value))
        out = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return out.permute(2, 0, 1, 3).flatten(2)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear_qkv = nn.Linear(width, 3 * width)
        self.core = CoreAttention()
        self.linear_out = nn.Linear(width, width)

    def forward(self, x):
        parts = self.linear_qkv(x).chunk(3, -1)
        return self.linear_out(self.core(*(p.unflatten(-1, (2, -1)) for p in parts)))


class Router(nn.Module):
    def __init__(self, width, experts):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, width))

    def forward(self, x):
        return x @ self.weight.T


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.router = Router(width, 4)
        self.split = Split()
        self.idle = nn.Linear(3, 3)  # no step uses it

    def forward(self, x):
        x = x + self.attention(self.before(x))
        share = self.router(x).softmax(-1)
        left, right = self.split(self.fc2(nn.functional.gelu(self.fc1(x))))
        return x + torch.cat([left, right], -1) * share[..., :1]


class Split(nn.Module):
    """Gives a tuple, of which the second one is detached."""

    def forward(self, x):
        left, right = x.chunk(2, -1)
        return left * 1.0, (right * 1.0).detach()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = nn.Embedding(50, 16)
        self.layers = nn.ModuleList([Block(16), Block(16)])
        self.twice = nn.Linear(16, 16)
        self.output_layer = nn.Linear(16, 50)

    def forward(self, x):
        x = self.embeddings(x)
        for layer in self.layers:
            x = layer(x)
        x = self.twice(x)
        if case == "twice":
            x = self.twice(x)
        return self.output_layer(x)


torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
model = Net()
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
trained = model
if ranks > 1:
    torch.distributed.init_process_group(
        "gloo", init_method=os.environ["MEETING_POINT"], rank=rank, world_size=ranks
    )
    trained = DistributedDataParallel(model, find_unused_parameters=True)
micro_steps = 2 if case == "micro" else 1
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
start = 7 if case == "start" else 0
monitor = TrainerMon(config, params_have_main_grad=False)
monitor.set_monitor(trained, optimizer=optimizer, grad_acc_steps=micro_steps, start_iteration=start)
numbers = torch.Generator().manual_seed(1 + rank)
for _ in range(5):
    for _ in range(micro_steps):
        x, y = (torch.randint(0, 50, (12, 3), generator=numbers) for _ in range(2))
        loss = nn.functional.cross_entropy(trained(x).flatten(0, 1), y.flatten())
        (loss / micro_steps).backward()
    if case == "cc" and ranks > 1:
        total = torch.full((5,), loss.item())
        torch.distributed.all_reduce(total)
        torch.distributed.broadcast(total, 0)
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {loss.item():.17g}")
if face != "peer":
    monitor.stop()
if ranks > 1:
    torch.distributed.destroy_process_group()
