# Trains with much to say: by the core, by print and by logging; leaves a file when all of it is over.
"""console_run.py LOGGING OUT. LOGGING: none, basic (a handler on standard error), raising."""

import json
import logging
import pathlib
import sys

import torch

import trainmon


class Raising(logging.Handler):
    def emit(self, record):
        raise RuntimeError("a handler of the user's")


how, out = sys.argv[1], pathlib.Path(sys.argv[2])
if how == "basic":
    logging.basicConfig()
elif how == "raising":
    logging.getLogger().addHandler(Raising())
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
monitor = trainmon.watch(model, optimizer, kinds=["grads", "weights"], out=str(out / "run"))
for step in range(20):
    given = torch.randn(3, 4)
    if step == 15:
        given[0, 0] = float("nan")
    model(given).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    monitor.log(loss="no number")
health = monitor.stop()
(out / "ended.json").write_text(json.dumps(health))
