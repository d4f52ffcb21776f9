# Attaches and detaches many times; prints the state of the process after each third of the cycles.
import gc
import json
import sys
import weakref

import torch

import marks
import models
import trainmon


def main():
    out, cycles = sys.argv[1], int(sys.argv[2])
    models.seed(1)
    torch.set_num_threads(1)
    model = models.build("gpt")
    optimizer = torch.optim.AdamW(model.parameters())
    monitors = []

    def cycle(number):
        monitor = trainmon.watch(
            model,
            optimizer,
            kinds=["grads", "grad_unreduced", "weights", "moments", "activations"],
            every=1,
            out=f"{out}/{number}",
        )
        data, target = models.draw("gpt")
        models.loss_of(model(data), target).backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.stop()
        monitors.append(weakref.ref(monitor))

    # Before the first mark the allocator needs some cycles to settle; of the two spans after it the
    # test takes the one with less growth, for what lies around varies by more than a leak would.
    marked = []
    for number in range(3 * cycles):
        if number and number % cycles == 0:
            gc.collect()
            marked.append(marks.of_process())
            if number == cycles:
                objects = marks.of_objects(model, [optimizer])
        cycle(number)
    gc.collect()
    marked.append(marks.of_process())
    same = marks.of_objects(model, [optimizer]) == objects
    alive = sum(monitor() is not None for monitor in monitors)
    print(json.dumps([marked, same, alive]))


if __name__ == "__main__":
    main()
