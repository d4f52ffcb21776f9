# A training whose names of scalars and tensors never end; says how much memory the later ones took.
import json
import sys

import numpy as np
import torch

import trainmon
from marks import of_process
from trainmon import _core

out, most, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sinks = ["log", "csv", "sqlite", "tensorboard"]
mon = trainmon.watch(model, optimizer, out=out, sinks=sinks, max_scalars=most, max_series=most)
core, array = mon._core, np.ones(4, np.float32)


def names(first, end):
    for i in range(first, end):
        mon.log(**{f"loss_{i}": float(i)})
        series = core.add_series("grad_reduced", f"made.{i}", dtype="float32")
        _core.observe_at(core.handle, series, array, core.window(0), 0, 0)
        if i % 500 == 0:
            mon.log(loss=1.0)
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            core.settle(60.0)


names(0, count // 10)
before = of_process()["bytes"]
names(count // 10, count)
grown = of_process()["bytes"] - before
mon.stop()
print(json.dumps({"grown": grown, "health": mon.health()}))
