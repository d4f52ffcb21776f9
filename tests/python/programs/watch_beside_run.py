# One thread trains, another one watches the model and stops again, time after time.
"""watch_beside_run.py OUT PAIRS"""

import sys
import threading

import torch

import trainmon

out, pairs = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters())
is_over = threading.Event()
steps = 0


def watch_and_stop():
    for number in range(pairs):
        monitor = trainmon.watch(
            model, optimizer, kinds=["activations"], checks=True, every=1, out=f"{out}/{number}"
        )
        begun = steps
        while steps < begun + 5:
            is_over.wait(0.001)
        monitor.stop()
    is_over.set()


thread = threading.Thread(target=watch_and_stop, daemon=True)
thread.start()
while not is_over.is_set():
    model(torch.randn(5, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    steps += 1
thread.join()
# torch looks into them while another thread may train: they are empty, and stay.
hooks = [parameter._post_accumulate_grad_hooks for parameter in model.parameters()]
assert all(one is not None and not one for one in hooks), hooks
with trainmon.watch(model, optimizer, out=f"{out}/last"):
    model(torch.randn(5, 8)).square().mean().backward()
    optimizer.step()
print("trained")
