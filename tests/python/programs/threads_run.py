# The first watch() calls of a process, in four threads at once; prints what they raised.
"""threads_run.py OUT"""

import sys
import threading
import traceback

import torch

import trainmon

COUNT = 4
gate = threading.Barrier(COUNT)
raised = []


def pair():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    return model, torch.optim.AdamW(model.parameters())


def train(number):
    model, optimizer = pairs[number]
    gate.wait()
    try:
        out = f"{sys.argv[1]}/{number}"
        kinds = ["grads", "weights", "moments", "activations", "stack"]
        with trainmon.watch(model, optimizer, kinds=kinds, out=out):
            for _ in range(3):
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    except BaseException:
        raised.append(traceback.format_exc())


pairs = [pair() for _ in range(COUNT)]
sys.setswitchinterval(1e-4)  # each switch may wait for a processor that others use, too
threads = [threading.Thread(target=train, args=(number,)) for number in range(COUNT)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("\n".join(raised), end="")
