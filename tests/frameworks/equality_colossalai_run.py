# The training of the equality table under ColossalAI's plugins, watched or bare.
"""equality_colossalai_run.py OUT CASES: losses and final weights go to OUT/ROW/<how>.<rank>.pt. CASES is
{ROW: [case, how, ...]} as JSON, a case of ROWS of test_equality_colossalai.py, each `how` watched, bare or
face: the manual's snippet with its monitor_config.json in OUT/ROW."""

import contextlib
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

import colossalai
import colossalai_shim
import torch
import torch.distributed as dist
from colossalai.booster import Booster
from colossalai.booster.plugin import LowLevelZeroPlugin, TorchDDPPlugin

import equality_gpt as gpt
import trainmon


def plugin_of(case: dict):
    if case["plugin"] == "ddp":
        return TorchDDPPlugin()
    colossalai_shim.install()
    return LowLevelZeroPlugin(
        stage=case["stage"],
        precision=case.get("precision", "fp32"),
        max_norm=case.get("clip", 0.0),
        reduce_bucket_size_in_m=1,
        overlap_communication=False,  # there are no streams to overlap on
    )


def train(out, case, how, rank):
    model = gpt.make()
    inner = torch.optim.AdamW(model.parameters(), **gpt.ADAMW)
    booster = Booster(plugin=plugin_of(case))
    model, optimizer, *_ = booster.boost(model, inner)
    monitor = face = None
    if how == "watched":
        given = inner if case.get("given") == "inner" else optimizer
        monitor = trainmon.watch(
            model,
            given,
            kinds=["grad_unreduced", "grad_reduced", "weights", "moments"],
            every=1,
            out=str(out / "run"),
            grad_acc_steps=gpt.MICRO_STEPS,
        )
    elif how == "face":
        from trainmon.compat.colossalai import ColossalAIMonitor

        face = ColossalAIMonitor(os.fspath(out / "monitor_config.json"))
        face.monitor(model)

    losses = []
    for step in range(gpt.STEPS):
        for micro in range(gpt.MICRO_STEPS):
            ids, targets = gpt.batch(rank, step, micro)
            is_last = micro == gpt.MICRO_STEPS - 1
            adds_up = case.get("no_sync") and not is_last
            apart = booster.no_sync(model, optimizer) if adds_up else contextlib.nullcontext()
            with apart:
                loss = gpt.loss_of(model(ids), targets) / gpt.MICRO_STEPS
                booster.backward(loss, optimizer)
            losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        if face is not None:
            face.step_end(model)
    if monitor is not None:
        monitor.stop()
        health = monitor.health()
        assert health["parts_off"] == {} and health["errors"] == 0, health
        assert health["refused"] == {}, health
    if face is not None:
        face.stop()
    final = [p.detach().clone() for p in model.parameters()]
    torch.save({"losses": losses, "final": final}, out / f"{how}.{rank}.pt")


def main():
    out, cases = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
    colossalai.launch_from_torch(seed=1)
    for row, (case, *hows) in cases.items():
        for how in hows:
            train(out / row, case, how, dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
