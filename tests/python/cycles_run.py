# Attaches and detaches many times; prints the state of the process after warm-up and at the end.
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

    warm = cycles  # the allocator needs some to settle
    before = None
    for number in range(warm + cycles):
        if number == warm:
            gc.collect()
            before, objects = marks.of_process(), marks.of_objects(model, [optimizer])
        cycle(number)
    gc.collect()
    same = marks.of_objects(model, [optimizer]) == objects
    alive = sum(monitor() is not None for monitor in monitors)
    print(json.dumps([before, marks.of_process(), same, alive]))


if __name__ == "__main__":
    main()
