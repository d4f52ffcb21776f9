# Trains one model under PrecisionDebugger, msprobe's or ours: grad_probe_run.py FACE CONFIG
# The same numbers go in on both sides; what is written is compared by test_grad_probe.py.
import sys

import numpy as np
import torch
from torch import nn

face, config = sys.argv[1:3]
if face == "peer":
    np.unicode_ = np.str_  # 8.3.3 was written for NumPy 1
    from msprobe.pytorch import PrecisionDebugger
else:
    from trainmon.compat.msprobe.pytorch import PrecisionDebugger


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.up, self.down = nn.Linear(16, 37), nn.Linear(37, 50)
        self.narrow = nn.Linear(50, 3, dtype=torch.bfloat16)
        self.at_times = nn.Parameter(torch.zeros(3))  # the third step does not use it
        self.idle = nn.Parameter(torch.zeros(2))
        self.number = nn.Parameter(torch.tensor(1.5))

    def forward(self, tokens, step):
        x = self.down(torch.relu(self.up(self.table(tokens)))) * self.number
        out = self.narrow(x.to(torch.bfloat16)).float()
        return out + self.at_times if step != 2 else out


torch.manual_seed(11)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
debugger = PrecisionDebugger(config)
debugger.monitor(model)
for step in range(4):
    optimizer.zero_grad()
    model(torch.randint(0, 50, (4, 7)), step).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
debugger.stop()
