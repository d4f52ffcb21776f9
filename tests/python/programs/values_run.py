# The watched side of the value test: the oracle's training, with trainmon and nothing else.
import json
import os
import pathlib
import sys

import torch

import models
import oracle_model
import trainmon

KINDS = ["grad_unreduced", "grad_reduced", "weights", "moments", "activations"]


def main():
    out, mode = pathlib.Path(sys.argv[1]), sys.argv[2]
    model, optimizer = oracle_model.begin(mode, views=len(sys.argv) > 3)
    monitor = trainmon.watch(
        model,
        optimizer,
        kinds=KINDS,
        every=1,
        out=str(out / "run"),
        grad_acc_steps=oracle_model.MICRO_STEPS,
    )
    losses = []
    for step in range(oracle_model.STEPS):
        for micro in range(oracle_model.MICRO_STEPS):
            ids, target = oracle_model.batch(step, micro)
            with models.micro_step(model, mode, micro == oracle_model.MICRO_STEPS - 1):
                extra = oracle_model.use_extra(mode, step, micro)
                loss = oracle_model.loss_of(model(ids, use_extra=extra), target)
                loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
    monitor.stop()
    final = [models.local(p.detach()).clone() for p in model.parameters()]
    rank = os.environ["RANK"]
    torch.save({"losses": losses, "final": final}, out / f"watched.{rank}.pt")
    (out / f"health.{rank}.json").write_text(json.dumps(monitor.health(), default=str))
    oracle_model.end(mode)


if __name__ == "__main__":
    main()
